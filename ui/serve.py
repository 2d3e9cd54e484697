"""Starts the app: content, address and access."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path

from core.cli.refusals import explaining_refusals
from core.errors import ConfigError, StudioError
from core.messages.redaction import AUTH_VARIABLE, parse_logins
from core.network.outbound import distrust_callers
from core.processes.environment import MODEL_VARIABLE
from core.runs.chain import submit_quickstart
from core.runs.client import refresh
from core.runs.slots import default_slots
from core.serving.demo import Demo
from core.stages.registry import load_further_stages
from core.store import Store
from core.workspace.confinement import ALLOWED_PATHS_VARIABLE
from core.workspace.locks import single_instance
from core.workspace.places import guarding_workspaces, private_files, stopping_when_moved
from core.workspace.workspace import Workspace
from ui.parts.access import is_local

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
    logins, owners = _logins(), _owners()
    _check_access(host, bool(logins or owners))
    _check_port(host, port)
    _allow(allow)
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
    _check_port(host, port)
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


def _logins() -> list[tuple[str, str]]:
    try:
        logins = parse_logins(os.environ.get(AUTH_VARIABLE, ""))
    except ValueError as error:
        raise ConfigError(
            f"{AUTH_VARIABLE} can't be used",
            expected="name:password, several of them separated by commas or lines",
            received=str(error),
            fix=f"set {AUTH_VARIABLE} to a name and a password with a colon between them",
        ) from error
    return logins


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
    if has_login or (is_local(host) and not _space()):
        return
    if _space():
        raise ConfigError(
            "On a Space anyone could train, read and delete in the studio",
            expected=f"hf_oauth: true in the Space's README, or a password in {AUTH_VARIABLE}",
            received="neither",
            fix=f"set one of them, or unset {ON_SPACE_VARIABLE} and set {MODEL_VARIABLE} for a "
            "demo",
        )
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
    """Runs inherit the variable."""
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
