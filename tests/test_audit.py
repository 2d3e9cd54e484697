"""`make audit` distinguishes findings, an all-clear and an unreachable service."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "audit.py"
JUDGE = runpy.run_path(str(SCRIPT))["judge"]


def package(name: str, *flaws: str) -> dict[str, Any]:
    vulns = [{"id": flaw, "fix_versions": ["2"]} for flaw in flaws]
    return {"name": name, "version": "1", "vulns": vulns}


def test_findings_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = {"name": "c", "skip_reason": "unknown"}
    assert JUDGE([package("a"), package("b")]) == 0
    assert JUDGE([package("a"), package("b", "CVE-1"), skipped]) == 1
    said = capsys.readouterr().out
    assert "b 1: CVE-1, fixed in 2" in said
    assert "1 packages are unknown" in said


def test_audit_that_skipped_every_package_is_not_an_all_clear(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert JUDGE([{"name": "a", "skip_reason": "Dependency not found on PyPI"}]) == 3
    assert "neither a finding nor an all-clear" in capsys.readouterr().err


def test_unreachable_service_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("pip_audit", reason="pip install pip-audit")
    (tmp_path / "requirements.txt").write_text("numpy==2.0.0\n")
    options = ("--requirement", str(tmp_path / "requirements.txt"), "--no-deps")
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "PATH": ""}
    cache = ("--disable-pip", "--cache-dir", str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options, *cache],
        env=nowhere,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert "nothing was checked" in done.stderr
