"""Runs in a notebook that a person opens, executed by Jupyter's own client."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from core import Workspace
from core.config.targets import NOTEBOOK_ACCELERATORS
from core.errors import ConfigError
from core.records.folder import RunFolder
from core.runs.client import request_stop, submit
from core.targets import bootstrap
from core.targets.notebook_target import NotebookTarget, make_notebook
from core.targets.target import Job, open_target
from tests.core.runs.support import wait_for, wait_until_ended
from tests.core.training.test_trainer import make_inputs
from tests.targets.homes import copied_workspace
from tests.targets.s3_server import BUCKET, s3_server
from tests.targets.test_following import weights
from tests.targets.test_launching import config, last_step, row_of

_SECONDS = 300


def job(mirror: str) -> Job:
    return Job("train-20261129-000000-aaaa", 1, mirror, "0" * 64)


@pytest.mark.parametrize("accelerator", NOTEBOOK_ACCELERATORS)
@pytest.mark.parametrize(
    "mirror",
    ["hf://buckets/me/runs", "gs://bucket", "s3://bucket", "file:///content/drive/MyDrive/studio",
     "s3://bucket/'\"\"\"\\'\n\nimport os; os.abort()  # {mirror} <img src=x> `"],
)  # fmt: skip
def test_settings_are_values_in_a_notebook(mirror: str, accelerator: str) -> None:
    notebook = make_notebook(job(mirror), accelerator)
    about, program, install, run = (cell["source"] for cell in notebook["cells"])
    assert "<img" not in about
    magic, _, source = program.partition("\n")
    assert magic.startswith("%%writefile ")
    assert source == Path(bootstrap.__file__).read_text()
    plain = make_notebook(job(mirror.partition(":")[0] + "://plain"), accelerator)
    statements, expected = (
        [type(node).__name__ for node in ast.walk(ast.parse(text))]
        for text in (install, plain["cells"][2]["source"])
    )
    if "drive" not in mirror:
        assert statements == expected
    (arguments,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(install))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ARGUMENTS"
    )
    assert arguments[arguments.index("--mirror") + 1] == mirror
    ast.parse(run)
    assert notebook["metadata"].get("accelerator", "ANY") == accelerator.upper()


def test_notebook_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    text = json.dumps(make_notebook(job("hf://buckets/me/runs"), "gpu"))
    assert "HF_TOKEN" in text
    assert "hf_secret" not in text


@pytest.mark.parametrize(
    "address",
    ["notebook://t4", "notebook://gpu/x", "notebook://gpu?zone=a", "notebook://gpu?folder=relative",
     "notebook://gpu?folder=", "notebook://gpu?folder=/a%0Ab", "notebook://gpu#x"],
)  # fmt: skip
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="notebook://any or notebook://gpu"):
        open_target(address)


@pytest.mark.parametrize("mirror", ["", "ssh://host/folder", "/tmp/folder"])
def test_mirror_that_a_notebook_cannot_reach_is_refused(mirror: str) -> None:
    with pytest.raises(ConfigError, match="hf://buckets/OWNER/NAME") as caught:
        NotebookTarget("notebook://").mirror_root(mirror)
    assert caught.value.field == "mirror"


def test_folder_is_where_the_notebook_sees_it(tmp_path: Path) -> None:
    target = NotebookTarget("notebook://gpu?folder=/content/drive/My%20Drive")
    roots = target.mirror_root(f"file://{tmp_path}")
    assert (roots.here, roots.there) == (f"file://{tmp_path}", "file:///content/drive/My%20Drive")
    with pytest.raises(ConfigError):
        target.mirror_root("s3://bucket")


def test_notebook_without_the_promised_accelerator_ends_with_an_error(tmp_path: Path) -> None:
    command = [sys.executable, bootstrap.__file__, *job("file:///nowhere").arguments]
    done = subprocess.run(
        [*command, "--notebook", "tpu", "--prepare"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "STUDIO_MACHINE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "this notebook has no TPU: choose one" in done.stderr


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs")).root


@pytest.fixture
def home(inputs: Path, tmp_path: Path) -> Iterator[Workspace]:
    with copied_workspace(inputs, tmp_path / "home") as workspace:
        yield workspace


class OpenNotebook:
    """A notebook that is being executed, in a session whose end takes all of its processes.

    Args:
        folder: The session's own disk.
        environment: Of the kernel, as the notebook's secrets are.
    """

    def __init__(self, path: Path, folder: Path, environment: dict[str, str]) -> None:
        nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
        nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
        self._errors = (nbclient.exceptions.CellExecutionError, nbclient.exceptions.DeadKernelError)
        pytest.importorskip("ipykernel", reason="pip install nbclient ipykernel")
        folder.mkdir()
        self._home = str(folder)
        self.content: Any = nbformat.read(path, as_version=4)
        nbformat.validate(self.content)
        self._client = nbclient.NotebookClient(
            self.content, timeout=_SECONDS, resources={"metadata": {"path": self._home}}
        )
        variables = {
            **os.environ,
            "HOME": self._home,
            "STUDIO_MACHINE_HOME": self._home,
            "STUDIO_MACHINE_PYTHON": sys.executable,
            **environment,
        }
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._execute, args=(variables,), daemon=True)
        self._thread.start()

    def _execute(self, variables: dict[str, str]) -> None:
        try:
            self._client.execute(env=variables)
        except self._errors as error:
            self._problem = error

    def kill(self) -> None:
        for process in psutil.process_iter():
            try:
                if process.environ().get("HOME") == self._home:
                    process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        self._thread.join(60)

    def finish(self) -> str:
        """Returns what the cells have printed."""
        self._thread.join(_SECONDS)
        if self._problem:
            raise self._problem
        outputs = [output for cell in self.content.cells for output in cell.get("outputs", [])]
        return "".join(output.get("text", "") for output in outputs)


def notebook_of(home: Workspace, run_id: str) -> Path:
    folder = RunFolder.of(home, run_id).path
    wait_for(lambda: list(folder.glob("*.ipynb")))
    (path,) = folder.glob("*.ipynb")
    return path


@pytest.mark.slow(60)
@pytest.mark.long
@pytest.mark.parametrize("mirror", ["folder", "s3"])
def test_notebook_that_is_killed_twice_gives_the_weights_of_a_local_run(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str
) -> None:
    with s3_server() as url:
        secrets = {}
        address = f"file://{tmp_path}/mirror"
        if mirror == "s3":
            address = f"s3://{BUCKET}/studio"
            secrets = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key",
                       "AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
            for name, value in secrets.items():
                monkeypatch.setenv(name, value)
        steps = 8000 if mirror == "folder" else 1000
        options = {"num_train_steps": steps, "eval_steps": steps, "save_steps": 500}
        remote = config("notebook://", "remote", mirror=address, **options)
        run_id = submit(home, "train", remote)
        path = notebook_of(home, run_id)
        wait_for(lambda: "ipynb" in str(row_of(home, run_id).remote.get("phase")))
        saved = tmp_path / "mirror/runs" / run_id / "incarnations"
        for number in (1, 2) if mirror == "folder" else ():
            opened = OpenNotebook(path, tmp_path / f"session{number}", secrets)
            pattern = f"{number:06}/checkpoints/*/manifest.json"
            wait_for(lambda pattern=pattern: list(saved.glob(pattern)))
            opened.kill()
        printed = OpenNotebook(path, tmp_path / "session3", secrets).finish()
        assert "studio: prepared" in printed
        row = wait_until_ended(home, run_id)
    assert (row.state, row.error) == ("done", None)
    assert row.remote["incarnation"] == (3 if mirror == "folder" else 1)
    local = submit(home, "train", config("", "local", **options))
    assert wait_until_ended(home, local).state == "done"
    assert weights(home, "local") == weights(home, "remote")


@pytest.mark.slow(20)
@pytest.mark.long
def test_run_in_a_notebook_is_stopped_from_here(home: Workspace, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/mirror"
    remote = config("notebook://any", "remote", mirror=address, num_train_steps=10**6)
    run_id = submit(home, "train", remote)
    opened = OpenNotebook(notebook_of(home, run_id), tmp_path / "session", {})
    wait_for(lambda: last_step(home, run_id) > 0)
    request_stop(home, run_id)
    opened.finish()
    row = wait_until_ended(home, run_id)
    assert (row.state, row.reason, row.error) == ("stopped", "saved", None)
