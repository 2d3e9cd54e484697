"""Uploads checkpoints to the Hub; failures never fail the run."""

from __future__ import annotations

import os
import shlex
import shutil
import threading
from contextlib import suppress
from pathlib import Path

from core.artifacts.checkpoint import ARRAYS_FILE
from core.config.train import TrainConfig
from core.errors import StudioError
from core.hub.client import LOG_IN, is_signed_in, without_secrets
from core.network.hub_ids import flaw_of_hub_id
from core.publishing.bundle import model_bundle
from core.publishing.card_notes import CardNotes
from core.publishing.facts import gather_facts
from core.publishing.push import Repository, make_public, resolve_repo_id, upload
from core.records.events import Reporter, RunStopped, StopMode
from core.workspace.manifests import Artifact
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

_HELD_FOLDER = "uploading"
_SHOWN_FILE = "hub.shown"
_POLL_SECONDS = 0.2


class _Listener(Reporter):
    """Forwards no progress, which would replace the run's steps."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def stop_requested(self) -> StopMode | None:
        return self._reporter.stop_requested()


class Uploads:
    """Uploads a run's checkpoints in a thread."""

    def __init__(
        self, config: TrainConfig, workspace: Workspace, folder: Path, name: str, reporter: Reporter
    ) -> None:
        self._config = config
        self._workspace = workspace
        self._folder = folder
        self._wanted = config.hub_model_id or name
        self._reporter = reporter
        self._held = folder / _HELD_FOLDER
        self._saves = 0
        self._failed = False
        self._not_shown = False
        self._waiting: Path | None = None
        self._closed = False
        self._given_up = False
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        shutil.rmtree(self._held, ignore_errors=True)
        if flaw := flaw_of_hub_id(self._wanted):
            reporter.warn(
                f"The id {self._wanted} is not a valid Hub id ({flaw}), so nothing is uploaded. "
                "What to do: start the run again with another --hub-model-id, or push the model "
                "later",
                alert="upload_failed",
            )
        if not is_signed_in():
            reporter.warn(
                "You are not signed in to the Hugging Face Hub, so nothing is uploaded. What to "
                f"do: {LOG_IN}; uploads begin at the next save",
                alert="upload_failed",
            )

    def offer(self, checkpoint: Path) -> None:
        """Queues a checkpoint for upload if due."""
        self._saves += 1
        every = self._config.hub_every_saves
        if not every or (self._saves % every and not self._failed):
            return
        try:
            held = self._hold(checkpoint)
        except OSError as error:
            self._warn(f"{checkpoint.name} could not be copied for the upload ({error.strerror})")
            return
        with self._news:
            older, self._waiting = self._waiting, held
            self._thread = self._thread or self._start()
            self._news.notify()
        if older:
            shutil.rmtree(older, ignore_errors=True)

    def finish(self, model: Artifact) -> None:
        """Uploads the final model, and waits."""
        self._end()
        steps = model.manifest.counts["num_train_steps"]
        self._reporter.progress(steps, steps, "steps", "uploading to the Hub")
        while self._thread and self._thread.is_alive() and not self._reporter.stop_requested():
            self._thread.join(_POLL_SECONDS)
        if not self._push(model.path, "Push the best checkpoint", _Listener(self._reporter)):
            self._reporter.warn(
                f"Push it later with: {self._command(model)}", alert="upload_failed"
            )
        self.close()

    def close(self) -> None:
        """Cancels pending uploads."""
        self._given_up = True
        self._end()
        shutil.rmtree(self._held, ignore_errors=True)

    def _end(self) -> None:
        with self._news:
            self._closed = True
            self._waiting = None
            self._news.notify()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, daemon=True, name="uploads")
        thread.start()
        return thread

    def _work(self) -> None:
        while True:
            with self._news:
                while self._waiting is None and not self._closed:
                    self._news.wait()
                if self._closed:
                    return
                held, self._waiting = self._waiting, None
            assert held is not None
            message = f"Push {held.name.rpartition('.')[0]}"
            self._failed = not self._push(held, message, Reporter())
            shutil.rmtree(held, ignore_errors=True)

    def _push(self, folder: Path, message: str, reporter: Reporter) -> bool:
        """Turns any error into a warning."""
        try:
            self._wanted = self._wanted if "/" in self._wanted else resolve_repo_id(self._wanted)
            repository = Repository(self._wanted, "model", self._config.hub_private_repo)
            notes = CardNotes(repository.id, license=self._config.hub_license)
            facts = gather_facts(folder, self._workspace, self._folder)
            commit = upload(model_bundle(facts, notes), repository, message, reporter)
        except RunStopped:
            self._warn("the run was asked to stop")
        except StudioError as error:
            self._warn(str(error))
        except Exception as error:  # noqa: BLE001 -- nothing that happens here is worth a run
            self._warn(f"{type(error).__name__}: {without_secrets(str(error))}")
        else:
            step = int(facts.figures.get("best_step", 0))
            self._show(repository)
            self._reporter.event("pushed", url=repository.url, commit=commit, step=step)
            self._reporter.note(f"{message}: uploaded to {repository.url}")
            return True
        return False

    def _show(self, repository: Repository) -> None:
        """Publishes once; a later change by the user stays."""
        mark = self._folder / _SHOWN_FILE
        if repository.private or mark.exists():
            return
        try:
            make_public(repository)
        except Exception as error:  # noqa: BLE001 -- what was sent is there all the same
            if not self._not_shown:
                problem = f"{repository.url} is not public: {without_secrets(str(error))}"
                self._reporter.warn(problem, alert="upload_failed")
            self._not_shown = True
            return
        with suppress(OSError):
            mark.touch()

    def _hold(self, checkpoint: Path) -> Path:
        """Hard-links files, so that the run may delete the checkpoint."""
        held = self._held / f"{checkpoint.name}.{self._saves}"
        make_folder(held.parent)
        held.mkdir()
        for path in checkpoint.iterdir():
            if path.name != ARRAYS_FILE:
                os.link(path, held / path.name)
        return held

    def _warn(self, problem: str) -> None:
        if not self._given_up:
            self._reporter.warn(
                f"The upload to the Hub failed; training continues: {problem}",
                alert="upload_failed",
            )

    def _command(self, model: Artifact) -> str:
        words = ["python", "-m", "core", "push", "--model", model.name, "--repo-id", self._wanted]
        words += [] if self._config.hub_private_repo else ["--no-private"]
        return shlex.join(words)
