"""Starts the app: where it listens, who may, and what it says in the terminal."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from core.errors import ConfigError, StudioError
from core.runs.client import refresh, submit_quickstart
from core.runs.slots import default_slots
from core.store import Store
from core.workspace import ALLOWED_PATHS_VARIABLE, Workspace, only_one
from ui.parts.doors import OwnPagesOnly, is_local

AUTH_VARIABLE = "STUDIO_AUTH"
_MOST_UPLOADED = "4gb"


def serve(
    workspace: Workspace,
    *,
    host: str,
    port: int,
    allow: Sequence[Path] = (),
    quickstart: bool = False,
) -> None:
    """Serves the page until it is interrupted. Runs go on afterwards.

    Args:
        workspace: What the page shows.
        host: The address to listen on.
        port: The port to listen on.
        allow: Folders that the page may read besides the workspace.
        quickstart: Submit the quickstart if nothing was ever run here.

    Raises:
        StudioError: The port is taken, another app works here, a folder isn't there, anyone could
            come in, or the environment holds what can't be used.
    """
    login = _login(host)
    _check_port(host, port)
    _allow(allow)
    default_slots()
    with only_one(workspace.root / "app.lock", "app"):
        _serve(workspace, host, port, login, quickstart)


def _serve(
    workspace: Workspace, host: str, port: int, login: tuple[str, str] | None, quickstart: bool
) -> None:
    _prepare_environment(workspace)
    from starlette.middleware import Middleware

    from ui.assets import read
    from ui.layout import build_page
    from ui.theme import make_theme

    page = build_page(workspace)
    page.launch(
        server_name=host,
        server_port=port,
        auth=login,
        theme=make_theme(),
        css=read("page.css"),
        quiet=True,
        ssr_mode=False,
        share=False,
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        max_file_size=_MOST_UPLOADED,
        app_kwargs={"middleware": [Middleware(OwnPagesOnly, local_names_only=login is None)]},
        prevent_thread_lock=True,
    )
    print(f"Pretrain Studio: http://{_for_browser(host)}:{port}  (workspace: {workspace.root})")
    print("Stop it with Ctrl+C; runs go on without it.", flush=True)
    refresh(workspace)
    if quickstart:
        _start_quickstart(workspace)
    page.block_thread()


def _login(host: str) -> tuple[str, str] | None:
    """Reads who may come in; without a password only this machine may."""
    name, colon, password = os.environ.get(AUTH_VARIABLE, "").partition(":")
    if name and password:
        return name, password
    if colon or name:
        raise ConfigError(
            f"{AUTH_VARIABLE} can't be used",
            expected="name:password",
            received="something else",
            fix=f"set {AUTH_VARIABLE} to a name and a password with a colon between them",
        )
    if is_local(host):
        return None
    raise ConfigError(
        f"Listening on {host} would let anyone on the network train, read and delete here",
        expected=f"a password in {AUTH_VARIABLE}, or --host 127.0.0.1",
        received=f"--host {host} without a password",
        fix=f"set {AUTH_VARIABLE}=name:password, or leave --host out and use an SSH tunnel",
    )


def _check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise StudioError(
                f"The app can't listen on {host}, port {port}",
                expected="a free port on an address of this machine",
                received=getattr(error, "strerror", None) or str(error),
                fix="stop what uses it (perhaps another studio), or choose another with --port",
            ) from error


def _allow(folders: Sequence[Path]) -> None:
    """Adds folders to those that the page may read. Runs inherit the variable."""
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                f"--allow {folder} is no folder",
                expected="a folder on this machine",
                received=str(folder),
                fix="check the path",
            )
    listed = [
        os.environ.get(ALLOWED_PATHS_VARIABLE, ""),
        *(str(path.resolve()) for path in folders),
    ]
    os.environ[ALLOWED_PATHS_VARIABLE] = os.pathsep.join(filter(None, listed))


def _prepare_environment(workspace: Workspace) -> None:
    """Keeps Gradio from calling home, uploads in the workspace, its own checks off any proxy."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(workspace.cache / "uploads")
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [os.environ.get(name, ""), "localhost", "127.0.0.1", "::1"]
        os.environ[name] = ",".join(filter(None, hosts))


def _start_quickstart(workspace: Workspace) -> None:
    store = Store.open(workspace)
    try:
        if not store.has_runs():
            submit_quickstart(workspace)
    finally:
        store.close()


def _for_browser(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
