"""Keeps runs, a sweep and a follower at work for hours while processes, disks and networks fail.

A workspace trains one run here and one over ssh on a real server on loopback, and drives a sweep;
another workspace follows the second run's mirror. Failures come at random, one to three in a
row. The soak does what a user would do, such as resuming a failed run, and waits until all four
have gone on. At the end nothing may be lost or left over, and memory must be flat.

    python -m benchmarks.soak [--minutes 180] [--seed 0] [--only kill_worker ...]

It needs OpenSSH's server, and root for the disks that become full. Exit status 1: a violation.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.soak.checks import check_events, end_work
from benchmarks.soak.faults import FAULTS, kill
from benchmarks.soak.relay import Relay
from benchmarks.soak.work import RECOVERED_WITHIN_SECONDS, Work, holds_within, say
from tests.core.training.test_trainer import make_inputs
from tests.ports import free_port
from tests.targets.ssh_server import running_ssh_server
from tests.ui.browser import running_app

_DISK_MEGABYTES = 400


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mounts a small disk at a folder."""
    folder.mkdir(exist_ok=True)
    size = f"size={_DISK_MEGABYTES}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def prepared(folder: Path, seed: int, *, has_disks: bool) -> Iterator[Work]:
    """Starts the ssh server, the network to it and the app, and makes the workspaces."""
    with ExitStack() as opened:
        server = opened.enter_context(running_ssh_server(folder / "ssh"))
        port = free_port()
        relay = Relay(port, int(server.address.rpartition(":")[2]))
        opened.callback(relay.close)
        host_key = server.known_hosts.read_text().partition(" ")[2]
        server.known_hosts.write_text(f"[127.0.0.1]:{port} {host_key}")
        for disk in (folder / "ssh" / "home", folder / "home", folder / "watcher"):
            if has_disks:
                opened.enter_context(small_disk(disk))
        os.environ |= {"STUDIO_SSH_COMMAND": server.command, "STUDIO_SLOTS": "2"}
        work = Work(folder, server, relay, seed)
        make_inputs(work.home.root)
        work.url = opened.enter_context(running_app(work.home.root))
        opened.callback(lambda: kill([one for one in work.processes(str(folder))
                                      if "app.py" not in one.cmdline()]))  # fmt: skip
        yield work


def inject(work: Work, *kinds: str) -> None:
    """Injects and undoes faults one after another, and waits until everything has gone on."""
    for kind in kinds:
        work.faults[kind] += 1
        say(f"{kind}; " + ", ".join(f"{one} at {at}" for one, at in work.progress().items()))
        FAULTS[kind](work)
        work.wait(work.random.uniform(0, 20))
    undone, began = work.progress(), time.monotonic()
    waiting = set(undone)
    while waiting and time.monotonic() - began < RECOVERED_WITHIN_SECONDS:
        work.tend()
        now = work.progress()
        waiting = {name for name in waiting if now[name] == undone[name]}
    if waiting:
        work.violate(f"{waiting} haven't gone on after {kinds}")
    else:
        say(f"all have gone on {time.monotonic() - began:.0f} s after {', '.join(kinds)}")
    check_events(work)


def main() -> int:
    parser = argparse.ArgumentParser("benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=180)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    has_disks = os.getuid() == 0
    kinds = [one for one in options.only if has_disks or not one.startswith("fill_")]
    say(f"seed {options.seed}, {options.minutes:g} minutes, disks can be filled: {has_disks}")
    end = time.monotonic() + options.minutes * 60
    folder = Path(tempfile.mkdtemp(prefix="studio-soak-"))
    with prepared(folder, options.seed, has_disks=has_disks) as work:
        holds_within(RECOVERED_WITHIN_SECONDS, lambda: bool(work.tend()) or work.has_begun())
        left: list[str] = []
        while time.monotonic() < end and len(work.violations) < 10:
            work.wait(work.random.uniform(5, 60))
            # Every kind comes once before any comes again.
            left = left or work.random.sample(kinds, len(kinds))
            count = work.random.randint(1, 3)
            inject(work, *left[:count])
            left = left[count:]
        end_work(work)
    print(f"faults: {dict(work.faults)}\nresumed: {dict(work.resumed)}")
    print(f"runs: {work.runs}, sweeps: {work.sweeps}, folder: {folder}")
    print("\n".join(["violations:", *work.violations]) if work.violations else "no violation")
    return 1 if work.violations else 0


if __name__ == "__main__":
    sys.exit(main())
