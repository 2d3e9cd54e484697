"""An option, a target and an event that the page draws need as many files as CONTRIBUTING says.

Each recipe is applied to a copy of the code, and the result is used.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.texts import sentences
from tests.ui.browser import running_app, visiting

ROOT = Path(__file__).parents[2]
# For each file, lines and the text to insert before each; "": the text of a new file.
Changes = dict[str, dict[str, str]]


@pytest.fixture
def code(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the code with the changes of the test's parameter."""
    folder = tmp_path / "code"
    for name in ("core", "ui"):
        ignored = shutil.ignore_patterns("*.pyc")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "app.py", folder)
    for name, insertions in request.param.items():
        path = folder / name
        text = path.read_text("utf-8") if path.exists() else ""
        for line, inserted in insertions.items():
            assert not line or text.count(line) == 1, f"{line} in {name}"
            text = text.replace(line, inserted + line) if line else inserted
        path.write_text(text, "utf-8")
    return folder


def python(folder: Path, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


OPTION: Changes = {
    "core/config/train.py": {
        "    max_grad_norm: ": (
            '    tilt: float = option(0.5, "How far the loss tilts.", ge=0, le=1, is_later=True)\n'
        )
    }
}
USES_OPTION = """
import json
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.runs.commands import shell_line
from core.workspace.workspace import Workspace
from ui.layout import build_page
try:
    TrainConfig(tilt=2)
except ConfigError as error:
    refused = error.field
page = build_page(Workspace("workspace"))
ids = [getattr(block, "elem_id", None) for block in page.blocks.values()]
old, new = TrainConfig.parse({"shards": "rows"}), TrainConfig(shards="rows", tilt=1)
differ = new.fingerprint() != old.fingerprint()
print(json.dumps([refused, "train-tilt" in ids, old.tilt, differ, shell_line("train", new)]))
"""


@pytest.mark.slow(20)
@pytest.mark.parametrize("code", [OPTION], indirect=True)
def test_option_needs_one_file(code: Path) -> None:
    assert "--tilt" in python(code, "-m", "core", "train", "--help-all")
    refused, is_drawn, value, differ, command = json.loads(python(code, "-c", USES_OPTION))
    assert (refused, is_drawn, value, differ) == ("tilt", True, 0.5, True)
    assert "--tilt 1" in command
    assert len(OPTION) == 1


TARGET: Changes = {
    "core/config/targets.py": {
        '    "slurm": TargetKind(': """    "toy": TargetKind(
        "Toy machine", "core.targets.toy_target:ToyTarget", "toy://name",
        (TargetField("name", "Name of the toy", "Any word.", is_required=True),),
    ),
"""
    },
    "core/targets/toy_target.py": {
        "": """
from core.targets.target import MirrorRoot

class ToyTarget:
    creates_machines, carries_secrets, hosts = True, False, 1
    def __init__(self, address):
        self.address = address
    def check(self):
        return "a toy with two cores"
    def mirror_root(self, asked):
        return MirrorRoot(asked, asked)
    def price_per_hour(self):
        return None
    def launch(self, job):
        raise NotImplementedError
    find = state = log = cancel = launch
    def list_machines(self):
        return []
"""
    },
}
USES_TARGET = """
import json
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.targets.target import LABELS, open_target
from core.workspace.workspace import Workspace
from ui.layout import build_page
try:
    TrainConfig(target="boat://a")
except ConfigError as error:
    expected = error.expected
config = TrainConfig(target="toy://a", mirror="file:///tmp/mirror")
page = json.dumps(build_page(Workspace("workspace")).config, default=str)
print(json.dumps([open_target(config.target).check(), LABELS["toy"], "toy://" in expected,
                  page.count("Name of the toy"), "<span>Toy machine</span>" in page]))
"""


@pytest.mark.slow(20)
@pytest.mark.parametrize("code", [TARGET], indirect=True)
def test_target_needs_two_files(code: Path) -> None:
    checked, label, is_expected, fields, is_offered = json.loads(python(code, "-c", USES_TARGET))
    assert (checked, label) == ("a toy with two cores", "Toy machine")
    assert is_expected and is_offered and fields >= 1
    assert len(TARGET) == 2


EVENT: Changes = {
    "core/records/kinds.py": {
        "EVENTS: dict": "class _Surprise(_EventFields):\n    step: Step\n    word: Text\n\n\n",
        '    "finished": _Finished,': '    "surprise": _Surprise,\n',
    },
    "core/tokenizer/training.py": {
        '        reporter.event("resolved"': (
            '        reporter.event("surprise", step=3, word="zyzzyva")\n'
        )
    },
    "ui/assets/runs.js": {
        "  if (view.phasesBox.open)": """
  const { events } = await studio.ask(server.run_events, { run: view.id, kind: "surprise" });
  view.head.title = events.map(({ step, word }) => `${word} at ${step}`).join();
"""
    },
}


@pytest.mark.slow(40)
@pytest.mark.long
@pytest.mark.parametrize("code", [EVENT], indirect=True)
def test_event_that_the_page_draws_needs_three_files(code: Path, tmp_path: Path) -> None:
    text, workspace = tmp_path / "text.txt", tmp_path / "workspace"
    text.write_text("\n".join(sentences(200)), "utf-8")
    options = ("--path", str(text), "--source", "files", "--workspace", str(workspace))
    python(code, "-m", "core", "tokenizer", *options)
    [run] = [path.name for path in (workspace / "runs").iterdir()]
    with running_app(workspace, root=code) as url, visiting(url) as visit:
        visitor = visit(f"/#runs/{run}")
        visitor.page.get_by_title("zyzzyva at 3").wait_for()
    assert len(EVENT) == 3
