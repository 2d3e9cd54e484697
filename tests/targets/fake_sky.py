"""The `sky` command's part for managed jobs, with processes of this computer as machines.

Its state is in the folder FAKE_SKY. `jobs.json` has the jobs as `sky jobs queue -o json` writes
them, `calls.jsonl` the command lines, `NUMBER/` a job's task and log. `behaviour.json` has what a
test wants: `hang` and `fail` (by command), `garbage`, `noise`, `no_controller`, `status` (a job
gets it, and no machine).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("FAKE_SKY", "."))
OVER = ("SUCCEEDED", "CANCELLED", "FAILED", "FAILED_PRECHECKS", "FAILED_NO_RESOURCE")
NAME = re.compile(r"[a-zA-Z]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?")
FIELDS = ("workspace", "task_name", "failure_reason", "region", "end_at", "pool", "details")


def main() -> int:
    if sys.argv[1] == "supervise":
        return supervise(int(sys.argv[2]))
    behaviour = read_behaviour()
    with (FOLDER / "calls.jsonl").open("a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\n")
    assert sys.argv[1] == "jobs", sys.argv
    command = sys.argv[2]
    if text := behaviour.get("fail", {}).get(command):
        print(text, file=sys.stderr)
        return 1
    code = COMMANDS[command](sys.argv[3:], behaviour)
    # The answer is lost, but the server has done its work.
    time.sleep(behaviour.get("hang", {}).get(command, 0.0))
    return code


def launch(arguments: list[str], behaviour: dict[str, Any]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-y", action="store_true", required=True)
    parser.add_argument("-d", action="store_true", required=True)
    parser.add_argument("-n", dest="name", required=True)
    parser.add_argument("--secret", action="append", default=[])
    parser.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    assert NAME.fullmatch(options.name), options.name
    secrets = {name: os.environ[name] for name in options.secret}
    with changing_jobs() as jobs:
        number = len(jobs) + 1
        folder = FOLDER / str(number)
        folder.mkdir()
        (folder / "task.yaml").write_bytes(options.file.read_bytes())
        (folder / "secrets.json").write_text(json.dumps(secrets))
        status = behaviour.get("status", "STARTING")
        job = dict.fromkeys(FIELDS) | {"job_id": number, "job_name": options.name, "status": status}
        jobs.append(job | {"task_id": 0, "submitted_at": time.time(), "recovery_count": 0})
    if "status" not in behaviour:
        start(number)
    return 0


def queue(arguments: list[str], behaviour: dict[str, Any]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-v", action="store_true")
    parser.add_argument("-a", action="store_true", required=True)
    parser.add_argument("-o", choices=["json"], required=True)
    parser.add_argument("--skip-finished", action="store_true")
    options = parser.parse_args(arguments)
    if behaviour.get("no_controller"):
        print("sky.exceptions.ClusterNotUpError: No in-progress managed jobs.", file=sys.stderr)
        return 1
    if behaviour.get("noise"):
        print("\x1b[2mFailed to connect to SkyPilot API server at [...]. Starting one.\x1b[0m")
    with changing_jobs() as jobs:
        shown = [one for one in jobs if not options.skip_finished or one["status"] not in OVER]
    print(behaviour.get("garbage") or json.dumps(shown[::-1], indent=2))
    return 0


def logs(arguments: list[str], _: dict[str, Any]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-follow", action="store_true", required=True)
    parser.add_argument("--tail", type=int, required=True)
    parser.add_argument("number", type=int)
    options = parser.parse_args(arguments)
    path = FOLDER / str(options.number) / "log"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    sys.stdout.write("".join(lines[-options.tail :]))
    with changing_jobs() as jobs:
        return 0 if jobs[options.number - 1]["status"] == "SUCCEEDED" else 101


def cancel(arguments: list[str], _: dict[str, Any]) -> int:
    assert arguments[0] == "-y"
    with changing_jobs() as jobs:
        for number in map(int, arguments[1:]):
            jobs[number - 1]["status"] = "CANCELLED"
    for number in map(int, arguments[1:]):
        kill(number)
    return 0


COMMANDS = {"launch": launch, "queue": queue, "logs": logs, "cancel": cancel}


# What SkyPilot's controller does.


def start(number: int) -> None:
    secrets = json.loads((FOLDER / str(number) / "secrets.json").read_text())
    # A machine has nothing of this computer's environment but this.
    passed = {name: os.environ[name] for name in ("PATH", "HOME", "FAKE_SKY")}
    subprocess.Popen(
        [sys.executable, __file__, "supervise", str(number)],
        env=passed | secrets,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def supervise(number: int) -> int:
    """Runs a job's script on each of its nodes until one fails or all have ended."""
    folder = FOLDER / str(number)
    (folder / "pid").write_text(str(os.getpid()))
    task = json.loads((folder / "task.yaml").read_text())
    if not set_status(number, "RUNNING"):
        return 0
    nodes = [run_node(task, folder, rank) for rank in range(task["num_nodes"])]
    codes = [process.wait() for process, _ in nodes]
    for _, reader in nodes:
        reader.join()
    set_status(number, "FAILED" if any(codes) else "SUCCEEDED")
    return 0


def run_node(
    task: dict[str, Any], folder: Path, rank: int
) -> tuple[subprocess.Popen[str], threading.Thread]:
    several = task["num_nodes"] > 1
    node = f"worker{rank}, rank={rank}" if several else task["name"]
    variables = {
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NODE_IPS": "\n".join(f"10.0.0.{one}" for one in range(task["num_nodes"])),
    }
    process = subprocess.Popen(
        ["bash", "-c", task["run"]],
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def read() -> None:
        assert process.stdout is not None
        with (folder / "log").open("a") as log:
            for line in process.stdout:
                log.write(f"\x1b[36m({node}, pid={process.pid})\x1b[0m {line}")
                log.flush()

    reader = threading.Thread(target=read)
    reader.start()
    return process, reader


def lose_machine(number: int) -> None:
    """Ends a job's machine, as a cloud that takes it away; SkyPilot looks for another one."""
    with changing_jobs() as jobs:
        jobs[number - 1]["status"] = "RECOVERING"
    kill(number)


def recover(number: int) -> None:
    """Starts the job again on another machine."""
    with changing_jobs() as jobs:
        jobs[number - 1]["recovery_count"] += 1
    start(number)


def kill(number: int) -> None:
    with suppress(FileNotFoundError, ProcessLookupError):
        os.killpg(int((FOLDER / str(number) / "pid").read_text()), signal.SIGKILL)


def set_status(number: int, status: str) -> bool:
    """Changes a job's status unless it is over."""
    with changing_jobs() as jobs:
        if jobs[number - 1]["status"] in OVER:
            return False
        jobs[number - 1]["status"] = status
        return True


def read_behaviour() -> dict[str, Any]:
    path = FOLDER / "behaviour.json"
    return json.loads(path.read_text()) if path.exists() else {}


@contextmanager
def changing_jobs() -> Iterator[list[dict[str, Any]]]:
    path = FOLDER / "jobs.json"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jobs = json.loads(path.read_text()) if path.exists() else []
        yield jobs
        path.write_text(json.dumps(jobs))


if __name__ == "__main__":
    sys.exit(main())
