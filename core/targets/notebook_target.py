"""A notebook that a person opens in Colab, Kaggle or any Jupyter, as a place for runs.

A launch writes the notebook; nothing is started from here. Whoever runs it reports to the mirror,
which needs credentials that come from the notebook's own secrets. A notebook that is run again goes
on from the newest checkpoint, as a further incarnation of the same launch.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from core.config.targets import NOTEBOOK_ACCELERATORS
from core.errors import ConfigError
from core.targets.bootstrap import EXIT_AGAIN
from core.targets.code import bootstrap_source
from core.targets.opening import open_store
from core.targets.target import Job, Machine, MirrorRoot, Status
from core.workspace.atomic import write_atomically
from core.workspace.names import LONGEST_PATH_BYTES, has_control

_SCRIPT = "pretrain_studio_bootstrap.py"
_BUCKETS = ("hf", "gs", "s3")
# Secrets that a mirror needs, and the packages by which the code is fetched from it.
_SECRETS = {
    "hf": ("HF_TOKEN",),
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"),
}
_PACKAGES = {"gs": "gcsfs", "s3": "s3fs"}
_DRIVE = "/content/drive"
# Colab's names.
_RUNTIMES = {"gpu": {"accelerator": "GPU"}, "tpu": {"accelerator": "TPU"}}
_ABOUT = """\
# Train {run}

Run all cells{runtime}. The run appears in the Runs tab of Pretrain Studio, and can be stopped
there. If the session ends, open this notebook again and run it: training goes on from the newest
checkpoint.

It reports to <code>{mirror}</code>.{secrets}"""
_COLAB_LOGIN = """
try:
    from google.colab import auth
except ImportError:
    pass
else:
    auth.authenticate_user()
"""
_COLAB_DRIVE = """
from google.colab import drive

drive.mount("/content/drive")
"""
_PIP = """
try:
    import {package}
except ImportError:
    pip("{package}")
"""


class NotebookTarget:
    """`notebook://[any|gpu|tpu][?folder=PATH]`.

    With `folder`, the notebook sees the mirror's folder as a mounted one.
    """

    creates_machines = False
    carries_secrets = False
    hosts = 1

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        query = parse_qs(parts.query, keep_blank_values=True)
        self._accelerator = parts.netloc or NOTEBOOK_ACCELERATORS[0]
        self._folder = query.get("folder", [""])[0]
        is_valid = (
            self._accelerator in NOTEBOOK_ACCELERATORS
            and not parts.path.strip("/")
            and not parts.fragment
            and not set(query) - {"folder"}
            and ("folder" not in query or _is_path(self._folder))
        )
        if not is_valid:
            raise ConfigError(
                "That can't be the address of a notebook",
                expected=" or ".join(f"notebook://{name}" for name in NOTEBOOK_ACCELERATORS)
                + ", perhaps with ?folder=/absolute/path, the mirror's folder as the notebook sees "
                "it",
                received=address[:200],
                fix="correct the address",
                field="target",
            )
        self.address = address

    def check(self) -> str:
        needed = "" if self._accelerator == "any" else f" with a {self._accelerator.upper()}"
        return f"a notebook{needed}, which you open and run"

    def mirror_root(self, asked: str) -> MirrorRoot:
        """Returns the asked bucket, or a folder here and where the notebook sees it."""
        scheme = urlsplit(asked).scheme
        if scheme not in (*_BUCKETS, "file") or (self._folder and scheme != "file"):
            raise ConfigError(
                "The notebook can't reach this mirror",
                expected="hf://buckets/OWNER/NAME, gs://BUCKET, s3://BUCKET or file:///FOLDER, "
                "the last one with ?folder=PATH in the target if the notebook sees it elsewhere",
                received=asked[:200] or "none",
                fix="name a bucket that you can write to",
                field="mirror",
            )
        open_store(asked)
        return MirrorRoot(asked, f"file://{quote(self._folder)}" if self._folder else asked)

    def price_per_hour(self) -> float | None:
        return None

    def launch(self, job: Job) -> Machine:
        path = Path(job.folder) / f"{job.name}.ipynb"
        notebook = make_notebook(job, self._accelerator)
        write_atomically(path, json.dumps(notebook, indent=1) + "\n")
        return Machine(self.address, str(path), job.run_id, job.launch)

    def find(self, run_id: str, launch: int) -> Machine | None:
        return None  # It would be written again, to the same file.

    def state(self, machine: Machine) -> Status:
        return Status("unseen", f"open {machine.id} in Colab, Kaggle or Jupyter and run it")

    def log(self, machine: Machine) -> str:
        return ""

    def cancel(self, machine: Machine) -> None:
        """Does nothing: the request to stop is in the mirror, also for one that is run later."""

    def list_machines(self) -> list[Machine]:
        return []


def make_notebook(job: Job, accelerator: str) -> dict[str, Any]:
    """Returns a notebook (format 4.5) that executes a job."""
    scheme = urlsplit(job.mirror).scheme
    secrets = _SECRETS.get(scheme, ())
    is_any = accelerator == "any"
    about = _ABOUT.format(
        run=job.run_id,
        runtime="" if is_any else f", with a {accelerator.upper()} as the runtime's accelerator",
        mirror=html.escape(job.mirror),
        secrets=f"\nSecrets that it needs: {', '.join(secrets[:2])}." if secrets else "",
    )
    package = _PACKAGES.get(scheme)
    before = _PIP.format(package=package) if package else ""
    before += _COLAB_LOGIN if scheme == "gs" else ""
    before += _COLAB_DRIVE if job.mirror.startswith(f"file://{_DRIVE}/") else ""
    install = (
        Path(__file__)
        .with_name("notebook_install.txt")
        .read_text("utf-8")
        .format(
            arguments=repr([*job.arguments, "--notebook", accelerator]),
            secrets=repr(list(secrets)),
            script=_SCRIPT,
            again=EXIT_AGAIN,
            before=before,
        )
    )
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
            **_RUNTIMES.get(accelerator, {}),
        },
        "cells": [
            _cell("about", about),
            _cell("program", f"%%writefile {_SCRIPT}\n{bootstrap_source()}", is_folded=True),
            _cell("install", install),
            _cell("run", "# Run: trains, and goes on where it ended.\nrun()"),
        ],
    }


def _cell(name: str, source: str, *, is_folded: bool = False) -> dict[str, Any]:
    shown = {"jupyter": {"source_hidden": True}, "cellView": "form"} if is_folded else {}
    cell = {"id": name, "metadata": shown, "source": source}
    if name == "about":
        return {"cell_type": "markdown", **cell}
    return {"cell_type": "code", "execution_count": None, "outputs": [], **cell}


def _is_path(path: str) -> bool:
    return path.startswith("/") and len(path) <= LONGEST_PATH_BYTES and not has_control(path)
