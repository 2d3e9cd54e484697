"""Sessions of Kaggle's free accelerators, with nothing but an account there.

`kaggle://TpuV5E8?hours=9`. A launch is a private script kernel, which gets the run's files from two
private datasets: one with the inputs, which runs share, and one with the code and the mirror. The
mirror is a folder of this computer. Kaggle shows a session's log at once and its output at its
end, so the machine's small objects are read from the log, and its checkpoints and model from the
output. The other way, a mirror in a bucket, would need a secret that a person attaches to each
kernel in Kaggle's editor.

Nothing reaches a running session, and Kaggle's client can only delete it: a stop that saves waits
for the session's end, and one that doesn't deletes the kernel.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from core.config.targets import KAGGLE_ACCELERATORS
from core.errors import ConfigError
from core.processes.children import module_command, with_module_paths
from core.processes.environment import for_supervisors
from core.targets import kaggle_client
from core.targets.code import bootstrap_source
from core.targets.errors import MirrorError, TargetError, UnavailableError
from core.targets.kaggle_session import MOST_SHOWN_BYTES, REPLACED, SHOWN, SHOWN_NAMES
from core.targets.mirror import RunMirror
from core.targets.store import FolderStore, check_number, checked_name, explaining, missing
from core.targets.target import Job, Machine, MirrorRoot, State, Status, printable

_ROOT = "file:///~/.pretrain-studio/kaggle"
_THERE = "file:///tmp/pretrain-studio/mirror"
_PREFIX = "studio-"
_OUTPUT = "studio-mirror"
_LONGEST_HOURS = 9.0
# So long before a session's limit the program is asked to save; then the output is packed.
_RESERVE_SECONDS = 900
# With less, a session would end while it installs.
_LEAST_QUOTA_HOURS = 0.5
# Newest first; a damaged one is passed over.
_SENT_CHECKPOINTS = 2
_LOOK_EVERY_SECONDS = 15.0
_MOST_LOG_LINES = 400
_REQUEST_SECONDS = 180.0
# Requests that move files get more time, by their size.
_TRANSFER_SECONDS, _SLOWEST_BYTES_PER_SECOND = 1800.0, 100_000
# Kaggle keeps no larger output. One that is damaged or missing is asked for so many times.
_MOST_OUTPUT_BYTES = 20 << 30
_MOST_FETCHES = 3
_PROBLEMS = {
    "account": "Kaggle doesn't tell this account's hours",
    "upload": "The run's files can't be stored on Kaggle",
    "push": "The session on Kaggle can't be started",
    "find": "The session on Kaggle can't be found",
    "look": "The session on Kaggle can't be seen",
    "fetch": "The session's output can't be fetched from Kaggle",
    "delete": "The session on Kaggle can't be deleted",
    "list": "The sessions on Kaggle can't be listed",
}
_SLUG = re.compile(r"[a-z0-9-]{6,50}")
_KERNEL = re.compile(r"[A-Za-z0-9_-]{1,64}/[a-z0-9-]{5,64}")
# The stage of a run, its time and its number, and the launch.
_SESSION = re.compile(rf"{_PREFIX}([a-z0-9-]+-\d{{8}}-\d{{6}}-[0-9a-f]{{4}})-(\d{{1,6}})")
_NO_ACCELERATOR = "error: this notebook has no "
_STATES: dict[str, State] = {
    "QUEUED": "waiting",
    "NEW_SCRIPT": "waiting",
    "RUNNING": "running",
    "CANCEL_REQUESTED": "running",
    "COMPLETE": "ended",
    "ERROR": "ended",
    "CANCEL_ACKNOWLEDGED": "ended",
}
_FIXES = {
    kaggle_client.LOGIN: "create a token at https://www.kaggle.com/settings and save it as "
    "~/.kaggle/access_token, or set KAGGLE_API_TOKEN",
    403: "verify your phone number at https://www.kaggle.com/settings; without it, sessions have "
    "no accelerator and no internet",
}


class KaggleTarget:
    """`kaggle://ACCELERATOR[?hours=HOURS]`."""

    creates_machines = False
    carries_secrets = False
    hosts = 1

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        query = parse_qs(parts.query, keep_blank_values=True)
        names = {name.lower(): name for name in KAGGLE_ACCELERATORS}
        self._accelerator = names.get(parts.netloc.lower(), "")
        self._hours = _parse_hours(query.get("hours", [f"{_LONGEST_HOURS:g}"])[0])
        is_known = not set(query) - {"hours"} and not parts.path.strip("/") and not parts.fragment
        if not self._accelerator or not self._hours or not is_known:
            raise ConfigError(
                "That can't be a session on Kaggle",
                expected=f"kaggle://ACCELERATOR, one of {', '.join(KAGGLE_ACCELERATORS)}, perhaps "
                f"with ?hours=HOURS, at most {_LONGEST_HOURS:g}",
                received=address[:200],
                fix="correct the address",
                field="target",
            )
        if importlib.util.find_spec("kaggle") is None:
            raise ConfigError(
                "The package kaggle is not installed",
                expected="Kaggle's client, for targets of the form kaggle://…",
                fix="pip install -c constraints.txt -r requirements-kaggle.txt",
                field="target",
            )
        self.address = address
        self._looked: tuple[str, float, Status | None] = ("", 0.0, None)
        self._log: list[str] = []
        self._lines_read = self._fetches = 0
        self._began = 0.0
        self._lacks_accelerator = ""

    @property
    def _kind(self) -> str:
        """The kind of quota; "" for a CPU, which has none."""
        return {"T": "TPU", "N": "GPU"}.get(self._accelerator[0], "")

    def check(self) -> str:
        account = _request("account")
        left = self._hours_left(account)
        quota = "" if left is None else f", {left:.1f} hours of {self._kind} left this week"
        return printable(f"{self._accelerator} on Kaggle as {account['user']}{quota}"[:300])

    def mirror_root(self, asked: str) -> MirrorRoot:
        if asked:
            raise ConfigError(
                "A session on Kaggle can't use this mirror",
                expected="none: it is kept on this computer",
                received=asked[:200],
                fix="leave it empty",
                field="mirror",
            )
        root = FolderStore(_ROOT).root
        with explaining(_ROOT):
            root.mkdir(0o700, parents=True, exist_ok=True)
            root.chmod(0o700)
        return MirrorRoot(_ROOT, _THERE)

    def price_per_hour(self) -> float | None:
        return None

    def launch(self, job: Job) -> Machine:
        if self._lacks_accelerator:
            raise TargetError(
                f"Kaggle has given a session without a {self._kind}",
                expected=self._accelerator,
                received=self._lacks_accelerator,
                fix="look at the kernel's settings on Kaggle, or choose another accelerator",
            )
        left = self._hours_left(_request("account"))
        hours = self._hours if left is None else min(self._hours, left)
        seconds = round(hours * 3600 - min(_RESERVE_SECONDS, hours * 360))
        spec = RunMirror(FolderStore(_ROOT), job.run_id).read_spec(job.spec)
        blobs = sorted({file.sha256 for needed in spec.inputs for file in needed.files})
        with tempfile.TemporaryDirectory(prefix="kaggle-") as folder:
            datasets = [self._send_session(job, seconds, blobs, Path(folder, "session"))]
            if blobs:
                datasets.append(_send_inputs(blobs, Path(folder, "inputs")))
            script = Path(folder, "kernel")
            script.mkdir()
            source = Path(kaggle_client.__file__).with_name("kaggle_session.py")
            shutil.copyfile(source, script / "script.py")
            try:
                kernel = _request(
                    "push",
                    folder=str(script),
                    slug=_slug(job.name),
                    datasets=datasets,
                    accelerator=self._accelerator if self._kind else "",
                    limit=seconds + _RESERVE_SECONDS,
                )
            except UnavailableError:
                raise
            except TargetError:
                # The dataset has the session's name.
                with suppress(TargetError):
                    _request("delete", kernel=datasets[0], is_kept=True)
                raise
        return Machine(self.address, _checked(kernel), job.run_id, job.launch, time.time())

    def find(self, run_id: str, launch: int) -> Machine | None:
        kernel = _request("find", slug=_slug(f"{run_id}-{launch}"))
        return Machine(self.address, _checked(kernel), run_id, launch) if kernel else None

    def state(self, machine: Machine) -> Status:
        known, looked_at, status = self._looked
        is_recent = time.monotonic() - looked_at < _LOOK_EVERY_SECONDS
        if known == machine.id and status and (is_recent or status.state == "ended"):
            return status
        if known != machine.id:
            self._log, self._lines_read, self._fetches = [], 0, 0
            self._looked, self._began = (machine.id, 0.0, None), machine.created
        answer = _request("look", kernel=_checked(machine.id))
        if answer is None:
            status = Status("ended", "the kernel was deleted", is_cancelled=True)
        else:
            self._read_log(machine.run_id, answer["log"])
            status = self._status(machine, answer["status"], answer["message"])
        if status.state == "waiting":
            self._began = time.time()  # At the latest.
        self._looked = machine.id, time.monotonic(), status
        return status

    def log(self, machine: Machine) -> str:
        """Returns the log's end; a phase without a limit stands for what it doesn't tell."""
        if self._looked[0] != machine.id:
            with suppress(UnavailableError):
                self.state(machine)
        return "\n".join(["studio: running", *self._log])

    def cancel(self, machine: Machine) -> None:
        """Deletes a kernel that has not ended, and the dataset that was made for it."""
        known, _, status = self._looked
        _request(
            "delete",
            kernel=_checked(machine.id),
            is_kept=known == machine.id and status is not None and status.state == "ended",
        )

    def list_machines(self) -> list[Machine]:
        machines = []
        for kernel, status in _request("list", prefix=_PREFIX, pattern=_SESSION.pattern).items():
            if match := _SESSION.fullmatch(_checked(kernel).partition("/")[2]):
                run_id, launch = match[1], int(match[2])
                machines.append(Machine(self.address, kernel, run_id, launch, detail=status))
        return machines

    def _hours_left(self, account: dict[str, Any]) -> float | None:
        """Returns the rest of this week's quota; None without one.

        Raises TargetError if it is too little for a session.
        """
        if not self._kind:
            return None
        used, allowed = account["hours"].get(self._kind, (0.0, 0.0))
        left = max(0.0, float(allowed) - float(used))
        if left < _LEAST_QUOTA_HOURS:
            raise TargetError(
                f"This week's hours of {self._kind} on Kaggle are used up",
                expected=f"at least {_LEAST_QUOTA_HOURS:g} hours, for a session that trains",
                received=f"{left:.1f} of {float(allowed):.1f} hours left",
                fix=f"resume the run when Kaggle renews them ({account['renewed'] or 'weekly'})",
            )
        return left

    def _send_session(self, job: Job, seconds: int, blobs: Sequence[str], folder: Path) -> str:
        """Uploads the code, and the part of the mirror that the machine reads.

        Args:
            seconds: Time until the machine is asked to save.
            blobs: Hashes of the files that come with the inputs.
        """
        store = FolderStore(_ROOT)
        root, mirror = f"runs/{job.run_id}", RunMirror(store, job.run_id)
        listing = mirror.look()
        names = [f"blobs/{job.code}", f"{root}/run.json"]
        names += [f"{root}/{name}" for name in listing.objects if name.startswith("claims/")]
        for checkpoint in mirror.find_checkpoints(listing)[:_SENT_CHECKPOINTS]:
            names += [f"{root}/{checkpoint.folder}/{name}" for name in checkpoint.files]
        arguments = [*job.arguments, "--notebook", self._kind.lower() or "any"]
        session = json.dumps({"arguments": arguments, "blobs": blobs, "seconds": seconds})
        folder.mkdir()
        (folder / "session.json").write_text(session)
        (folder / "bootstrap.py").write_text(bootstrap_source(), "utf-8")
        with tarfile.open(folder / "studio-session", "w") as archive:
            for name in ("session.json", "bootstrap.py"):
                archive.add(folder / name, name)
                (folder / name).unlink()
            for name in names:
                archive.add(store.root / name, f"mirror/{name}", recursive=False)
        return _upload(folder, _slug(job.name))

    def _status(self, machine: Machine, name: str, message: str) -> Status:
        state = _STATES.get(name, "unknown")
        # While this computer is off, a session still ends at its limit.
        since = time.time() - self._began
        seconds = min(since, self._hours * 3600) if self._began and state != "waiting" else None
        if state != "ended":
            return Status(state, name.lower(), f"kaggle.com/code/{machine.id}", seconds)
        try:
            _fetch_output(machine)
        except UnavailableError:
            raise
        except TargetError as error:
            self._fetches += 1
            if self._fetches < _MOST_FETCHES:
                raise _unavailable("fetch", str(error)) from error
            print(
                f"{error} It is passed over: the next session computes again what is lacking.",
                file=sys.stderr,
                flush=True,
            )
        refusals = [line for line in self._log if line.startswith(_NO_ACCELERATOR)]
        self._lacks_accelerator = refusals[-1][:300] if refusals else ""
        detail = printable(f"{name.lower()}: {message}").rstrip(": ")
        return Status(state, detail, seconds=seconds, is_cancelled=name == "CANCEL_ACKNOWLEDGED")

    def _read_log(self, run_id: str, text: str) -> None:
        """Copies the mirror's objects that are in new lines; keeps the other lines."""
        lines = text.split("\n")[:-1]
        store = FolderStore(_ROOT)
        for line in lines[self._lines_read :]:
            if line.startswith(f"{SHOWN} "):
                _copy_object(store, run_id, line)
            else:
                self._log = [*self._log, printable(line)[:1000]][-_MOST_LOG_LINES:]
        # A reading may end early.
        self._lines_read = max(self._lines_read, len(lines))


