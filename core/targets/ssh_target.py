"""A machine that the system's ssh client reaches, as a place for runs.

A launch is a folder on the machine, which is created once. Its process is detached from the
connection, and identified by pid, start time and boot.
"""

from __future__ import annotations

import re
import shlex
import time
from urllib.parse import parse_qs, quote, urlsplit

from core.errors import ConfigError
from core.messages.values import byte_count
from core.targets.code import bootstrap_source
from core.targets.errors import TargetError
from core.targets.opening import open_store
from core.targets.ssh import Host, Ssh
from core.targets.target import Job, Machine, MirrorRoot, Status, printable
from core.workspace.names import LONGEST_PATH_BYTES, has_control, is_run_id

_HOME = "~/.pretrain-studio"
_LOG_BYTES = 64_000
_MOST_LISTING_BYTES = 4 << 20
_NO_PYTHON, _EXISTS, _NO_PIP = 46, 47, 48
_LAUNCH_SECONDS = 60.0
_GPUS = re.compile("([0-9]{1,4}(,[0-9]{1,4})*)?")
# A broken driver blocks it.
_LIST_GPUS = "timeout 10 nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null"
# Prints one word; `process` has pid, start time and boot id, and is the first thing that a launch
# writes: one without it was broken off. Field 22 of stat is the start time, counted after the
# command's name, which may hold spaces.
_IS_ALIVE = r"""
state() {
    [ -f "$1/exit" ] && { printf 'ended %s' "$(cat "$1/exit")"; return; }
    if [ ! -f "$1/process" ]; then
        age=$(($(date +%s) - $(stat -c %Y "$1")))
        if [ "$age" -lt 120 ]; then printf starting; else printf 'ended lost'; fi
        return
    fi
    read -r pid start boot < "$1/process" || true
    now=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20)
    if [ "$now" = "$start" ] && [ "$boot" = "$(cat /proc/sys/kernel/random/boot_id)" ]; then
        printf running
    else
        printf 'ended lost'
    fi
}
"""


