"""Jobs of a Slurm cluster, through its login node.

`slurm://[user@]login-host[:port]?partition=…&gres=gpu:1&time=04:00:00`, or `slurm://localhost` on
the login node itself. A launch is one batch job, whose script, log and job number lie in a folder
on the file system that the nodes share; the mirror is a folder beside it. Before its limit of time
the job saves and requeues itself, and Slurm requeues it after a preemption or the loss of a node.
Launches that are asked for together, such as those of a sweep's trials, become one array of jobs.

Source: https://slurm.schedmd.com/sbatch.html (22.05)
"""

from __future__ import annotations

import re
import shlex
import time
from calendar import timegm
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, urlsplit

from core.errors import ConfigError
from core.messages.values import byte_count
from core.targets.bootstrap import EXIT_AGAIN
from core.targets.code import bootstrap_source
from core.targets.errors import TargetError, UnavailableError
from core.targets.ssh import Host, Local, Ssh
from core.targets.ssh_target import find_mirror
from core.targets.target import Job, Machine, MirrorRoot, State, Status, printable

_FOLDER = "~/.pretrain-studio"
# The job saves so long before its limit. Slurm may send the signal a minute earlier.
LEAD_SECONDS = 120
_SHORTEST_SECONDS = LEAD_SECONDS + 60
_LOG_BYTES = 64_000
_MOST_LISTING_BYTES = 4 << 20
_NO_SLURM, _NO_PYTHON, _NO_MODULE, _REFUSED, _EXISTS, _CUT_OFF = 50, 51, 52, 53, 54, 55
_SUBMIT_SECONDS = 120.0
_NODES, _DAYS = "[1-9][0-9]{0,3}", "[0-9]{1,3}"
_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_MODULE = r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,63}"
# Each value becomes a part of a line of the script: none has spaces, quotes or ends of lines.
_OPTIONS = {
    "partition": rf"{_WORD}(,{_WORD}){{0,9}}",
    "account": _WORD,
    "qos": _WORD,
    "gres": r"[a-z][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9][A-Za-z0-9_.-]{0,31})?(:[1-9][0-9]{0,2})?",
    "time": rf"({_DAYS}-)?[0-9]{{1,4}}(:[0-9]{{2}}){{0,2}}",
    "nodes": _NODES,
    "cpus": _NODES,
    "mem": "[1-9][0-9]{0,6}[KMGT]?",
    "constraint": r"[A-Za-z0-9][A-Za-z0-9_.&|-]{0,63}",
}
_PARAMETERS = {
    **_OPTIONS,
    "module": rf"{_MODULE}(,{_MODULE}){{0,9}}",
    "python": r"/[A-Za-z0-9._/+-]{1,250}",
    "folder": r"(/|~/)[A-Za-z0-9._/+-]{1,250}",
}
_FLAGS = {"cpus": "cpus-per-task"}
_STATES: dict[str, State] = {
    "PENDING": "waiting",
    "REQUEUED": "waiting",
    "CONFIGURING": "starting",
    "RUNNING": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
    "COMPLETING": "running",
}
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME = re.compile(r"studio-([A-Za-z0-9_-]{1,64})-([1-9][0-9]{0,5})")
# Words of sbatch's refusals, the parameter that they complain about, and where to look.
_COMPLAINTS = (
    ("account", "account", "list yours with: sacctmgr show associations user=$USER"),
    ("partition", "partition", "list the partitions with: sinfo -s"),
    ("qos", "qos", "list them with: sacctmgr show qos format=name"),
    ("gres|generic resource", "gres", "list them with: sinfo -o '%P %G'"),
    ("feature|constraint", "constraint", "list the features with: sinfo -o '%P %f'"),
    ("time limit", "time", "list the limits with: sinfo -o '%P %l'"),
    (
        "cpu|memory|node",
        "nodes, cpus, mem or gres",
        "list the nodes with: sinfo -o '%P %D %c %m %G'",
    ),
)
# A command over ssh gets no login shell, in which some clusters find Slurm and their modules.
_PRELUDE = f"""
command -v sbatch >/dev/null || . /etc/profile >/dev/null 2>&1
command -v sbatch >/dev/null || exit {_NO_SLURM}
export TZ=UTC0
"""

