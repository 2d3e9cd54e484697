"""Simulated Ray clusters of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core.parts.ray_local import private_settings, ray_folder

ROOT = Path(__file__).parents[3]
# A lost node is noticed within a second instead of half a minute.
_QUICK = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 250,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
# On a busy machine, the server of a client starts in more than Ray's half minute.
_PATIENT = {"RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "240"}


@contextmanager
def simulated_cluster(nodes: int, client_port: int | None = None, **settings: Any) -> Iterator[Any]:
    """Yields a cluster whose head runs no tasks, and its address in RAY_ADDRESS."""
    before = dict(os.environ)
    # The nodes import the functions of tests.
    os.environ.update({**private_settings(), "PYTHONPATH": str(ROOT), **_PATIENT})
    with ray_folder() as folder:
        os.environ["RAY_TMPDIR"] = str(folder)
        (folder / "ray").mkdir()
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0, "include_dashboard": False, "_system_config": _QUICK,
                "ray_client_server_port": client_port,
            },
        )  # fmt: skip
        try:
            for _ in range(nodes):
                cluster.add_node(num_cpus=1, **settings)
            os.environ["RAY_ADDRESS"] = cluster.address
            yield cluster
        finally:
            cluster.shutdown()
            os.environ.clear()
            os.environ.update(before)


def other_package(folder: Path, name: str, version: str) -> Path:
    """Writes the metadata of a package, which Python finds before the installed one's."""
    metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder
