"""Messages to webhooks: their events, formats and limits, and that the address stays secret."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.config.options import field_extra
from core.config.train import TrainConfig
from core.config.values import changed_values
from core.errors import ConfigError, StudioError
from core.messages.redaction import HIDDEN, redact, redact_forms
from core.network.outbound import ALLOWED_HOSTS_VARIABLE, TYPED_HOSTS_VARIABLE
from core.records.events import FolderReporter
from core.records.folder import RunFolder, RunRecord, carried_environment
from core.reporting import webhook
from core.reporting.reporter import WebhookReporter
from core.runs.commands import shell_line
from core.workspace.workspace import Workspace
from tests.core.reporting.support import Hook, receiving
from tests.core.runs.support import begin_run, stop_worker, wait_for

SECRET = "very-secret-part"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setenv(TYPED_HOSTS_VARIABLE, "")
    monkeypatch.setattr(webhook, "_RETRY_SECONDS", (0.0, 0.0, 0.0))
    with receiving() as found:
        monkeypatch.setenv(ALLOWED_HOSTS_VARIABLE, found.url.removeprefix("http://"))
        yield found


def reporter_of(folder: RunFolder, hook: Hook, **config: Any) -> WebhookReporter:
    record = RunRecord(id="train-one", stage="train", config={"name": "model", **config})
    return WebhookReporter(folder, record, f"{hook.url}/{SECRET}")


def begin(tmp_path: Path) -> tuple[RunFolder, FolderReporter]:
    return begin_run(Workspace(tmp_path), "train-one")


def test_end_preemption_alert_and_limit_are_told_once(tmp_path: Path, hook: Hook) -> None:
    folder, run = begin(tmp_path)
    reporter = reporter_of(folder, hook)
    run.warn("The loss jumped", alert="loss_spike", step=3)
    run.warn("The warm-up is long")  # No alert.
    run.event("finished", state="stopped", reason="preempted")
    run.event("remote", phase="training")
    run.event("remote", phase="preempted")
    run.event("finished", state="stopped", reason="saved")  # The user's own stop.
    run.event("finished", state="stopped", reason="limit")
    run.event("finished", state="done", reason="", results={"eval_loss": 2.5, "name": "x"})
    reporter.feed.read()
    reporter.handle()
    told = [(one["event"], one["message"]) for one in hook.messages]
    assert [event for event, _ in told] == ["alert", "preempted", "preempted", "limit", "done"]
    states = [one["state"] for one in hook.messages]
    assert states == ["running", "queued", "running", "stopped", "done"]
    assert told[0][1] == "The loss jumped" and "eval_loss 2.5" in told[-1][1]
    assert hook.messages[-1]["figures"] == {"eval_loss": 2.5}
    assert {one["run"] for one in hook.messages} == {"train-one"}
    again = reporter_of(folder, hook)
    again.feed.read()
    again.handle()
    again.finish()
    assert len(hook.messages) == len(told)


def test_results_of_a_task_are_told_beside_their_baselines() -> None:
    results = {"eval_loss": 0.5, "labels": ["a"], "accuracy": 0.83219, "accuracy_std": 0.1,
               "majority_accuracy": 0.5, "random_init_accuracy": 0.786, "f1": 0.25}  # fmt: skip
    message = webhook.message_of({"kind": "finished", "state": "done", "results": results})
    assert message is not None and message.text == (
        "Done. accuracy 0.8322 (random weights 0.786, majority 0.5), f1 0.25, eval_loss 0.5"
    )
    measured = {"accuracy": 0.75, "pairs": 8}
    message = webhook.message_of({"kind": "finished", "state": "done", "results": measured})
    assert message is not None and message.text == "Done. accuracy 0.75"


def test_failure_and_a_killed_process_are_told(tmp_path: Path, hook: Hook) -> None:
    folder, run = begin(tmp_path)
    reporter = reporter_of(folder, hook)
    error = StudioError("The disk is full", fix="free some space").to_dict()
    run.event("finished", state="failed", reason="disk_full", error=error)
    run.event("started", stage="train", process={"pid": 1})
    reporter.feed.read()
    reporter.handle()
    folder.write_exit(None, 9)
    reporter.finish()
    assert [one["event"] for one in hook.messages] == ["failed"]  # Of this attempt alone.
    assert "signal 9" in hook.messages[0]["message"]
    assert hook.messages[0]["state"] == "failed"
    run.event("finished", state="failed", reason="disk_full", error=error)
    reporter.feed.read()
    reporter.handle()
    assert "What to do: free some space." in hook.messages[1]["message"]


def test_alerts_are_limited_in_number(tmp_path: Path, hook: Hook) -> None:
    folder, run = begin(tmp_path)
    for step in range(30):
        run.warn("again", alert="loss_spike", step=step)
    run.event("finished", state="done", reason="", results={})
    reporter = reporter_of(folder, hook)
    reporter.feed.read()
    reporter.handle()
    assert [one["event"] for one in hook.messages] == ["alert"] * webhook.MOST_ALERTS + ["done"]


def test_json_has_the_fields_that_the_option_and_the_docs_promise() -> None:
    message = webhook.message_of({"kind": "finished", "state": "done", "results": {}})
    assert message is not None
    body = webhook.payload(message, "train-one", "m", "json")
    field = TrainConfig.model_fields["webhook_format"]
    promised = field_extra(field)["options"]["json"][1].removeprefix("an object with ")
    assert set(re.split(", | and ", promised)) <= set(body)
    page = (Path(__file__).parents[3] / "docs" / "reporting.md").read_text("utf-8")
    (example,) = re.findall(r"^```json\n(.*?)^```$", page, re.M | re.S)
    assert set(json.loads(example)) == set(body)


@pytest.mark.parametrize(
    ("address", "format", "key"),
    [
        ("https://hooks.slack.com/services/T/B/X", "auto", "text"),
        ("https://discord.com/api/webhooks/1/abc", "auto", "content"),
        ("https://example.com/x", "auto", "event"),
        ("https://hooks.slack.com.example.com/x", "auto", "event"),
        ("https://example.com/x", "slack", "text"),
    ],
)
def test_format_is_chosen_by_the_host_or_the_option(address: str, format: str, key: str) -> None:
    message = webhook.Message("failed", "failed", "a <b> @everyone " + "x" * 3000, {})
    body = webhook.payload(message, "train-one", "m", webhook.format_of(address, format))
    assert key in body and max(map(len, map(str, body.values()))) < 2000
    if key == "text":
        assert body["text"].startswith("m (train-one): a &lt;b&gt; @everyone")
    if key == "content":
        assert body["allowed_mentions"] == {"parse": []}


def test_delivery_is_retried_and_its_failure_noted_without_the_address(
    tmp_path: Path, hook: Hook
) -> None:
    folder, run = begin(tmp_path)
    run.event("finished", state="done", reason="", results={})
    hook.statuses = [500, 429]
    reporter = reporter_of(folder, hook)
    reporter.feed.read()
    reporter.handle()
    assert len(hook.messages) == 3 and not folder.log.exists()
    hook.statuses = [404]
    run.event("finished", state="done", reason="", results={})
    reporter.feed.read()
    reporter.handle()
    assert (
        folder.log.read_text() == "note: reporting to webhook: done was not delivered: HTTP 404\n"
    )


def test_redirect_is_not_followed_and_local_addresses_are_refused(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as inner:
        hook.statuses, hook.location = [302, 307], f"{hook.url}/other"
        assert "redirect" in webhook.send(f"{hook.url}/{SECRET}", {})
        hook.location = inner.url
        assert "not allowed" in webhook.send(f"{hook.url}/{SECRET}", {})
        assert len(hook.messages) == 2
        monkeypatch.setenv(ALLOWED_HOSTS_VARIABLE, "")
        local, plain = f"https://localhost:1/{SECRET}", f"http://1.1.1.1/{SECRET}"
        for url in (f"{inner.url}/{SECRET}", local, plain):
            problem = webhook.send(url, {})
            assert "not allowed" in problem and SECRET not in problem
        assert webhook.send(f"https://[x/{SECRET}", {}) == "the address is not valid"
        assert not inner.messages


def test_address_that_does_not_answer_is_a_problem_without_the_address(hook: Hook) -> None:
    hook.close()
    problem = webhook.send(f"{hook.url}/{SECRET}", {})
    assert "doesn't answer" in problem and SECRET not in problem


def test_address_is_in_no_stored_or_shown_config() -> None:
    config = TrainConfig(shards="rows", webhook=f"https://example.com/{SECRET}")
    for text in (
        json.dumps(changed_values(config)),
        shell_line("train", config),
        config.without_secrets().model_dump_json(),
        config.fingerprint(),
    ):
        assert SECRET not in text
    with pytest.raises(ConfigError) as caught:
        TrainConfig(shards="rows", webhook=f"ftp://example.com/{SECRET}")
    assert caught.value.received == HIDDEN
    assert SECRET not in f"{caught.value} {caught.value.__cause__}"


def test_address_of_the_environment_is_redacted_and_not_carried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"https://example.com/{SECRET}"
    monkeypatch.setenv("STUDIO_WEBHOOK_URL", url)
    assert SECRET not in redact(f"failed at {url}")
    assert not [one for one in carried_environment(os.environ).values() if SECRET in one]
    given = {"WANDB_API_KEY": "k", "MLFLOW_TRACKING_URI": "https://me:word@host", "WANDB_MODE": "x"}
    assert carried_environment(given) == {"WANDB_MODE": "x"}
    for text in (f"https://hooks.slack.com/services/{SECRET}", f"/api/webhooks/12345678/{SECRET}"):
        assert SECRET not in redact_forms(text)


@pytest.mark.long
@pytest.mark.slow(6)
def test_typed_address_is_told_and_stored_nowhere(tmp_path: Path, hook: Hook) -> None:
    """A training that fails at once, from the command line."""
    workspace = Workspace(tmp_path / "workspace")
    with workspace.new_artifact("shards", "damaged") as draft:
        (draft.folder / "manifest.json").write_text("{")
    command = [
        sys.executable, "-m", "core", "train", "--shards", "damaged", "--workspace",
        str(workspace.root), "--webhook", f"{hook.url}/{SECRET}", "--webhook-format", "slack",
    ]  # fmt: skip
    environment = {**os.environ, ALLOWED_HOSTS_VARIABLE: ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and SECRET not in done.stdout + done.stderr
    wait_for(lambda: hook.messages)
    stop_worker(workspace)
    assert hook.messages[0]["path"] == f"/{SECRET}" and "Failed: " in hook.messages[0]["text"]
    files = [path for path in workspace.root.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("address", ["http://example.com/x", "http://127.0.0.1.example.com/x"])
def test_address_without_encryption_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="begins with https"):
        TrainConfig(shards="rows", webhook=address)
    assert TrainConfig(shards="rows", webhook="http://localhost:8080/x").webhook