_SCRIPT = """\
#!/bin/bash
# A run of Pretrain Studio. What you change here holds if Slurm starts the job again.
{options}

folder={folder}
export STUDIO_MACHINE_HOME={home}
{python}[ ! -e "$folder/cancelled" ] || exit 0
rm -f "$folder/exit"
{modules}echo "studio: starting job $SLURM_JOB_ID on $SLURM_JOB_NODELIST"

# The limit of the run counts the time of all its jobs, and none in the queue.
limit={seconds}
used=$(cat "$folder/used" 2>/dev/null || echo 0)
arguments=({arguments} --restart "${{SLURM_RESTART_COUNT:-0}}")
if [ "$limit" -gt 0 ]; then
    arguments+=(--seconds $((limit > used ? limit - used : 1)))
fi
while sleep 5; do
    echo $((used + SECONDS)) >"$folder/used.draft" && mv "$folder/used.draft" "$folder/used"
done 2>/dev/null &
clock=$!

# At USR1 the run saves and ends with 75.
asked=
trap 'asked=limit; kill -USR1 "$child"' USR1
trap 'asked=end; kill -USR1 "$child"' TERM
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    address=$(scontrol -o show node "$SLURMD_NODENAME" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
    port=$((20000 + SLURM_JOB_ID % 20000))
    arguments+=(--hosts "$SLURM_JOB_NUM_NODES" --coordinator "$address:$port")
    srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\
        --kill-on-bad-exit=0 sh -c 'exec "$@" --host "$SLURM_PROCID"' sh \\
        {interpreter} "$folder/bootstrap.py" "${{arguments[@]}}" &
else
    {interpreter} "$folder/bootstrap.py" "${{arguments[@]}}" &
fi
child=$!
while wait "$child"; code=$?; [ "$code" -gt 128 ] && kill -0 "$child" 2>/dev/null; do :; done
kill "$clock"
echo $((used + SECONDS)) >"$folder/used"
echo "$code" >"$folder/exit"
if [ "$asked" = limit ] && [ "$code" = {again} ] && [ ! -e "$folder/cancelled" ]; then
    echo "studio: saved before the limit of time"
    # The number of one of an array's tasks alone means all of them.
    task=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
    scontrol requeue "${{task:-$SLURM_JOB_ID}}"
fi
exit "$code"
"""

# Each task executes the script in its launch's folder. The environment is that of the whole array.
_ARRAY_SCRIPT = """\
#!/bin/bash
# Runs of Pretrain Studio that were started together.
{options}

names=({names})
folder={launches}/${{names[SLURM_ARRAY_TASK_ID]}}
task=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
own=STUDIO_TASK_${{SLURM_ARRAY_TASK_ID}}_
for name in "${{!STUDIO_TASK_@}}"; do
    case $name in "$own"*) export "${{name#"$own"}}=${{!name}}" ;; esac
    unset "$name"
done
# A launch that doesn't know its task by now was given up, and has another job.
for _ in {{1..60}}; do [ -s "$folder/job" ] && break; sleep 1; done
known=$(cat "$folder/job" 2>&1)
[ "$known" = "$task" ] || {{ echo "The run has another job: $known"; exit 0; }}
ln -sfn {launches}/"array-$task.log" "$folder/log"
. "$folder/job.sh"
"""