def _copy_object(store: FolderStore, run_id: str, line: str) -> None:
    """Writes an object of a line; one that is damaged comes with the output."""
    try:
        _, name, digest, text = line.split(" ")
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(base64.b64decode(text, validate=True), MOST_SHOWN_BYTES)
    except (ValueError, zlib.error):
        return
    is_own = name.startswith(f"runs/{run_id}/") and SHOWN_NAMES.fullmatch(name)
    if not is_own or sha256(data).hexdigest()[:16] != digest:
        return
    if name.endswith(REPLACED):
        store.write(name, data)
    else:
        store.create(name, data)


def _fetch_output(machine: Machine) -> None:
    """Copies the objects in a session's output into the mirror.

    Raises MirrorError if it has left none, or something else.
    """
    store = FolderStore(_ROOT)
    with tempfile.TemporaryDirectory(prefix="kaggle-") as folder:
        _request(
            "fetch",
            _TRANSFER_SECONDS + _MOST_OUTPUT_BYTES / _SLOWEST_BYTES_PER_SECOND,
            kernel=_checked(machine.id),
            folder=folder,
            pattern=f"^{_OUTPUT}$",
            most_bytes=_MOST_OUTPUT_BYTES,
        )
        path = Path(folder, _OUTPUT)
        if not path.is_file():
            raise missing(f"The output of {machine.id}")
        try:
            with tarfile.open(path, "r:") as archive:
                _copy_members(archive, store, f"runs/{machine.run_id}/", Path(folder, "object"))
        except (tarfile.TarError, ValueError, OverflowError, EOFError, RecursionError) as error:
            raise MirrorError(
                f"The output of {machine.id} can't be read",
                expected="the archive that the session writes",
                received=str(error)[:200],
                fix="look at the kernel's output on Kaggle, then resume the run",
            ) from error


