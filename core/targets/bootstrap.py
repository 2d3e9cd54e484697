"""Prepares a machine and runs the job there. It runs before anything is installed on the machine.

It needs Python 3.8 and its standard library, is sent as text, and imports nothing of the project:
it fetches the code's archive from the mirror, verifies its hash, installs the packages that the
machine's device needs, and runs `core.targets.machine` as a child, whose exit code is its own:
0 the run has ended, 75 another launch can go on, others failed. Lines that begin with `studio: `
name the phases.

Environment: STUDIO_MACHINE_HOME is the folder for everything (default: ~/.pretrain-studio).
STUDIO_MACHINE_PYTHON is an interpreter that has the packages already; nothing is installed then.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

MOST_ARCHIVE_BYTES = 64 << 20
MOST_UNPACKED_BYTES = 256 << 20
# The child saves at the limit; it is killed if it hasn't ended then.
GRACE_SECONDS = 300
EXIT_AGAIN = 75
SUPPORTED_PYTHON = ">=3.11,<3.14"
UV = "uv>=0.8,<1"
# A machine shows no page.
UNUSED_PACKAGES = ("gradio",)
TIMEOUT_SECONDS = 60
TRIES = 5


def main() -> int:
    started = time.monotonic()
    options = parse_arguments()
    os.umask(0o077)
    environment = dict(os.environ)
    if options.secrets_from_stdin:
        environment.update(read_secrets(sys.stdin.buffer.read(1 << 16)))
    home = os.path.abspath(
        os.path.expanduser(os.environ.get("STUDIO_MACHINE_HOME") or "~/.pretrain-studio")
    )
    os.makedirs(home, exist_ok=True)
    if options.folder:
        write_process(options.folder)
    code = 1
    try:
        code = run(options, home, environment, started)
    finally:
        if options.folder:
            write_file(os.path.join(options.folder, "exit"), str(code))
    return code


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("mirror", "run", "launch", "code"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--spec", default="", help="SHA-256 of the run's description")
    parser.add_argument("--seconds", type=float, default=0.0, help="limit; 0: none")
    parser.add_argument("--host", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--coordinator", default="")
    parser.add_argument("--restart", type=int, default=0, help="restarts of this launch before")
    parser.add_argument("--folder", default="", help="receives the process and the exit code")
    parser.add_argument("--secrets-from-stdin", action="store_true")
    parser.add_argument("--notebook", default="", help="the accelerator that it must have, or any")
    parser.add_argument("--prepare", action="store_true", help="only installs")
    return parser.parse_args()


def read_secrets(data: bytes) -> dict[str, str]:
    """Parses lines of NAME=value."""
    lines = [line.partition("=") for line in data.decode().splitlines() if line]
    return {name: value for name, _, value in lines if re.match(r"^[A-Z][A-Z0-9_]*$", name)}


def run(options: argparse.Namespace, home: str, environment: dict[str, str], started: float) -> int:
    if options.notebook not in ("", "any", device()):
        sys.exit(
            f"error: this notebook has no {options.notebook.upper()}: choose one as the runtime's "
            "accelerator, and run it again"
        )
    if options.seconds:
        # Downloads may hang, and not every target ends a machine at its limit.
        signal.signal(signal.SIGALRM, end_installation)
        signal.setitimer(signal.ITIMER_REAL, options.seconds)
    say("fetching the code")
    folder = unpack_code(options, home, environment)
    say("installing")
    python = os.environ.get("STUDIO_MACHINE_PYTHON") or install(folder, home, options.mirror)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if options.prepare:
        say("prepared")
        return 0
    say("starting the program")
    environment.update(
        PYTHONPATH=folder, PYTHONSAFEPATH="1", STUDIO_MACHINE_HOME=home, PYTHONUNBUFFERED="1"
    )
    command = [python, "-P", "-m", "core.targets.machine"]
    for name in ("mirror", "run", "launch", "spec", "host", "hosts", "coordinator", "restart"):
        command += [f"--{name}", str(getattr(options, name))]
    seconds = 0.0
    if options.seconds:
        seconds = max(1.0, options.seconds - (time.monotonic() - started))
        command += ["--seconds", f"{seconds:.0f}"]
    # Slurm's srun kills its tasks at SIGTERM, and sends SIGUSR1 to all processes of a task: only
    # this one must not ignore it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job ignores it: the run would interrupt itself with SIGUSR1 then.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The working directory must hold no package that hides one of Python's.
    child = subprocess.Popen(
        command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True
    )
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: child.send_signal(signal.SIGTERM))
    try:
        code = child.wait(seconds + GRACE_SECONDS if seconds else None)
    except subprocess.TimeoutExpired:
        say("killed at the limit of its time")
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return 1
    return code if code >= 0 else EXIT_AGAIN


def end_installation(*_: object) -> None:
    sys.exit("error: the limit of time was reached before the run began")


# The code.


def unpack_code(options: argparse.Namespace, home: str, environment: Mapping[str, str]) -> str:
    """Returns the folder with the code, fetched and verified unless it is there."""
    sha256 = options.code
    if not re.match(r"^[0-9a-f]{64}$", sha256):
        sys.exit("error: --code is no SHA-256")
    folder = os.path.join(home, "code", sha256)
    if os.path.isdir(folder):
        return folder
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    draft = tempfile.mkdtemp(dir=os.path.dirname(folder), prefix=".")
    try:
        archive = os.path.join(draft, "code.tar.gz")
        read = fetch_in_notebook if options.notebook else fetch
        retrying(lambda: read(options.mirror, f"blobs/{sha256}", archive, environment))
        if sha256_of(archive) != sha256:
            sys.exit("error: the code in the mirror isn't that of this run: its hash differs")
        unpacked = os.path.join(draft, "code")
        unpack(archive, unpacked)
        try:
            os.rename(unpacked, folder)
        except OSError:
            if not os.path.isdir(folder):  # Another launch was faster.
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def fetch(mirror: str, name: str, path: str, environment: Mapping[str, str]) -> None:
    parts = urllib.parse.urlsplit(mirror)
    if parts.scheme == "file":
        root = parts.path[1:] if parts.path.startswith("/~") else parts.path
        root = urllib.parse.unquote(root)
        shutil.copyfile(os.path.join(os.path.expanduser(root), name), path)
        return
    if parts.scheme == "gs":
        request = google_request(parts, name, environment)
    elif parts.scheme == "hf":
        request = hub_request(parts, name, environment)
    else:
        sys.exit(f"error: no code can be fetched from {parts.scheme}:// addresses")
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        data = answer.read(MOST_ARCHIVE_BYTES + 1)
    if len(data) > MOST_ARCHIVE_BYTES:
        sys.exit("error: the code in the mirror is larger than any of this program")
    with open(path, "wb") as file:
        file.write(data)


def fetch_in_notebook(mirror: str, name: str, path: str, environment: Mapping[str, str]) -> None:
    """Fetches from a cloud's bucket as its own packages do, which the notebook has."""
    if not mirror.startswith(("gs://", "s3://")):
        fetch(mirror, name, path, environment)
        return
    import fsspec

    with fsspec.open(f"{mirror}/{name}", "rb") as source, open(path, "wb") as file:
        shutil.copyfileobj(source, file)


