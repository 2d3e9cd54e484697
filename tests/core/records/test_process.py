"""Tests that processes are identified by more than their pid."""

import subprocess
import sys
from dataclasses import replace

from core.records.process import ProcessIdentity


def test_this_process_is_alive() -> None:
    assert ProcessIdentity.of_this().is_alive()


def test_identity_round_trips_through_json() -> None:
    identity = ProcessIdentity.of_this()
    assert ProcessIdentity.from_json(identity.to_json()) == identity


def test_another_process_with_the_same_pid_is_not_alive() -> None:
    mine = ProcessIdentity.of_this()
    assert not replace(mine, started=mine.started - 1).is_alive()
    assert not replace(mine, boot_id="another boot").is_alive()


def test_ended_process_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    assert identity.is_alive()
    process.communicate(b"\n")
    assert not identity.is_alive()


def test_invalid_identity_is_read_as_none() -> None:
    assert ProcessIdentity.from_json({"pid": "x"}) is None
    infinite = {"pid": float("inf"), "started": 1.0, "boot_id": "x"}
    assert ProcessIdentity.from_json(infinite) is None
    assert ProcessIdentity.from_json(None) is None
