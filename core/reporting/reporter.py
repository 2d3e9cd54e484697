"""Reports one run to one service: `python -m core.reporting.reporter FOLDER SERVICE`.

It reads the run's events and never writes to them, so that it can't disturb the run; a problem
becomes a note in the run's log. A webhook's address comes through standard input.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.errors import StudioError
from core.messages.redaction import hide_secrets_in_output, redact_values
from core.network.outbound import distrust_callers
from core.processes.environment import WEBHOOK_VARIABLE
from core.records.folder import RunFolder, RunRecord
from core.reporting import webhook
from core.reporting.feed import Feed, Figures
from core.reporting.lifecycle import Lifecycle
from core.reporting.service import (
    PROJECT,
    ReportedRun,
    ReportingError,
    Service,
    open_service,
    shorten,
)
from core.reporting.start import WEBHOOK, note
from core.stages.registry import load_further_stages
from core.workspace.locks import file_lock
from core.workspace.places import guarding_workspaces, private_files
from core.workspace.workspace import Workspace

_POLL_SECONDS = 1.0
_BATCH_EVENTS = 500
_NICENESS = 10
# Waits before another try; then the service is given up.
_RETRY_SECONDS = (2.0, 10.0, 30.0, 60.0)
# Limit for a service's last uploads.
_FINISHING_SECONDS = 300.0
_LONGEST_NOTE = 400
# `core.messages.redaction` hides the values of variables with such names.
_TYPED_VARIABLE = "TYPED_WEBHOOK"


class RunReporter:
    """Sends a run's figures to a service."""

    def __init__(self, folder: RunFolder, record: RunRecord, name: str) -> None:
        self._folder = folder
        self._record = record
        self._name = name
        self.feed = Feed(folder, name)
        self._service: Service | None = None
        self._last: dict[str, Any] = {}
        # Number of events at hand, their metrics that were sent, and those that never can be.
        self._batch = 0
        self._sent: set[str] = set()
        self._refused: set[str] = set()

    def handle(self) -> None:
        """Sends the figures of the events read; raises what the service raises."""
        # A repeated batch stays the same, as some of its metrics may be sent.
        while some := self.feed.unsent[: self._batch or _BATCH_EVENTS]:
            self._batch = len(some)
            figures = [
                event_figures for event in some if (event_figures := self.feed.figures_of(event))
            ]
            if figures:
                self._send(figures)
            ends = [event for event in some if event["kind"] == "finished"]
            self._last = ends[-1] if ends else self._last
            self.feed.mark_sent(len(some))
            self._batch = 0

    def _send(self, figures: Sequence[Figures]) -> None:
        """Sends figures; one metric's failure doesn't keep the others from being sent."""
        service = self._open()
        names = dict.fromkeys(name for event_figures in figures for name in event_figures.values)
        left = [name for name in names if name not in self._sent | self._refused]
        failure: Exception | None = None
        if not (self._sent or self._refused or service.sends_in_part):
            try:
                service.send(figures)
                left = []
            except Exception as error:  # noqa: BLE001 -- the service's packages may raise anything
                failure = error
        for name in left:
            try:
                service.send(_only(figures, name))
                self._sent.add(name)
            except Exception as error:  # noqa: BLE001 -- as above
                failure = error
        if failure is not None and not self._sent.issuperset(left):
            raise failure
        self._sent.clear()

    def give_up_metrics(self) -> list[str]:
        """Leaves out the metrics that can't be sent; returns [] if none can be sent."""
        if not self._sent:
            return []
        events = self.feed.unsent[: self._batch]
        figures = [
            event_figures for event in events if (event_figures := self.feed.figures_of(event))
        ]
        names = {name for event_figures in figures for name in event_figures.values}
        given_up = sorted(names - self._sent - self._refused)
        self._refused.update(given_up)
        return given_up

    def _open(self) -> Service:
        if self._service is None:
            self._service = open_service(self._name, self._run())
            self.feed.progress.reference = self._service.reference
            note(self._folder, self._name, self._service.place)
        return self._service

    def _run(self) -> ReportedRun:
        config, run = self._record.config, self._record.id
        name = str(config.get("name") or "")
        store = self._folder.path.parent.parent / "reports"
        return ReportedRun(
            id=run,
            name=f"{name}-{run[-4:]}" if name else run,
            project=str(config.get("project") or PROJECT),
            settings=redact_values(config),
            reference=self.feed.progress.reference,
            store=store,
        )

    def finish(self) -> None:
        results = self.feed.results_of(self._last) if self._last else None
        if self._service or results:
            self._open().finish(str(self._last.get("state") or "failed"), results)


def _only(figures: Sequence[Figures], name: str) -> list[Figures]:
    return [
        replace(event_figures, values={name: event_figures.values[name]})
        for event_figures in figures
        if name in event_figures.values
    ]


