"""A real Slurm with four nodes on this machine, for tests of runs on a cluster."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.core.runs.support import wait_for
from tests.ports import free_port

COMMANDS = ("slurmctld", "slurmd", "munged", "sbatch", "srun")
NODES = ("n1", "n2", "n3", "n4")
# A requeued job starts after the lifetime of credentials; a lost node shows after SlurmdTimeout.
_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmdTimeout=6
SchedulerParameters=sched_interval=5,bf_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
KillWait=5
PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 State=UP
PartitionName=short Nodes=n1 MaxTime=00:10:00 State=UP
"""


@dataclass
class Cluster:
    """A running cluster, whose nodes are processes."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "slurm.conf"

    def start(self, name: str, *command: str | Path) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "SLURM_CONF": str(self.config)},
            )

    def start_node(self, name: str) -> None:
        self.start(name, _path("slurmd"), "-D", "-N", name, "-f", self.config)

    def ask(self, *command: str) -> str:
        environment = {**os.environ, "SLURM_CONF": str(self.config), "TZ": "UTC0"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def job(self, launch: str) -> dict[str, str]:
        """Returns what Slurm says about the newest job of a launch; empty if it has none."""
        numbers = self.ask("squeue", "-h", "-t", "all", "-n", f"studio-{launch}", "-o", "%i")
        if not numbers.split():
            return {}
        words = self.ask("scontrol", "-o", "show", "job", numbers.split()[-1]).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Runs a cluster; skips the test without Slurm or without root."""
    missing = [name for name in COMMANDS if not _path(name)]
    if missing:
        pytest.skip(f"Slurm isn't installed: no {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("Slurm's daemons need root")
    cluster = Cluster(folder)
    for name in ("state", "munge", *NODES):
        (folder / name).mkdir(parents=True)
    (folder / "munge").chmod(0o755)
    (folder / "munge/key").write_bytes(secrets.token_bytes(128))
    (folder / "munge/key").chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    nodes = "".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=1 "
        "RealMemory=4000\n"
        for name in NODES
    )
    text = _CONFIG.format(folder=folder, host=host, port=free_port())
    head, mark, tail = text.partition("PartitionName")
    cluster.config.write_text(f"{head}{nodes}{mark}{tail}")
    try:
        places = [f"--{name}={folder}/munge/{name}" for name in ("socket", "pid-file", "log-file")]
        cluster.start(
            "munged",
            *(_path("munged"), "--foreground", "--force", f"--key-file={folder}/munge/key"),
            *(*places, f"--seed-file={folder}/munge/seed"),
        )
        wait_for((folder / "munge/socket").exists, 20)
        cluster.start("controller", _path("slurmctld"), "-D", "-f", cluster.config)
        for name in NODES:
            cluster.start_node(name)
        wait_for(lambda: _idle_nodes(cluster) == len(NODES), 60)
        yield cluster
    finally:
        _stop(cluster)


def _idle_nodes(cluster: Cluster) -> int:
    environment = {**os.environ, "SLURM_CONF": str(cluster.config)}
    command = ["sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    time.sleep(0.2)
    return len(done.stdout.split())


def _stop(cluster: Cluster) -> None:
    environment = {**os.environ, "SLURM_CONF": str(cluster.config)}
    controller = cluster.processes.get("controller")
    if controller and controller.poll() is None:
        command = ["scancel", "-u", "root"]
        subprocess.run(command, env=environment, check=False, timeout=30)
        time.sleep(1.0)
    for process in reversed(cluster.processes.values()):
        process.terminate()
    for process in cluster.processes.values():
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _path(name: str) -> str:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin") or ""
