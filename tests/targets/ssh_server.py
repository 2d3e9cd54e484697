"""A real OpenSSH server on loopback, with keys of its own, for tests of mirrors over ssh."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.targets.compiler import compiler_settings

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@dataclass(frozen=True)
class SshServer:
    """A running server.

    Attributes:
        address: `ssh://127.0.0.1:PORT`.
        command: The client's command, for STUDIO_SSH_COMMAND.
        config: The client's configuration file.
        known_hosts: The file of accepted host keys.
        process: The listening process.
    """

    address: str
    command: str
    config: Path
    known_hosts: Path
    process: subprocess.Popen[bytes]


@contextmanager
def running_ssh_server(folder: Path, **environment: object) -> Iterator[SshServer]:
    """Runs a server that accepts one key; skips the test without OpenSSH's server.

    Args:
        environment: Of the commands that it runs.
    """
    if not Path(SSHD).exists() or not shutil.which("ssh"):
        pytest.skip("OpenSSH's server isn't installed")
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    port = free_port()
    (folder / "home").mkdir()
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    variables = {"HOME": folder / "home", **compiler_settings(), **environment}
    settings = " ".join(f'{name}="{value}"' for name, value in variables.items())
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nUsePAM no\nStrictModes no\n"
        # The start-up files of the user's shell may be slow, and hang after a kill.
        f"SetEnv {settings}\nPasswordAuthentication no\n"
        f"PidFile {folder}/pid\nPermitRootLogin prohibit-password\n"
    )
    host_key = (folder / "host_key.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key[0]} {host_key[1]}\n")
    (folder / "config").write_text(
        f"Host *\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
    )
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")])
    try:
        _wait_until_listening(port)
        yield SshServer(
            f"ssh://127.0.0.1:{port}",
            f"ssh -F {folder}/config",
            folder / "config",
            folder / "known_hosts",
            process,
        )
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_listening(port: int) -> None:
    for _ in range(100):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server doesn't listen")
