"""Talks to another machine with the system's ssh client, which knows the user's configuration.

Exit status 255 means that the connection failed: nothing is known about the command. Connections
are shared (ControlMaster), and a server that doesn't answer is given up after 15 seconds.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread, Timer
from typing import IO, BinaryIO
from urllib.parse import unquote, urlsplit

from core.errors import ConfigError
from core.targets.errors import TargetError, UnavailableError
from core.targets.store import (
    StoredObject,
    check_number,
    check_size,
    checked_name,
    missing,
)
from core.workspace.names import flaw_of_name

COMMAND_VARIABLE = "STUDIO_SSH_COMMAND"
_CONNECTION_FAILED = 255
_KILLED = 128  # Shells add the number of the signal.
_MISSING = 44
_EXISTS = 45
_SECONDS = 60.0
_SECONDS_FOR_ERRORS = 5.0
_PIPE = subprocess.PIPE
_PIECE_BYTES = 64 << 10
_MOST_OUTPUT_BYTES = 1 << 20
# A listing of the most objects that a mirror may have.
_MOST_LISTING_BYTES = 64 << 20
_SLOWEST_BYTES_PER_SECOND = 50_000
# A host name, an address, or an alias of the user's ssh configuration; never an option.
_HOST = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9._:%\]-]{0,252}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@\\-]{0,63}")
_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=2",
    "ControlMaster=auto",
    "ControlPersist=60",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
)


# Reads up to an @, else to a slash or the end, so that no part is read twice.
_USER_INFO = re.compile(r"[^@/]+@?")


def _without_password(match: re.Match[str]) -> str:
    user, colon, rest = match[0].partition(":")
    return f"{user}:…@" if colon and rest.endswith("@") else match[0]


@dataclass(frozen=True)
class Host:
    """A machine that ssh reaches; `port` 0 is the configured one."""

    name: str
    user: str = ""
    port: int = 0

    @classmethod
    def parse(cls, address: str, *, field: str = "target") -> Host:
        """Parses the host of `ssh://[user@]host[:port][/folder]`; raises ConfigError."""
        try:
            parts = urlsplit(address)
            name, port = parts.hostname or "", parts.port or 0
            # urlsplit lowers the host's case, but an alias is case-sensitive.
            start = parts.netloc.rpartition("@")[2].lower().find(name)
            name = parts.netloc.rpartition("@")[2][start : start + len(name)]
        except ValueError:
            parts, name, port = urlsplit(""), "", 0
        user = unquote(parts.username or "")
        is_valid = (
            parts.scheme == "ssh"
            and _HOST.fullmatch(name)
            and (not user or _USER.fullmatch(user))
            and parts.password is None
        )
        if parts.scheme == "ssh" and not parts.netloc:
            raise ConfigError(
                "No machine is named yet",
                expected="a host, as for the ssh command",
                fix="enter user@host or an alias of ~/.ssh/config",
            )
        if not is_valid:
            raise ConfigError(
                "That can't be the address of a machine",
                expected="ssh://[user@]host[:port], without a password",
                received=_USER_INFO.sub(_without_password, address)[:200],
                fix="correct the address; keys and jumps belong into ~/.ssh/config",
                field=field,
            )
        return cls(name, user, port)

    @property
    def address(self) -> str:
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"ssh://{user}{name}{port}"

    @property
    def command(self) -> str:
        """The ssh command for people, with user and port."""
        port = f"-p {self.port} " if self.port else ""
        user = f"{self.user}@" if self.user else ""
        return f"ssh {port}{user}{self.name}"


class Ssh:
    """Runs commands on a host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        user = ["-l", host.user] if host.user else []
        port = ["-p", str(host.port)] if host.port else []
        options = [part for option in (*_OPTIONS, _control_path()) for part in ("-o", option)]
        self._command = [*ssh_command(), *options, *user, *port]
        self._environment: dict[str, str] | None = None

    def run(
        self,
        script: str,
        *,
        stdin: bytes | BinaryIO = b"",
        stdout: BinaryIO | None = None,
        codes: Iterable[int] = (0,),
        seconds: float = _SECONDS,
        most_bytes: int = _MOST_OUTPUT_BYTES,
    ) -> tuple[int, bytes]:
        """Runs a POSIX shell script; returns its exit status and output.

        Args:
            stdin: The script's standard input.
            stdout: Receives the output instead.
            codes: Expected exit statuses.
            seconds: Time limit.
            most_bytes: Longest output.

        Raises:
            UnavailableError: The host can't be reached, doesn't answer in time, or ends what runs
                there, as while it shuts down.
            TargetError: Another exit status.
            MirrorError: A longer output.
        """
        command = self._command_of(script)
        output = stdout or io.BytesIO()
        try:
            code, error_output = self._exchange(command, stdin, output, most_bytes, seconds)
        except FileNotFoundError as error:
            raise TargetError(
                "There is no ssh client on this machine",
                expected="the command ssh, of OpenSSH",
                received=str(error),
                fix="install openssh-client",
            ) from error
        if code == _CONNECTION_FAILED:
            raise self._unavailable(_last_line(error_output))
        if code < 0 or code > _KILLED:
            raise self._unavailable(f"a command was killed: {code} {_last_line(error_output)}")
        if code not in codes:
            raise TargetError(
                f"A command on {self.host.name} failed",
                expected="exit status 0",
                received=f"{code}: {_last_line(error_output)}",
                fix="check the disk, the rights and the shell of that account",
            )
        return code, output.getvalue() if isinstance(output, io.BytesIO) else b""

    def _command_of(self, script: str) -> list[str]:
        return [*self._command, "--", self.host.name, f"exec sh -c {shlex.quote(script)}"]

    def _exchange(
        self,
        command: list[str],
        stdin: bytes | BinaryIO,
        output: BinaryIO,
        most_bytes: int,
        seconds: float,
    ) -> tuple[int, str]:
        """Runs a command; returns its exit status and the end of what it said as an error.

        The other machine may send without end: its output is cut off at `most_bytes`.
        """
        source = subprocess.PIPE if isinstance(stdin, bytes) else stdin
        errors: list[bytes] = []
        with (
            subprocess.Popen(
                command, stdin=source, stdout=_PIPE, stderr=_PIPE, env=self._environment
            ) as process,
            _ended_after(process, seconds) as is_late,
        ):
            assert process.stdout and process.stderr
            talk = [Thread(target=_keep_end, args=(process.stderr, errors), daemon=True)]
            if isinstance(stdin, bytes) and process.stdin:
                talk.append(Thread(target=_send, args=(process.stdin, stdin), daemon=True))
            for thread in talk:
                thread.start()
            try:
                _copy(process.stdout, output, most_bytes, self.host.name)
            except BaseException:
                process.kill()
                raise
            code = process.wait()
            for thread in talk:
                thread.join(_SECONDS_FOR_ERRORS)
        if is_late.is_set():
            self._drop_connection()
            raise self._unavailable(f"no answer within {seconds:.0f} seconds")
        return code, b"".join(errors).decode("utf-8", "replace").strip()

    def _drop_connection(self) -> None:
        """Ends the shared connection, which a frozen server would block."""
        command = [*self._command, "-O", "exit", "--", self.host.name]
        try:
            subprocess.run(command, capture_output=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return

    def _unavailable(self, received: str) -> UnavailableError:
        fix = "check the network, the address, and that the machine is on"
        if "Host key verification failed" in received or "host key" in received.lower():
            fix = f"connect once by hand and accept its key: {self.host.command}"
        elif "Permission denied" in received:
            fix = "set up a key that needs no passphrase here: ssh-copy-id; for keys in an agent, "
            fix += "start this program with STUDIO_PASS_ENVIRONMENT=SSH_AUTH_SOCK"
        return UnavailableError(
            f"{self.host.name} can't be reached with ssh",
            expected=f"a login without a question: {self.host.command} true",
            received=received or "no answer",
            fix=fix,
        )


class Local(Ssh):
    """Runs commands on this machine, with no more of this program's environment than a login's."""

    _OF_A_LOGIN = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TMPDIR", "SLURM_CONF")

    def __init__(self) -> None:
        self.host = Host("localhost")
        self._environment = {
            name: os.environ[name] for name in self._OF_A_LOGIN if name in os.environ
        }

    def _command_of(self, script: str) -> list[str]:
        return ["sh", "-c", script]

    def _drop_connection(self) -> None:
        return


class SshStore:
    """A folder on a Linux machine that ssh reaches; `ssh://host/~/folder` lies in the home."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._ssh = Ssh(Host.parse(address, field="mirror"))
        path = unquote(urlsplit(address).path) or "/~"
        # Relative to the home folder, where a login begins.
        self._root = path.removeprefix("/~").lstrip("/") or "." if path.startswith("/~") else path

    def list_objects(self, prefix: str = "") -> dict[str, StoredObject]:
        script = (
            f"{self._refusing_links(prefix, 0)}cd {self._quoted('')} 2>/dev/null || exit 0; "
            f"[ -d {shlex.quote(prefix or '.')} ] || exit 0; "
            f"find {shlex.quote(prefix or '.')} -type f ! -name '.*' "
            "-printf '%s %T@-%i %p\\0'"
        )
        _, output = self._ssh.run(script, most_bytes=_MOST_LISTING_BYTES)
        check_number(range(output.count(b"\0")), self.address)
        objects: dict[str, StoredObject] = {}
        for entry in output.split(b"\0"):
            size, _, rest = entry.decode("utf-8", "replace").partition(" ")
            version, _, path = rest.partition(" ")
            name = path.removeprefix("./")
            if re.fullmatch("[0-9]{1,18}", size) and not flaw_of_name(name):
                objects[name] = StoredObject(int(size), version, _time_of(version))
                check_number(objects, self.address)
        return objects

    def read(self, name: str, most_bytes: int) -> bytes | None:
        path = self._quoted(name)
        script = (
            f"{self._refusing_links(name, _MISSING)}[ -f {path} ] || exit {_MISSING}; "
            f"head -c {most_bytes + 1} {path}"
        )
        code, data = self._ssh.run(
            script,
            codes=(0, _MISSING),
            seconds=_time_for(most_bytes),
            most_bytes=most_bytes + 1,
        )
        if code == _MISSING:
            return None
        check_size(f"{self.address}/{name}", len(data), most_bytes)
        return data

    def write(self, name: str, data: bytes) -> None:
        self._ssh.run(self._writing(name, "mv -f"), stdin=data, seconds=_time_for(len(data)))

    def create(self, name: str, data: bytes) -> bool:
        draft, final = self._draft(name), self._quoted(name)
        script = (
            f"{self._making(name)}cat > {draft} || {{ rm -f {draft}; exit 1; }}; "
            f"if ln {draft} {final} 2>/dev/null; then code=0; "
            f"elif [ -e {final} ]; then code={_EXISTS}; else code=1; fi; "
            f"rm -f {draft}; exit $code"
        )
        code, _ = self._ssh.run(script, stdin=data, codes=(0, _EXISTS))
        return code == 0

    def upload(self, path: Path, name: str) -> None:
        with path.open("rb") as file:
            size = path.stat().st_size
            self._ssh.run(self._writing(name, "mv -f"), stdin=file, seconds=_time_for(size))

    def download(self, name: str, path: Path, most_bytes: int) -> None:
        source = self._quoted(name)
        script = (
            f"{self._refusing_links(name, _MISSING)}[ -f {source} ] || exit {_MISSING}; "
            f"head -c {most_bytes + 1} {source}"
        )
        with path.open("wb") as file:
            code, _ = self._ssh.run(
                script,
                stdout=file,
                codes=(0, _MISSING),
                seconds=_time_for(most_bytes),
                most_bytes=most_bytes + 1,
            )
        if code == _MISSING:
            path.unlink()
            raise missing(f"{self.address}/{name}")
        check_size(f"{self.address}/{name}", path.stat().st_size, most_bytes)

    def remove(self, names: Iterable[str]) -> None:
        every = list(names)
        for start in range(0, len(every), 200):
            some = every[start : start + 200]
            folders = sorted({name.rpartition("/")[0] for name in some})
            checks = "".join(self._refusing_links(folder, 1) for folder in folders)
            self._ssh.run(f"{checks}rm -f -- {' '.join(map(self._quoted, some))}")

    def _writing(self, name: str, move: str) -> str:
        draft = self._draft(name)
        return (
            f"{self._making(name)}cat > {draft} && {move} {draft} {self._quoted(name)} "
            f"|| {{ rm -f {draft}; exit 1; }}"
        )

    def _making(self, name: str) -> str:
        parent = name.rpartition("/")[0]
        folder = self._quoted(parent)
        return f"{self._refusing_links(parent, 1)}umask 077; mkdir -p {folder} || exit 1; "

    def _refusing_links(self, name: str, code: int) -> str:
        """Returns a script that exits if a name is, or lies below, a link of the mirror's folder.

        Others may be able to make one there, to a folder of this account.
        """
        parts = name.split("/") if name else []
        paths = [self._quoted("/".join(parts[: count + 1])) for count in range(len(parts))]
        tests = " || ".join(f"[ -L {path} ]" for path in paths)
        return f"if {tests}; then exit {code}; fi; " if paths else ""

    def _draft(self, name: str) -> str:
        folder, _, _ = name.rpartition("/")
        return self._quoted(
            f"{folder}/.{secrets.token_hex(8)}" if folder else secrets.token_hex(8), hidden=True
        )

    def _quoted(self, name: str, *, hidden: bool = False) -> str:
        if name and not hidden:
            checked_name(name, self.address)
        path = f"{self._root.rstrip('/')}/{name}" if name else self._root
        return shlex.quote(path if path.startswith("/") else f"./{path}")


@contextmanager
def _ended_after(process: subprocess.Popen[bytes], seconds: float) -> Iterator[Event]:
    """Kills a process after a time; the event tells whether that was necessary."""
    is_late = Event()

    def end() -> None:
        is_late.set()
        process.kill()

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


def _copy(source: IO[bytes], output: BinaryIO, most_bytes: int, host: str) -> None:
    done = 0
    while piece := source.read(_PIECE_BYTES):
        done += len(piece)
        check_size(f"The answer of {host}", done, most_bytes)
        output.write(piece)


def _keep_end(source: IO[bytes], tail: list[bytes]) -> None:
    while piece := source.read1(_PIECE_BYTES):  # type: ignore[attr-defined]
        tail[:] = [b"".join([*tail, piece])[-_PIECE_BYTES:]]


def _send(sink: IO[bytes], data: bytes) -> None:
    # A command may end without having read everything.
    with suppress(OSError):
        sink.write(data)
    with suppress(OSError):
        sink.close()


def ssh_command() -> list[str]:
    """Returns the ssh client's command, as STUDIO_SSH_COMMAND or `ssh`."""
    return shlex.split(os.environ.get(COMMAND_VARIABLE, "")) or ["ssh"]


def _control_path() -> str:
    """Returns the option for the shared connection's socket, whose path must be short."""
    folder = Path(tempfile.gettempdir(), f"studio-ssh-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    # Another user may have made it first.
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        return "ControlPath=none"
    return f"ControlPath={folder}/%C"


def _time_for(size: int) -> float:
    return _SECONDS + size / _SLOWEST_BYTES_PER_SECOND


def _time_of(version: str) -> float:
    """Returns the time of a change; the machine may state any, but no number too large."""
    seconds = version.partition("-")[0]
    return float(seconds) if re.fullmatch(r"[0-9]{1,11}(\.[0-9]{1,12})?", seconds) else 0.0


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-500:] if lines else ""