class WebhookReporter:
    """Sends messages about a run to a webhook."""

    def __init__(self, folder: RunFolder, record: RunRecord, url: str) -> None:
        self._folder = folder
        self._record = record
        self._url = url
        self.feed = Feed(folder, WEBHOOK)
        self._format = webhook.format_of(url, str(record.config.get("webhook_format") or "auto"))
        self._is_told = False

    def handle(self) -> None:
        """Sends the messages about the events read."""
        if self.feed.progress.number == 0:
            self._skip_earlier_attempts()
        while self.feed.unsent:
            event = self.feed.unsent[0]
            if message := webhook.message_of(event):
                self._tell(message)
            self._is_told = event["kind"] == "finished"
            self.feed.mark_sent(1)

    def _skip_earlier_attempts(self) -> None:
        """Leaves out what happened before the run had a webhook."""
        kinds = [event["kind"] for event in self.feed.unsent]
        if "started" in kinds:
            self.feed.mark_sent(len(kinds) - 1 - kinds[::-1].index("started"))

    def _tell(self, message: webhook.Message) -> None:
        if message.event == "alert":
            self.feed.progress.alerts += 1
            if self.feed.progress.alerts > webhook.MOST_ALERTS:
                return
        name = str(self._record.config.get("name") or "")
        body = webhook.payload(message, self._record.id, name, self._format)
        if problem := webhook.send(self._url, redact_values(body)):
            note(self._folder, WEBHOOK, f"{message.event} was not delivered: {problem}")

    def give_up_metrics(self) -> list[str]:
        """Returns []: messages are sent one by one."""
        return []

    def finish(self) -> None:
        """Tells of a run that ended without saying so."""
        exited = self._folder.read_exit() or {}
        is_killed = exited.get("signal") and not self._folder.stop_file.exists()
        if is_killed and not self._is_told:
            text = f"Failed: the process was ended by signal {exited['signal']}"
            self._tell(webhook.Message("failed", "failed", text, {}))


def report(folder: RunFolder, reporter: RunReporter | WebhookReporter, name: str) -> None:
    """Reports until the run has ended, or the service has failed too often."""
    ended, finished = threading.Event(), threading.Event()
    lifecycle = Lifecycle(folder, Workspace(folder.path.parent.parent))
    watch = threading.Thread(target=_watch, args=(lifecycle, ended, finished), daemon=True)
    watch.start()
    try:
        if _report(folder, reporter, name, ended):
            reporter.finish()
    except Exception as error:  # noqa: BLE001 -- the service's packages may raise anything
        traceback.print_exc()
        note(folder, name, f"not finished: {_described(error)}")
    finally:
        finished.set()


def _report(
    folder: RunFolder, reporter: RunReporter | WebhookReporter, name: str, ended: threading.Event
) -> bool:
    """Sends events until the run's end; returns False if the service was given up."""
    failures = 0
    while True:
        is_over = ended.is_set()
        reporter.feed.read()
        try:
            reporter.handle()
            failures = 0
        except ReportingError as error:
            note(folder, name, str(error))
            return False
        except Exception as error:  # noqa: BLE001 -- as above
            traceback.print_exc()
            if failures >= len(_RETRY_SECONDS):
                given_up = reporter.give_up_metrics()
                what = f" only {', '.join(given_up)}" if given_up else ""
                note(folder, name, f"given up{what}: {_described(error)}")
                if not given_up:
                    return False
                failures = 0
                continue
            note(folder, name, f"trying again after {_described(error)}")
            time.sleep(_RETRY_SECONDS[failures])
            failures += 1
            continue
        if is_over:
            return True
        ended.wait(_POLL_SECONDS)


def _watch(lifecycle: Lifecycle, ended: threading.Event, finished: threading.Event) -> None:
    """Sets `ended` at the run's end, and ends this process if the service hangs then."""
    while not lifecycle.has_ended():
        if finished.wait(_POLL_SECONDS):
            return
    ended.set()
    if not finished.wait(_FINISHING_SECONDS):
        print("given up: the service hangs after the run's end", file=sys.stderr, flush=True)
        os._exit(1)


def _described(error: Exception) -> str:
    text = " ".join(str(error).split())
    return shorten(f"{type(error).__name__}: {text}", _LONGEST_NOTE)


def _open(folder: RunFolder, name: str, typed: str) -> RunReporter | WebhookReporter | None:
    record = folder.read_record()
    if name != WEBHOOK:
        return RunReporter(folder, record, name)
    url = typed or os.environ.get(WEBHOOK_VARIABLE, "")
    return WebhookReporter(folder, record, url) if url else None


def main(arguments: list[str] | None = None) -> int:
    path, name = arguments or sys.argv[1:]
    typed = sys.stdin.read().strip() if name == WEBHOOK else ""
    if typed:
        os.environ[_TYPED_VARIABLE] = typed
    with suppress(OSError):
        os.nice(_NICENESS)
    folder = RunFolder(Path(path).absolute())
    load_further_stages()
    distrust_callers()
    try:
        with (
            guarding_workspaces(),
            private_files(folder.path.parent.parent),
            file_lock(folder.path / f"report-{name}.lock", wait=False) as held,
        ):
            if held and (reporter := _open(folder, name, typed)):
                report(folder, reporter, name)
    except StudioError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    hide_secrets_in_output(is_log=True)
    # Services' threads must not keep the process.
    code = main()
    sys.stderr.flush()
    os._exit(code)
