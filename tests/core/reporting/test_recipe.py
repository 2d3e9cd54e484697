"""A reporter needs two files: a line that declares it, and the module that sends."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from core.processes.reporters import SERVICES
from tests.core.test_recipes import python

ROOT = Path(__file__).parents[3]
DECLARATION = Path("core/processes/reporters.py")
SENDER = Path("core/reporting/lines_service.py")
CODE = """
class LinesService:
    reference, place, sends_in_part = "1", "lines", False
    def __init__(self, run): pass
    def send(self, figures): pass
    def finish(self, state, results): pass

open_run = LinesService
"""
SCRIPT = """
import json
from core.config.options import field_extra
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.processes.environment import for_reporters, for_runs
from core.reporting.service import open_service
given = {"LINES_TOKEN": "secret"}
try:
    TrainConfig(report_to="others")
except ConfigError as error:
    expected = error.expected
print(json.dumps([
    TrainConfig(report_to="lines, trackio").report_to,
    "lines" in field_extra(TrainConfig.model_fields["report_to"])["choices"],
    expected,
    [for_reporters(given, "lines"), for_reporters(given, "wandb"), for_runs(given)],
    open_service("lines", None).place,
]))
"""


def test_reporter_needs_two_files(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "core", tmp_path / "core", ignore=shutil.ignore_patterns("*.pyc"))
    text = (tmp_path / DECLARATION).read_text("utf-8")
    last = '        ReportingService("mlflow"'
    assert last in text
    declared = text.replace(last, f'        ReportingService("lines", "json"),\n{last}')
    (tmp_path / DECLARATION).write_text(declared, "utf-8")
    (tmp_path / SENDER).write_text(CODE, "utf-8")

    choice, is_offered, expected, environments, place = json.loads(python(tmp_path, "-c", SCRIPT))
    assert (choice, is_offered, place) == ("lines, trackio", True, "lines")
    assert "lines" in expected
    assert environments == [{"LINES_TOKEN": "secret"}, {}, {}]
    assert "wandb, lines, mlflow" in python(tmp_path, "-m", "core", "train", "--help-all")


def test_docs_have_a_row_for_each_reporter() -> None:
    text = (ROOT / "docs/reporting.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ", text, flags=re.MULTILINE)
    assert [name for name in rows if name in SERVICES] == list(SERVICES)