def google_request(
    parts: urllib.parse.SplitResult, name: str, environment: Mapping[str, str]
) -> urllib.request.Request:
    host = environment.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
    folder = parts.path.strip("/")
    path = urllib.parse.quote(f"{folder}/{name}" if folder else name, safe="")
    url = f"{host.rstrip('/')}/storage/v1/b/{parts.netloc}/o/{path}?alt=media"
    token = google_token(environment)
    return urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})


def google_token(environment: Mapping[str, str]) -> str:
    """Returns the access token of the machine's service account."""
    host = environment.get("GCE_METADATA_HOST") or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        return str(json.loads(answer.read(1 << 16))["access_token"])


def hub_request(
    parts: urllib.parse.SplitResult, name: str, environment: Mapping[str, str]
) -> urllib.request.Request:
    endpoint = environment.get("HF_ENDPOINT") or "https://huggingface.co"
    owner, bucket, *folders = parts.path.strip("/").split("/")
    path = urllib.parse.quote("/".join([*folders, name]))
    url = f"{endpoint.rstrip('/')}/buckets/{owner}/{bucket}/resolve/{path}"
    request = urllib.request.Request(url)
    # A redirect to another host must not take the token along.
    token = environment.get("HF_TOKEN", "")
    request.add_unredirected_header("Authorization", f"Bearer {token}")
    return request


def unpack(archive: str, folder: str) -> None:
    """Unpacks plain files only, within a limit of size."""
    left = MOST_UNPACKED_BYTES
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            parts = member.name.split("/")
            left -= member.size
            if not member.isreg() or ".." in parts or member.name.startswith("/") or left < 0:
                sys.exit(f"error: the code's archive has something else than files: {member.name}")
            path = os.path.join(folder, *parts)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None
            with open(path, "wb") as file:
                shutil.copyfileobj(content, file)