@dataclass(frozen=True)
class SlurmAddress:
    """The parts of a target's address; most parameters have the names of sbatch's options."""

    host: Host
    parameters: Mapping[str, str]

    @classmethod
    def parse(cls, address: str) -> SlurmAddress:
        """Parses `slurm://…`; raises ConfigError with `field="target"`."""
        parts = urlsplit(address)
        host = Host.parse(f"ssh://{parts.netloc}")
        try:
            given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise _invalid(str(error)) from error
        # A plus sign of a query is a space, but none of the values has one.
        values = {name: value.replace(" ", "+") for name, value in given}
        if parts.scheme != "slurm" or parts.path.strip("/") or parts.fragment:
            raise _invalid(address)
        if len(values) < len(given):
            raise _invalid("a parameter twice")
        for name, value in values.items():
            if name not in _PARAMETERS:
                raise _invalid(f"{name}={value}")
            if not re.fullmatch(_PARAMETERS[name], value):
                raise _invalid(f"{name}={value}", name)
        seconds = _seconds_of(values.get("time", ""))
        if seconds is not None and seconds < _SHORTEST_SECONDS:
            raise ConfigError(
                "The limit of time is too short for a job",
                expected=f"at least {_SHORTEST_SECONDS // 60} minutes: a job saves "
                f"{LEAD_SECONDS} seconds before its end",
                received=f"time={values['time']}",
                fix="give more, as in time=04:00:00",
                field="target",
            )
        return cls(host, values)

    @property
    def is_here(self) -> bool:
        return self.host == Host("localhost")

    @property
    def options(self) -> list[str]:
        """The lines of the script that Slurm reads, without the name and the log."""
        given = {"nodes": "1", **self.parameters}
        return [
            "--ntasks-per-node=1",
            "--requeue",
            f"--signal=B:USR1@{LEAD_SECONDS}",
            *(f"--{_FLAGS.get(name, name)}={given[name]}" for name in _OPTIONS if name in given),
        ]


class SlurmTarget:
    """Jobs of one user on a cluster."""

    creates_machines = False
    carries_secrets = True

    def __init__(self, address: str) -> None:
        self.address = address
        self._asked = SlurmAddress.parse(address)
        self.hosts = int(self._asked.parameters.get("nodes", "1"))
        host = self._asked.host
        self._ssh = Local() if self._asked.is_here else Ssh(host)
        self._python = self._asked.parameters.get("python", "")
        self._known_home = ""

    # Before a launch.

    def check(self) -> str:
        """Asks Slurm whether it would accept the job, and when it would start; queues nothing."""
        python = shlex.quote(self._python) if self._python else "python3"
        pip = "true" if self._python else f"{python} -m pip --version"
        script = self.script(Job("check", 1, "file:///", "0" * 64), self._home())
        code, output = self._run(
            f"{self._load_modules()}command -v {python} >/dev/null || exit {_NO_PYTHON}; "
            f"(cd / && {pip}) >/dev/null 2>&1 || exit {_NO_PYTHON}; "
            f"uname -n; sinfo -V; df -Pk {shlex.quote(self._home())} | tail -n 1 | "
            "tr -s ' ' | cut -d' ' -f4; sinfo -h -o '%P %l %D' | head -n 200; echo; "
            f"sbatch --test-only 2>&1 || exit {_REFUSED}",
            stdin=script.encode(),
            codes=(0, _NO_PYTHON, _REFUSED),
            seconds=_SUBMIT_SECONDS,
        )
        if code == _NO_PYTHON:
            raise self._without_python()
        listed, _, answer = output.decode("utf-8", "replace").partition("\n\n")
        name, version, free, *partitions = [*listed.splitlines(), "", "", ""]
        limits = dict(line.split()[:2] for line in partitions if len(line.split()) == 3)
        if code == _REFUSED and not _has_too_many_jobs(answer):
            raise _refused(answer, ", ".join(name.rstrip("*") for name in limits))
        self._check_time(limits)
        start = re.search(r"to start at (\S+) .* in partition (\S+)", answer)
        when = f"partition {start[2]}, could start {_shown_time(start[1])}" if start else ""
        free_bytes = 1024 * int(free) if free.isdecimal() else 0
        about = [name[:100], version[:40], when, f"{byte_count(free_bytes)} of disk free"]
        return printable(", ".join(filter(None, about)))

    def _check_time(self, limits: Mapping[str, str]) -> None:
        """Refuses a time above the partition's limit, with which some clusters wait for ever."""
        asked = self._asked.parameters
        default = next((name[:-1] for name in limits if name.endswith("*")), "")
        known = {name.rstrip("*"): limit for name, limit in limits.items()}
        seconds = _seconds_of(asked.get("time", ""))
        names = asked.get("partition", default).split(",")
        most = [_seconds_of(known.get(name, "")) for name in names]
        if seconds is None or any(limit is None or seconds <= limit for limit in most):
            return
        raise ConfigError(
            "The job would never start: its time is above the limit of the partition",
            expected=f"at most {', '.join(known[name] for name in names)}",
            received=f"time={asked['time']} in {', '.join(names)}",
            fix="give less: the run goes on in the next job",
            field="target",
        )

    def _without_python(self) -> TargetError:
        name = self._asked.host.name
        return TargetError(
            f"There is no {self._python or 'python3 with pip'} on {name}",
            expected="the command python3, of Python 3.8 or newer, with pip",
            received="none",
            fix="load a module that has it (module=NAME), or name an interpreter that has all "
            "packages (python=/path/to/python)",
        )

    def mirror_root(self, asked: str) -> MirrorRoot:
        """Returns the asked mirror, or a folder on the cluster's shared file system."""
        if not asked:
            folder = f"{self._home()}/mirror"
            here = "file://" if self._asked.is_here else self._asked.host.address
            return MirrorRoot(f"{here}{folder}", f"file://{folder}")
        root = find_mirror(asked, self._asked.host)
        if root is None:
            raise ConfigError(
                "The nodes can't fetch their code from this mirror",
                expected="nothing, a folder of the cluster (ssh://…), or hf://buckets/owner/name",
                received=asked[:200],
                fix="leave it empty, and name a folder in the target's address: folder=/scratch/me",
                field="mirror",
            )
        return root

    def price_per_hour(self) -> float | None:
        return None

    # Jobs.

    def launch(self, job: Job) -> Machine:
        """Submits a job. Secrets are in its environment, which Slurm keeps, and in no file."""
        return self.launch_all([job])[0]

    def launch_all(self, jobs: list[Job]) -> list[Machine]:
        """Submits one job, or several as one array, whose tasks are jobs with their own names."""
        names = [job_name(job.run_id, job.launch) for job in jobs]
        home = self._home()
        folders = [_launch_folder(home, job.run_id, job.launch) for job in jobs]
        files = {f"{folders[0]}/bootstrap.py": bootstrap_source().encode()}
        for folder, job in zip(folders, jobs, strict=True):
            files[f"{folder}/job.sh"] = self.script(job, home).encode()
        is_array = len(jobs) > 1
        if is_array:
            files[f"{folders[0]}/array.sh"] = self._array_script(folders).encode()
        secrets = "".join(
            f"{f'STUDIO_TASK_{index}_' if is_array else ''}{key}={value}\n"
            for index, job in enumerate(jobs)
            for key, value in job.secrets.items()
        )
        submit = f"--array=0-{len(jobs) - 1} array.sh" if is_array else "job.sh"
        code, output = self._run(
            f"umask 077; folders=({shlex.join(folders)}); names=({shlex.join(names)}); "
            'for folder in "${folders[@]}"; do mkdir -p "$folder" || exit 1; '
            f'[ ! -e "$folder/job" ] || {{ echo "$folder"; exit {_EXISTS}; }}; done; '
            + "".join(
                f"head -c {len(content)} >{shlex.quote(path)} || exit 1; "
                for path, content in files.items()
            )
            + 'for folder in "${folders[@]:1}"; do '
            'cp "$folders/bootstrap.py" "$folder/bootstrap.py" || exit 1; done; '
            "end=; while IFS= read -r line; do "
            '[ "$line" != end ] || { end=yes; break; }; export "$line"; done; '
            # The connection may have been lost meanwhile.
            f'[ -n "$end" ] || exit {_CUT_OFF}; unset TZ; cd "$folders" || exit 1; '
            f"sbatch --parsable {submit} >submitted 2>&1 || "
            f"{{ cat submitted; exit {_REFUSED}; }}; "
            "number=$(tail -n 1 submitted | sed 's/;.*//'); set -C; "
            'for index in "${!folders[@]}"; do '
            f"job=${{number}}{'_$index' if is_array else ''}; "
            # Another submission of the same launch may have been faster.
            '{ echo "$job" >"${folders[index]}/job"; } 2>/dev/null || scancel "$job"; '
            + ('scontrol update JobId="$job" JobName="${names[index]}"; ' if is_array else "")
            + "done >>array.names 2>&1; true",
            stdin=b"".join(files.values()) + f"{secrets}end\n".encode(),
            codes=(0, _EXISTS, _REFUSED),
            seconds=_SUBMIT_SECONDS,
        )
        answer = output.decode("utf-8", "replace")
        if code == _REFUSED:
            # Fewer than all may still be allowed.
            raise _refused(answer, may_wait=not is_array)
        if code == _EXISTS:
            raise TargetError(
                "The job was submitted already",
                expected="a new launch",
                received=printable(answer.strip())[-300:],
                fix="resume the run",
            )
        now = time.time()
        return [self._machine(job.run_id, job.launch, now) for job in jobs]

    def _array_script(self, folders: list[str]) -> str:
        """Returns the script of all tasks of an array."""
        launches = folders[0].rpartition("/")[0]
        return _ARRAY_SCRIPT.format(
            options=self._options("studio-array", f"{launches}/array-%A_%a.log"),
            names=shlex.join(folder.rpartition("/")[2] for folder in folders),
            launches=shlex.quote(launches),
        )

    def _options(self, name: str, log: str) -> str:
        """Returns the lines of a script that Slurm reads."""
        options = [f"--job-name={name}", f"--output={log}", "--open-mode=append"]
        return "\n".join(f"#SBATCH {option}" for option in [*options, *self._asked.options])

    def script(self, job: Job, home: str) -> str:
        """Returns the script of a job."""
        name = job_name(job.run_id, job.launch)
        folder = _launch_folder(home, job.run_id, job.launch)
        python = shlex.quote(self._python)
        return _SCRIPT.format(
            options=self._options(name, f"{folder}/log"),
            folder=shlex.quote(folder),
            home=shlex.quote(home),
            python=f"export STUDIO_MACHINE_PYTHON={python}\n" if self._python else "",
            modules=self._load_modules(),
            seconds=job.whole_seconds,
            # The script counts the time that is left.
            arguments=shlex.join(replace(job, seconds=None).arguments),
            interpreter=python if self._python else "python3",
            again=EXIT_AGAIN,
        )

    def find(self, run_id: str, launch: int) -> Machine | None:
        folder = shlex.quote(_launch_folder(self._home(), run_id, launch))
        name = job_name(run_id, launch)
        _, output = self._run(
            f"[ ! -s {folder}/job ] || {{ echo yes; exit; }}; "
            # The connection was lost before the number was written.
            f'job=$(squeue -h -u "$(id -un)" -n {name} -o %i | tail -n 1); '
            f'[ -z "$job" ] || {{ mkdir -p {folder}; echo "$job" >{folder}/job; echo yes; }}'
        )
        return self._machine(run_id, launch, 0.0) if output.strip() else None

    def state(self, machine: Machine) -> Status:
        folder = shlex.quote(_launch_folder(self._home(), machine.run_id, machine.launch))
        _, output = self._run(
            f"cd {folder} 2>/dev/null || exit 0; "
            # A quota counts, too, so that only writing tells.
            "head -c 65536 /dev/zero >room 2>/dev/null && room=yes || room=no; rm -f room; "
            'echo "used=$(cat used 2>/dev/null) room=$room code=$(cat exit 2>/dev/null)"; '
            '[ -s job ] && scontrol -o show job "$(cat job)" 2>&1; exit 0'
        )
        return _status(output.decode("utf-8", "replace"), self._asked.host.name)

    def log(self, machine: Machine) -> str:
        folder = shlex.quote(_launch_folder(self._home(), machine.run_id, machine.launch))
        _, output = self._run(
            f"tail -c {_LOG_BYTES} {folder}/log 2>/dev/null || true", most_bytes=_LOG_BYTES
        )
        return output.decode("utf-8", "replace")

    def cancel(self, machine: Machine) -> None:
        """Cancels a job, and keeps it from requeueing itself."""
        folder = shlex.quote(_launch_folder(self._home(), machine.run_id, machine.launch))
        self._run(
            f"[ ! -d {folder} ] || touch {folder}/cancelled; "
            f'[ ! -s {folder}/job ] || scancel "$(cat {folder}/job)" >/dev/null 2>&1; '
            f'scancel -u "$(id -un)" -n {job_name(machine.run_id, machine.launch)}'
        )

    def list_machines(self) -> list[Machine]:
        _, output = self._run(
            'squeue -h -u "$(id -un)" -o "%j|%V|%i|%T|%r"', most_bytes=_MOST_LISTING_BYTES
        )
        machines = []
        for line in output.decode("utf-8", "replace").splitlines():
            name, submitted, *about = [*line.split("|"), "", "", "", ""][:5]
            if named := _NAME.fullmatch(name):
                detail = f"job {about[0][:20]}, {about[1][:40]} {about[2][:60]}"
                machines.append(
                    self._machine(named[1], int(named[2]), _unix_time(submitted) or 0.0, detail)
                )
        return machines

    # The login node.

    def _machine(self, run_id: str, launch: int, created: float, detail: str = "") -> Machine:
        return Machine(
            self.address, job_name(run_id, launch), run_id, launch, created, printable(detail)
        )

    def _home(self) -> str:
        """Returns the absolute path of the folder for everything; makes it if it is missing."""
        if not self._known_home:
            folder = self._asked.parameters.get("folder", _FOLDER)
            rest = folder.removeprefix("~/")
            path = f'"$HOME"/{shlex.quote(rest)}' if rest != folder else shlex.quote(folder)
            _, output = self._ssh.run(f"umask 077; mkdir -p {path} && cd {path} && pwd")
            home = output.decode("utf-8", "replace").removesuffix("\n")
            if not re.fullmatch(_PARAMETERS["folder"], home) or home.startswith("~"):
                raise TargetError(
                    f"The home folder of the account on {self._asked.host.name} can't be used",
                    expected="an absolute path of letters, digits and . _ / + -",
                    received=ascii(home)[:100],
                    fix="name another one that all nodes share, with folder=/path",
                )
            self._known_home = home
        return self._known_home

    def _load_modules(self) -> str:
        """Returns lines of a script that load the modules, which need a login's settings."""
        names = self._asked.parameters.get("module", "")
        if not names:
            return ""
        modules = " ".join(names.split(","))
        return (
            "command -v module >/dev/null || . /etc/profile >/dev/null 2>&1\n"
            f"answer=$(module load {modules} 2>&1) && module load {modules} || "
            f'{{ echo "$answer"; exit {_NO_MODULE}; }}\n'
            f'case "$answer" in *[Uu]nable*|*[Uu]nknown*|*ERROR*) echo "$answer"; '
            f"exit {_NO_MODULE};; esac\n"
        )

    def _run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        codes: tuple[int, ...] = (0,),
        seconds: float = 60.0,
        most_bytes: int = 1 << 20,
    ) -> tuple[int, bytes]:
        """Runs a script in which Slurm's commands are known."""
        code, output = self._ssh.run(
            # Files of profiles are often written for bash, as the job's script is.
            f"exec bash -c {shlex.quote(_PRELUDE + script)}",
            stdin=stdin,
            codes=(*codes, _NO_SLURM, _NO_MODULE),
            seconds=seconds,
            most_bytes=most_bytes,
        )
        name = self._asked.host.name
        if code == _NO_SLURM:
            raise TargetError(
                f"There is no Slurm on {name}",
                expected="the command sbatch, in a login of the account",
                received="no sbatch",
                fix="name a login node of the cluster; a module that has Slurm belongs into "
                "~/.profile there",
            )
        if code == _NO_MODULE:
            raise ConfigError(
                f"A module can't be loaded on {name}",
                expected="modules that are there",
                received=printable(output.decode("utf-8", "replace").strip())[-300:],
                fix="list them there with: module avail",
                field="target",
            )
        return code, output