class SshTarget:
    """`ssh://[user@]host[:port][?gpu=NUMBER&python=PATH]`.

    With `gpu`, runs use these GPUs only. With `python`, an interpreter that has all packages,
    nothing is installed on the machine.
    """

    creates_machines = False
    carries_secrets = True
    hosts = 1

    def __init__(self, address: str) -> None:
        host = Host.parse(address)
        query = parse_qs(urlsplit(address).query, keep_blank_values=True)
        gpu = query.get("gpu", [""])[0]
        is_valid = _GPUS.fullmatch(gpu) and not set(query) - {"gpu", "python"}
        if urlsplit(address).path.strip("/") or not is_valid:
            raise ConfigError(
                "That can't be the address of a machine",
                expected="ssh://[user@]host[:port], perhaps with ?gpu=0 or ?gpu=0,1, and with "
                "?python=/path/to/python",
                received=address[:200],
                fix="remove the folder or the unknown part; a folder belongs into mirror",
                field="target",
            )
        self.address = address
        self._host = host
        self._gpu = gpu
        self._python = query.get("python", [""])[0]
        self._ssh = Ssh(host)

    def check(self) -> str:
        # Packages are installed with uv, which comes through pip.
        python = shlex.quote(self._python) if self._python else "python3"
        pip = "true" if self._python else f"(cd / && {python} -m pip --version)"
        code, output = self._ssh.run(
            f"command -v {python} >/dev/null || exit {_NO_PYTHON}; {pip} >/dev/null 2>&1 || "
            f"exit {_NO_PIP}; mkdir -p {_HOME}/launches && uname -n && "
            f"df -Pk {_HOME} | tail -n 1 | tr -s ' ' | cut -d' ' -f4 && "
            f"cd / && {python} -c 'import sys; print(*sys.version_info[:2], sep=chr(46))' && "
            f"{{ {_LIST_GPUS} || true; }}",
            codes=(0, _NO_PYTHON, _NO_PIP),
        )
        if code:
            raise self._unprepared("python3" if code == _NO_PYTHON else "pip")
        name, free, version, *gpus = [*output.decode("utf-8", "replace").splitlines(), "", "", ""]
        free_bytes = 1024 * int(free) if free.isdecimal() else 0
        return printable(
            f"{name[:100]}, Python {version[:20]}, {_describe_gpus(gpus)}, "
            f"{byte_count(free_bytes)} of disk free"
        )

    def _unprepared(self, missing: str) -> TargetError:
        return TargetError(
            f"There is no {self._python or missing} on {self._host.name}",
            expected="the command python3, of Python 3.8 or newer, with pip",
            received=f"no {self._python or missing}",
            fix="install it there (Debian: apt install python3-pip), or name an interpreter with "
            "?python=/path/to/python",
        )

    def mirror_root(self, asked: str) -> MirrorRoot:
        """Returns the asked mirror, or a folder on the machine itself."""
        if not asked:
            _, output = self._ssh.run(f"mkdir -p {_HOME} && cd {_HOME} && pwd")
            folder = quote(_absolute_path(output, self._host))
            return MirrorRoot(f"{self._host.address}{folder}/mirror", f"file://{folder}/mirror")
        root = find_mirror(asked, self._host)
        if root is None:
            raise ConfigError(
                "The machine can't fetch its code from this mirror",
                expected="nothing, a folder on the machine (ssh://…), or hf://buckets/owner/name",
                received=asked[:200],
                fix="leave it empty: a folder on the machine is used",
                field="mirror",
            )
        return root

    def price_per_hour(self) -> float | None:
        return None

    def launch(self, job: Job) -> Machine:
        source = bootstrap_source().encode()
        secrets = "".join(f"{name}={value}\n" for name, value in job.secrets.items()).encode()
        folder = f"{_HOME}/launches/{shlex.quote(job.name)}"
        values = {"CUDA_VISIBLE_DEVICES": self._gpu, "STUDIO_MACHINE_PYTHON": self._python}
        variables = "".join(
            f"{name}={shlex.quote(value)} " for name, value in values.items() if value
        )
        # The secrets are the rest of the standard input: no command line and no file has them.
        # `~` must be expanded on the machine, so the arguments are quoted one by one.
        python = shlex.quote(self._python) if self._python else "python3"
        command = " ".join(
            [
                f"{variables}setsid nohup {python} {folder}/bootstrap.py",
                *map(shlex.quote, job.arguments),
                f"--folder {folder} --secrets-from-stdin",
            ]
        )
        script = (
            f"umask 077; mkdir -p {_HOME}/launches; mkdir {folder} || exit {_EXISTS}; "
            f"head -c {len(source)} > {folder}/bootstrap.py || exit 1; secrets=$(cat); "
            # The connection may have been lost meanwhile.
            f'[ "$(wc -c < {folder}/bootstrap.py)" -eq {len(source)} ] && '
            f'[ "${{#secrets}}" -ge {len(secrets) - 1} ] || {{ rm -rf {folder}; exit 1; }}; '
            f'{{ printf "%s\\n" "$secrets" | {command} >{folder}/log 2>&1; }} '
            "</dev/null >/dev/null 2>&1 &"
        )
        code, _ = self._ssh.run(
            script, stdin=source + secrets, codes=(0, _EXISTS), seconds=_LAUNCH_SECONDS
        )
        if code == _EXISTS:
            raise TargetError(
                f"The launch {job.name} is on {self._host.name} already",
                expected="a new launch",
                fix="resume the run",
            )
        return self._machine(job.run_id, job.launch, time.time())

    def find(self, run_id: str, launch: int) -> Machine | None:
        machine = self._machine(run_id, launch, 0.0)
        _, output = self._ssh.run(f"[ -d {self._folder(machine)} ] && echo found || true")
        return machine if output.strip() else None

    def state(self, machine: Machine) -> Status:
        folder = self._folder(machine)
        _, output = self._ssh.run(
            f"{_IS_ALIVE}\n[ -d {folder} ] || {{ printf 'ended gone'; exit; }}; state {folder}"
        )
        state, _, detail = output.decode("utf-8", "replace").strip().partition(" ")
        if state == "starting":
            return Status("starting")
        return Status("running") if state == "running" else Status("ended", detail[:100])

    def log(self, machine: Machine) -> str:
        folder = self._folder(machine)
        _, output = self._ssh.run(
            f"tail -c {_LOG_BYTES} {folder}/log 2>/dev/null || true", most_bytes=_LOG_BYTES
        )
        return output.decode("utf-8", "replace")

    def cancel(self, machine: Machine) -> None:
        """Ends the processes of a launch: politely, then by force after 20 seconds.

        Its children share the bootstrap script's run id as an argument or its folder as an
        environment; they are found by their parents.
        """
        folder = self._folder(machine)
        self._ssh.run(
            f"""{_IS_ALIVE}
            [ "$(state {folder})" = running ] || exit 0
            read -r pid start boot < {folder}/process
            tree() {{ echo "$1"; for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
                tree "$child"; done; }}
            found=$(tree "$pid")
            kill -TERM "$pid" 2>/dev/null
            for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
                [ "$(state {folder})" = running ] || break
                sleep 1
            done
            kill -KILL $found 2>/dev/null
            exit 0""",
            seconds=_LAUNCH_SECONDS,
        )

    def list_machines(self) -> list[Machine]:
        _, output = self._ssh.run(
            f"{_IS_ALIVE}\ncd {_HOME}/launches 2>/dev/null || exit 0; for one in *; do "
            '[ -d "$one" ] && printf "%s\\t%s\\t%s\\n" "$one" "$(stat -c %Y "$one")" '
            '"$(state "$one")"; done; exit 0',
            most_bytes=_MOST_LISTING_BYTES,
        )
        machines = []
        for line in output.decode("utf-8", "replace").splitlines():
            name, _, rest = line.partition("\t")
            created, _, state = rest.partition("\t")
            run_id, _, launch = name.rpartition("-")
            is_launch = is_run_id(run_id) and re.fullmatch("[0-9]{1,6}", launch)
            if is_launch and not state.startswith("ended"):
                seconds = float(created) if re.fullmatch("[0-9]{1,11}", created) else 0.0
                machines.append(self._machine(run_id, int(launch), seconds, state[:40]))
        return machines

    def _machine(self, run_id: str, launch: int, created: float, detail: str = "") -> Machine:
        return Machine(self.address, f"{run_id}-{launch}", run_id, launch, created, detail)

    def _folder(self, machine: Machine) -> str:
        if not is_run_id(machine.run_id):
            raise TargetError(
                "That can't be a launch",
                expected="a run's id and a number",
                received=ascii(machine.id)[:100],
                fix="list the machines with: studio targets",
            )
        name = f"{machine.run_id}-{int(machine.launch)}"
        return f"{_HOME}/launches/{shlex.quote(name)}"


