"""Starts the app: content, address and access."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path

from core.cli.refusals import explaining_refusals
from core.errors import ConfigError
from core.messages.redaction import AUTH_VARIABLE
from core.network.listening import check_access, check_port
from core.network.logins import logins_of_environment
from core.network.outbound import distrust_callers
from core.processes.environment import MODEL_VARIABLE
from core.runs.chain import submit_quickstart
from core.runs.client import refresh
from core.runs.slots import default_slots
from core.serving.demo import Demo
from core.stages.registry import load_further_stages
from core.store import Store
from core.workspace.confinement import allow_folders
from core.workspace.locks import single_instance
from core.workspace.places import guarding_workspaces, private_files, stopping_when_moved
from core.workspace.workspace import Workspace

ON_SPACE_VARIABLE = "STUDIO_ON_SPACE"
OWNERS_VARIABLE = "STUDIO_OWNERS"
PROXIES_VARIABLE = "FORWARDED_ALLOW_IPS"


@explaining_refusals()
def serve(
    workspace: Workspace,
    *,
    host: str,
    port: int,
    allow: Sequence[Path] = (),
    quickstart: bool = False,
) -> None:
    """Serves the web app until interrupted; runs go on.

    STUDIO_MODEL serves only that model's demo; a Space without it, instructions.

    Args:
        allow: More readable folders.
        quickstart: Submits the quickstart if there is no run.

    Raises:
        StudioError: Port taken, workspace in use or not writable, folder missing, no access
            control, or invalid environment.
    """
    reference = os.environ.get(MODEL_VARIABLE, "").strip()
    if reference or (_space() and not os.environ.get(ON_SPACE_VARIABLE)):
        _serve_demo(reference, host, port)
        return
    logins, owners = logins_of_environment(), _owners()
    _check_access(host, bool(logins or owners))
    check_port(host, port)
    allow_folders(allow)
    default_slots()
    load_further_stages()
    distrust_callers()
    with guarding_workspaces(), private_files(workspace.root):
        workspace.make_root()
        with (
            single_instance(workspace.root / "app.lock", "app"),
            stopping_when_moved(workspace.root),
        ):
            _serve_studio(workspace, host, port, logins, owners, quickstart)


def _serve_studio(
    workspace: Workspace,
    host: str,
    port: int,
    logins: list[tuple[str, str]],
    owners: list[str],
    quickstart: bool,
) -> None:
    _prepare_environment(workspace.cache / "uploads")
    # Gradio takes a second, and reads the environment.
    from ui import launch, layout

    page = layout.build_page(workspace)
    launch.launch_studio(page, host, port, logins, owners, layout.first_view(workspace))
    print(f"Pretrain Studio: http://{_for_browser(host)}:{port}  (workspace: {workspace.root})")
    print("Stop it with Ctrl+C; runs go on without it.", flush=True)
    refresh(workspace)
    if quickstart:
        _start_quickstart(workspace)
    page.block_thread()


def _serve_demo(reference: str, host: str, port: int) -> None:
    check_port(host, port)
    with closing(Demo(reference)) if reference else nullcontext() as demo:
        if demo:
            # Load while Gradio builds.
            demo.prepare()
        _prepare_environment(None)
        # Gradio takes a second, and reads the environment.
        from ui import demo as demo_page
        from ui import launch

        address = _space() or f"http://{_for_browser(host)}:{port}"
        page = demo_page.build_demo(demo, address) if demo else demo_page.build_instructions()
        launch.launch_demo(page, host, port)
        what = f"the demo of {demo.title}" if demo else f"set {MODEL_VARIABLE} to show a model"
        print(f"Pretrain Studio: http://{_for_browser(host)}:{port}  ({what})", flush=True)
        page.block_thread()


def _space() -> str:
    return os.environ.get("SPACE_ID", "")


def _owners() -> list[str]:
    """Elsewhere than on a Space, Gradio's sign-in is a mock that admits anybody."""
    if os.environ.get("SYSTEM") != "spaces" or not _space():
        return []
    if not os.environ.get("OAUTH_CLIENT_ID"):
        return []
    listed = os.environ.get(OWNERS_VARIABLE) or os.environ.get("SPACE_AUTHOR_NAME", "")
    owners = [name for name in re.split(r"[\s,]+", listed) if name]
    if not owners:
        raise ConfigError(
            "It isn't known who owns this Space",
            expected=f"accounts in {OWNERS_VARIABLE}, separated by commas",
            received="none",
            fix=f"set {OWNERS_VARIABLE} in the Space's settings",
        )
    return owners


def _check_access(host: str, has_login: bool) -> None:
    if has_login or not _space():
        check_access(host, has_login=has_login)
        return
    raise ConfigError(
        "On a Space anyone could train, read and delete in the studio",
        expected=f"hf_oauth: true in the Space's README, or a password in {AUTH_VARIABLE}",
        fix=f"set one of them, or unset {ON_SPACE_VARIABLE} and set {MODEL_VARIABLE} for a demo",
    )


def _prepare_environment(uploads: Path | None) -> None:
    """Clients can forge `X-Forwarded-For`: by default trust no proxy."""
    os.environ.setdefault(PROXIES_VARIABLE, "")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    # Gradio would serve these too.
    os.environ.pop("GRADIO_ALLOWED_PATHS", None)
    if uploads:
        os.environ["GRADIO_TEMP_DIR"] = str(uploads)
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