def job_name(run_id: str, launch: int) -> str:
    """Names the job of a launch; raises TargetError for a run that this program didn't name."""
    if not _RUN_ID.fullmatch(run_id) or int(launch) < 1:
        raise TargetError(
            "That can't be a launch",
            expected="a run's id of letters, digits and -, and a number from 1",
            received=ascii(f"{run_id}-{launch}")[:100],
            fix="list the machines with: studio targets",
        )
    return f"studio-{run_id}-{int(launch)}"


def _launch_folder(home: str, run_id: str, launch: int) -> str:
    return f"{home}/launches/{job_name(run_id, launch).removeprefix('studio-')}"


def _status(answer: str, host: str) -> Status:
    """Parses what the launch's folder and `scontrol show job` say."""
    head, _, shown = answer.partition("\n")
    used = re.match(r"used=([0-9]{1,9}) ", head)
    code = re.search(r" code=([0-9]{1,3})$", head)
    seconds = float(used[1]) if used else None
    fields = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", shown))
    if "JobState" not in fields:
        is_gone = re.search(r"Invalid job id|Job \S+ not found", shown)
        if not head or is_gone or not shown.strip():
            return Status("ended", f"exit status {code[1]}" if code else "gone", seconds=seconds)
        raise UnavailableError(
            f"Slurm on {host} doesn't answer",
            expected="the state of the job",
            received=printable(shown.strip())[-300:],
            fix="it is asked again; the job goes on meanwhile",
        )
    word = fields["JobState"]
    state = _STATES.get(word, "ended")
    reason = fields.get("Reason", "").replace("None", "")
    number = "_".join(filter(None, map(fields.get, ("ArrayJobId", "ArrayTaskId"))))
    job = f"job {(number or fields.get('JobId', ''))[:20]}"
    if state == "waiting":
        starts = _shown_time(fields.get("StartTime", ""))
        about = [job, reason, f"expected to start {starts}" if starts else ""]
        return Status(state, ", ".join(filter(None, about)), seconds=seconds)
    if state == "ended":
        is_cancelled = word == "CANCELLED"
        return Status(state, f"{job}: {word}", seconds=seconds, is_cancelled=is_cancelled)
    ends = _shown_time(fields.get("EndTime", ""))
    limit = f" until {ends}" if ends and fields.get("TimeLimit") != "UNLIMITED" else ""
    full = "; no room in the folder that the nodes share" if " room=no " in head else ""
    place = f"{job} on {fields.get('NodeList', '')[:60]}{limit}{full}"
    return Status(state, word.lower(), seconds=seconds, place=printable(place))