def find_mirror(asked: str, host: Host) -> MirrorRoot | None:
    """Returns a mirror in a folder of the host or on the Hub; None: the host can't use it."""
    if asked.startswith("ssh://") and Host.parse(asked) == host:
        return MirrorRoot(asked, f"file://{urlsplit(asked).path}")
    if not asked.startswith("hf://"):
        return None
    open_store(asked)
    return MirrorRoot(asked, asked)


def _describe_gpus(lines: list[str]) -> str:
    names = [line.strip()[:60] for line in lines if line.strip()]
    if not names:
        return "no NVIDIA GPU"
    return names[0] if len(names) == 1 else f"{len(names)} × {names[0]}"


def _absolute_path(output: bytes, host: Host) -> str:
    """Returns the path that a machine has printed; raises TargetError for anything else.

    It becomes a part of addresses, and must not lead to another machine.
    """
    path = output.decode("utf-8", "surrogateescape").removesuffix("\n")
    if not path.startswith("/") or len(path) > LONGEST_PATH_BYTES or has_control(path):
        raise TargetError(
            f"The home folder of the account on {host.name} can't be used",
            expected="an absolute path of printable characters, as `pwd` prints it",
            received=ascii(path)[:100],
            fix="correct the account's home folder, or name a folder with ⟬--mirror⟭",
        )
    return path