# The environment.


def install(code: str, home: str, mirror: str) -> str:
    """Returns the interpreter of an environment with the packages for this machine's device."""
    requirements = write_requirements(code, mirror)
    constraints = os.path.join(code, "constraints.txt")
    key = f"{sha256_of(requirements)} {sha256_of(constraints)}".encode()
    folder = os.path.join(home, "environments", hashlib.sha256(key).hexdigest()[:16])
    interpreter = os.path.join(folder, "bin", "python")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with locked(f"{folder}.lock"):
        if os.path.exists(os.path.join(folder, "complete")):
            return interpreter
        shutil.rmtree(folder, ignore_errors=True)
        # Several times as fast as pip, and it fetches a Python if the machine's is too old.
        uv = install_uv(home)
        environment = dict(
            os.environ,
            UV_CACHE_DIR=os.path.join(home, "packages"),
            UV_PYTHON_INSTALL_DIR=os.path.join(home, "pythons"),
            UV_NO_CONFIG="1",
            # Proxies of companies have certificates of their own. The second name is the older one.
            UV_SYSTEM_CERTS="1",
            UV_NATIVE_TLS="1",
        )
        call([uv, "venv", "-q", "--clear", "--python", SUPPORTED_PYTHON, folder], environment)
        pip = [uv, "pip", "install", "-q", "--python", interpreter]
        call([*pip, "-c", constraints, "-r", requirements], environment)
        write_file(os.path.join(folder, "complete"), "")
    return interpreter


def install_uv(home: str) -> str:
    """Returns the command uv, installed with this Python's pip unless it is there."""
    tools = os.path.join(home, "tools")
    uv = os.path.join(tools, "bin", "uv")
    if not os.path.exists(uv):
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--target", tools]
        # The folder must hold no package that hides one of pip's; Python 3.8 has no `-P`.
        os.makedirs(tools, exist_ok=True)
        call([*pip, UV], os.environ, tools)
    return uv


def write_requirements(code: str, mirror: str) -> str:
    """Writes the list of packages for this machine, without those that training doesn't use."""
    names = [f"requirements-{device()}.txt" if device() else "requirements.txt"]
    if mirror.startswith(("gs://", "s3://")):
        names.append("requirements-cloud.txt")
    lines = []
    while names:
        with open(os.path.join(code, names.pop(0))) as file:
            requirements = file.read().splitlines()
        for line in requirements:
            if line.startswith("-r "):
                names.append(line[3:].strip())
            elif re.split(r"[^\w.-]", line)[0].lower() not in ("", *UNUSED_PACKAGES):
                lines.append(line)
    path = os.path.join(tempfile.mkdtemp(), "requirements.txt")
    write_file(path, "\n".join(sorted(set(lines))) + "\n")
    return path


def device() -> str:
    if os.path.exists("/dev/nvidia0") or shutil.which("nvidia-smi"):
        return "gpu"
    has_tpu = os.path.exists("/dev/accel0") or os.path.exists("/dev/vfio/0")
    return "tpu" if has_tpu else ""


# Tools.


def retrying(action: Callable[[], object]) -> None:
    """Does something up to five times: networks of new machines are slow to come up."""
    for left in reversed(range(TRIES)):
        try:
            action()
            return
        except OSError as error:
            if not left:
                sys.exit(f"error: {error}")
            print(f"trying again after: {error}", flush=True)
            time.sleep(2.0 * (TRIES - left))


def call(command: list[str], environment: Mapping[str, str], folder: str | None = None) -> None:
    """Runs a command that downloads something, several times if it fails."""

    def run() -> None:
        code = subprocess.call(command, env=environment, cwd=folder)
        if code:
            raise OSError(f"{' '.join(command[:3])} ended with {code}; its messages are above")

    retrying(run)


def say(phase: str) -> None:
    print(f"studio: {phase}", flush=True)


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def write_process(folder: str) -> None:
    """Writes what identifies this process: its id, its start and the machine's boot."""
    with open("/proc/self/stat") as file:
        start = file.read().rpartition(")")[2].split()[19]
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    write_file(os.path.join(folder, "process"), f"{os.getpid()} {start} {boot}")


def write_file(path: str, text: str) -> None:
    with open(f"{path}.draft", "w") as file:
        file.write(text)
    os.replace(f"{path}.draft", path)


@contextmanager
def locked(path: str) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