def _refused(
    answer: str, partitions: str = "", *, may_wait: bool = False
) -> ConfigError | UnavailableError:
    """Explains sbatch's refusal.

    Args:
        may_wait: Whether to wait for the end of other jobs if the account has too many.
    """
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    words = printable(" / ".join(lines[-3:]))[-400:]
    if re.search("contact slurm controller|timed out|Communication", answer, re.IGNORECASE):
        return UnavailableError(
            "The Slurm controller can't be reached",
            expected="an answer to sbatch",
            received=words,
            fix="it is tried again; if it lasts, ask those who run the cluster",
        )
    if may_wait and _has_too_many_jobs(answer):
        return UnavailableError(
            "The account has as many jobs as the cluster allows",
            expected="room for one more",
            received=words,
            fix="it is tried again; start fewer runs at a time",
        )
    name, fix = "", "correct the address, or ask those who run the cluster"
    for pattern, parameter, advice in _COMPLAINTS:
        if re.search(pattern, answer, re.IGNORECASE):
            name, fix = parameter, f"correct {parameter}: {advice}"
            break
    if name == "partition" and partitions:
        fix = f"choose one of: {partitions}"[:400]
    return ConfigError(
        "Slurm refuses the job",
        expected=f"{name or 'parameters'} that the cluster accepts from this account",
        received=words or "no reason",
        fix=fix,
        field="target",
    )