def _copy_members(archive: tarfile.TarFile, store: FolderStore, prefix: str, path: Path) -> None:
    names: list[str] = []
    for member in archive:
        name = checked_name(member.name, _ROOT)
        names.append(name)
        check_number(names, _ROOT)
        # A sparse one may claim any size.
        is_file = member.isreg() and not member.issparse()
        content = archive.extractfile(member) if is_file else None
        if content is None or not name.startswith(prefix):
            continue
        with path.open("wb") as file:
            shutil.copyfileobj(content, file)
        store.upload(path, name)


def _send_inputs(blobs: Sequence[str], folder: Path) -> str:
    """Uploads the run's files unless a run with the same ones did."""
    folder.mkdir()
    for name in blobs:
        (folder / name).symlink_to(FolderStore(_ROOT).root / "blobs" / name)
    return _upload(folder, f"{_PREFIX}inputs-{sha256(''.join(blobs).encode()).hexdigest()[:32]}")


def _upload(folder: Path, slug: str) -> str:
    size = sum(path.stat().st_size for path in folder.iterdir())
    seconds = _TRANSFER_SECONDS + size / _SLOWEST_BYTES_PER_SECOND
    return str(_request("upload", seconds, folder=str(folder), slug=slug))


def _request(name: str, seconds: float = _REQUEST_SECONDS, **values: Any) -> Any:
    """Asks Kaggle through its client, within a limit of time.

    Raises:
        UnavailableError: Nothing is known: no answer in time, or one that says to come again.
        TargetError: Kaggle refuses.
    """
    try:
        ended = subprocess.run(
            module_command("core.targets.kaggle_client"),
            input=json.dumps({"name": name, "values": values}).encode(),
            capture_output=True,
            timeout=seconds,
            env=with_module_paths(for_supervisors(os.environ)),
            check=False,
        )
        answer = json.loads(ended.stdout)
    except subprocess.TimeoutExpired:
        raise _unavailable(name, f"none within {seconds:.0f} seconds") from None
    except (ValueError, OSError) as error:
        raise _unavailable(name, f"{type(error).__name__}: {error}"[:200]) from error
    if "answer" in answer:
        return answer["answer"]
    status, problem = answer["status"], printable(answer["problem"])
    if status in (kaggle_client.UNREACHABLE, 408, 429) or status >= 500:
        raise _unavailable(name, problem)
    raise TargetError(
        _PROBLEMS[name],
        expected="an account that may do so, and a valid request",
        received=problem,
        fix=_FIXES.get(status, "correct the cause, then resume the run"),
    )


def _unavailable(name: str, received: str) -> UnavailableError:
    return UnavailableError(
        _PROBLEMS[name],
        expected="an answer",
        received=received,
        fix="it is tried again; see https://www.kaggle.com and your network",
    )


def _slug(name: str) -> str:
    slug = f"{_PREFIX}{name.lower()}"
    if not _SLUG.fullmatch(slug):
        raise TargetError(
            "This run can't have a kernel of its own",
            expected="an id of letters, digits and dashes, as new runs have",
            received=ascii(name)[:100],
            fix="clone the run",
        )
    return slug


def _checked(kernel: object) -> str:
    if not _KERNEL.fullmatch(str(kernel)):
        raise TargetError(
            "That can't be a kernel on Kaggle",
            expected="OWNER/NAME",
            received=ascii(kernel)[:100],
            fix="list the machines with: studio targets",
        )
    return str(kernel)


def _parse_hours(text: str) -> float:
    """Returns 0 for something else than hours of a session."""
    try:
        hours = float(text)
    except ValueError:
        return 0.0
    return hours if 0 < hours <= _LONGEST_HOURS else 0.0
