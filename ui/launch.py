"""Launches a page in Gradio's server, behind access control.

Gradio reads its environment when it is imported: `ui.serve` sets it first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from core.serving.demo import MOST_CHARACTERS
from ui.assets import read, style_sheets
from ui.demo import FULL, MOST_REQUEST_BYTES, MOST_WAITING, OFFERED, ROUTES
from ui.parts.access import AccessControl, AllowedRoutes, by_cookie, by_sign_in
from ui.parts.access_body import (
    LOGIN_PATHS,
    MOST_JSON_BYTES,
    MOST_UPLOAD_BYTES,
    BodyLimits,
    LocalFilesOnly,
)
from ui.parts.access_connections import limit_connections
from ui.parts.access_gradio import GuardedApp, disable_downloads
from ui.parts.access_login import Passwords
from ui.parts.access_origin import ForwardedHeaders, OwnOriginOnly, ResponseHeaders
from ui.parts.access_requests import DemoRequests
from ui.parts.frontend import FasterFrontend, changed_assets, script_asset
from ui.theme import make_theme

# Gradio copies its settings per session, by default up to 10,000.
_SESSIONS_KEPT = 200
_FRAMED_BY = ("https://huggingface.co",)
# For an anonymous user's request body.
_BODY_SECONDS = 10.0
# Open to anonymous users: sign-in, and Gradio's start-up request.
_STARTUP_ROUTE = "GET /gradio_api/startup-events"
_LOGIN_ROUTES = (*(f"POST {path}" for path in LOGIN_PATHS), _STARTUP_ROUTE)
_SIGN_IN_PATHS = ("/login/huggingface", "/login/callback")
_SIGN_IN_ROUTES = (*(f"GET {path}" for path in _SIGN_IN_PATHS), _STARTUP_ROUTE)


def launch_studio(
    page: gr.Blocks,
    host: str,
    port: int,
    logins: list[tuple[str, str]],
    owners: list[str],
    first: Callable[[], Mapping[str, Any]],
) -> None:
    """Launches the studio; a Space's owners sign in with Hugging Face, others by password.

    Args:
        first: Reads the data for the first paint.
    """
    if owners:
        with page:
            # The button makes Gradio add the sign-in routes.
            gr.LoginButton(logout_value="Sign out ({})", size="sm", elem_classes=["ps-account"])
    _launch(
        page,
        host,
        port,
        _studio_access(logins, owners, first),
        auth=Passwords(logins).fits if logins and not owners else None,
        max_file_size=MOST_UPLOAD_BYTES,
    )


def launch_demo(page: gr.Blocks, host: str, port: int) -> None:
    """Launches a demo, which anonymous users may use."""
    _launch(page, host, port, _demo_access(page), auth=None, max_file_size=0)


@dataclass(frozen=True)
class _Access:
    """Middleware outside (`outer`) and behind Gradio's own (`inner`), outermost first.

    Only `inner` knows sign-in sessions.
    """

    outer: list[Middleware]
    inner: list[Middleware]


def _launch(page: gr.Blocks, host: str, port: int, access: _Access, **options: Any) -> None:
    disable_downloads()
    limit_connections()
    page.launch(
        server_name=host,
        server_port=port,
        theme=make_theme(),
        css=style_sheets(),
        quiet=True,
        ssr_mode=False,
        share=False,
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        mcp_server=False,
        state_session_capacity=_SESSIONS_KEPT,
        _app=GuardedApp(access.outer, access.inner),
        prevent_thread_lock=True,
        # Without the check whether the page answers in 3 seconds: a busy machine needs longer.
        _frontend=False,
        **options,
    )


def _studio_access(
    logins: list[tuple[str, str]], owners: list[str], first: Callable[[], Mapping[str, Any]]
) -> _Access:
    inner = []
    if owners:
        page = read("login.html").replace("%WAY-IN%", read("login_space.html"))
        who = by_sign_in(owners)
        inner.append(Middleware(AccessControl, who=who, open_routes=_SIGN_IN_ROUTES, page=page))
    elif logins:
        page = read("login.html").replace("%WAY-IN%", read("login_password.html"))
        inner.append(Middleware(AccessControl, who=by_cookie, open_routes=_LOGIN_ROUTES, page=page))
    limits = Middleware(
        BodyLimits,
        most_json_bytes=MOST_JSON_BYTES,
        most_upload_bytes=MOST_UPLOAD_BYTES,
        has_login=bool(logins and not owners),
    )
    linked = _SIGN_IN_PATHS if owners else ()
    outer = _outer_access(local_names_only=not (logins or owners), linked_paths=linked)
    assets = [*changed_assets(), script_asset()]
    faster = Middleware(FasterFrontend, assets=assets, first=first)
    return _Access(outer, [*inner, faster, limits, Middleware(LocalFilesOnly)])


def _demo_access(page: gr.Blocks) -> _Access:
    def is_crowded() -> bool:
        return len(page._queue) >= MOST_WAITING // 2

    inner = [
        Middleware(AllowedRoutes, routes=ROUTES, full=FULL, is_crowded=is_crowded),
        Middleware(
            BodyLimits,
            most_json_bytes=MOST_REQUEST_BYTES,
            most_upload_bytes=0,
            is_strict=True,
            seconds=_BODY_SECONDS,
        ),
        Middleware(FasterFrontend, assets=[*changed_assets(), script_asset()]),
        Middleware(DemoRequests, page=page, offered=OFFERED, most_characters=MOST_CHARACTERS),
    ]
    return _Access(_outer_access(local_names_only=False), inner)


def _outer_access(*, local_names_only: bool, linked_paths: Sequence[str] = ()) -> list[Middleware]:
    # A Space's proxy may change the Host.
    is_space = bool(os.environ.get("SPACE_ID"))
    hosts = re.split(r"[\s,]+", os.environ.get("SPACE_HOST", "")) if is_space else []
    own_hosts = [host for host in hosts if host]
    return [
        Middleware(ForwardedHeaders, own_hosts=own_hosts),
        Middleware(ResponseHeaders, framed_by=_FRAMED_BY if is_space else ()),
        Middleware(
            OwnOriginOnly,
            local_names_only=local_names_only,
            own_hosts=own_hosts,
            linked_paths=linked_paths,
            is_framed=is_space,
        ),
    ]