def _has_too_many_jobs(answer: str) -> bool:
    return bool(re.search(r"MaxSubmit|submit.?(job)?.?limit", answer, re.IGNORECASE))


def _invalid(received: str, name: str = "") -> ConfigError:
    return ConfigError(
        "The address of the Slurm target is invalid",
        expected=f"{name} of the form {_PARAMETERS[name]}"
        if name
        else "slurm://[user@]login-host[:port] with, if needed, " + ", ".join(_PARAMETERS),
        received=ascii(received)[:200],
        fix="correct it, as in slurm://me@login?partition=gpu&gres=gpu:1&time=04:00:00",
        field="target",
    )


def _seconds_of(limit: str) -> int | None:
    """Returns the seconds of one of Slurm's times; None for no limit, or none that is known.

    `90` are minutes, `90:00` minutes and seconds, `1-12` a day and hours.
    """
    match = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?", limit)
    if match is None:
        return None
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is not None or match[4] is not None:
        return ((days * 24 + first) * 60 + second) * 60 + third
    return first * 60 + second


def _unix_time(text: str) -> float | None:
    """Parses a time of Slurm's commands, which print UTC here."""
    try:
        return float(timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def _shown_time(text: str) -> str:
    return "" if _unix_time(text) is None else f"{text[:16].replace('T', ' ')} UTC"
