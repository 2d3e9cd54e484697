"""Tests of chains of stages, and of the number of concurrent runs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import CleanConfig, CorpusConfig, ShardConfig, TokenizerConfig, TrainConfig, Workspace
from core.__main__ import main
from core.cli.following import follow
from core.config.quickstart import QuickstartConfig
from core.errors import ConfigError, RunError
from core.records.events import FolderReporter
from core.records.folder import RunFolder, RunRecord
from core.runs.chain import link_stages, reserved_names, submit_chain
from core.runs.client import (
    _check_more_steps,
    choose_slots,
    ensure_worker,
    request_stop,
    resume_run,
    submit,
)
from core.runs.slots import SLOTS_VARIABLE, default_slots, get_slots, set_slots
from core.stages.quickstart import quickstart_stages
from core.store import RunRow, Store
from tests.core.runs.support import stop_worker, wait_for, wait_until_ended
from tests.texts import write_sentences


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "workspace")
    yield workspace
    stop_worker(workspace)


@pytest.fixture
def store(workspace: Workspace) -> Iterator[Store]:
    store = Store.open(workspace)
    yield store
    store.close()


def corpus_in(folder: Path, lines: int = 400) -> CorpusConfig:
    return CorpusConfig(source="files", path=str(write_sentences(folder / f"{lines}.txt", lines)))


def add_run(store: Store, run: str, state: str, stage: str = "tokenizer", **config: object) -> None:
    values = {**TokenizerConfig(vocab_size=80).model_dump(mode="json"), **config}
    row = RunRow(
        id=run, stage=stage, name="", state=state, config=values, after=[], created=1.0,
        warnings=[], results={},
    )  # fmt: skip
    store.add_run(row)


def test_each_stage_takes_the_artifact_of_the_previous_stage_as_input(workspace: Workspace) -> None:
    stages = [
        ("tokenizer", TokenizerConfig(vocab_size=80)),
        ("shards", ShardConfig(name="mine", max_seq_length=16)),
        ("train", TrainConfig()),
    ]
    tokenizer, shards, training = (config for _, config in link_stages(workspace, stages))
    assert tokenizer.name == "docs-unigram-80"
    assert (shards.tokenizer, shards.name) == ("docs-unigram-80", "mine")
    assert (training.shards, training.name) == ("mine", "")


def test_stages_after_cleaning_read_the_cleaned_corpus(workspace: Workspace) -> None:
    text = CorpusConfig(source="files", path="a.txt", limit=5)
    stages = [
        ("clean", CleanConfig(corpus=text)),
        ("tokenizer", TokenizerConfig(corpus=text, vocab_size=80)),
        ("shards", ShardConfig(corpus=text, name="mine", max_seq_length=16)),
        ("train", TrainConfig()),
    ]
    cleaning, tokenizer, shards, training = (config for _, config in link_stages(workspace, stages))
    assert (cleaning.corpus, cleaning.name) == (text, "a.txt-clean")
    for config in (tokenizer, shards):
        assert (config.corpus.source, config.corpus.corpus_name) == ("corpus", "a.txt-clean")
    assert (shards.tokenizer, training.shards) == (tokenizer.name, "mine")


def test_names_reserved_by_queued_runs_are_skipped(workspace: Workspace, store: Store) -> None:
    add_run(store, "unnamed", "queued")
    add_run(store, "named", "running", name="docs-unigram-80-2")
    add_run(store, "over", "failed", name="docs-unigram-80-3")
    stages = [("tokenizer", TokenizerConfig(vocab_size=80)), ("shards", ShardConfig())]
    [(_, tokenizer), _] = link_stages(workspace, stages)
    assert tokenizer.name == "docs-unigram-80-3"


def test_second_quickstart_skips_the_names_reserved_by_the_first(
    workspace: Workspace, store: Store
) -> None:
    for stage in ("tokenizer", "shards", "train"):
        add_run(store, stage, "queued", stage, name="quickstart")
    for stage in ("train", "push"):
        add_run(store, f"unnamed-{stage}", "running", stage)
    promised = reserved_names(workspace)
    stages = quickstart_stages(QuickstartConfig(), workspace, promised)
    tokenizer, shards, training = (config.model_dump() for _, config in stages)
    assert tokenizer["name"] == shards["tokenizer"] == "quickstart-2"
    assert shards["name"] == training["shards"] == "quickstart-2"
    assert training["name"] == "quickstart-2"


def test_interrupt_while_following_a_run_skips_the_next_runs(
    workspace: Workspace,
    store: Store,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_run(store, "waiting", "queued")
    add_run(store, "over", "stopped")

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("core.cli.following.Follower.until_the_end", interrupt)
    assert follow(workspace, "waiting", "over", as_json=False) == 130
    said = capsys.readouterr().err
    assert "waiting continues in the background" in said and "over" not in said
    add_run(store, "last", "queued")
    assert follow(workspace, "waiting", "over", "last", as_json=False) == 130
    said = capsys.readouterr().err
    assert "waiting and last continue in the background" in said and "runs stop last" in said


def test_chain_with_a_taken_name_is_refused_as_a_whole(workspace: Workspace, store: Store) -> None:
    add_run(store, "earlier", "queued", name="words")
    stages = [("tokenizer", TokenizerConfig(name="words")), ("shards", ShardConfig())]
    with pytest.raises(ConfigError, match=r"Tokenizer: .*'words' is taken") as error:
        submit_chain(workspace, stages)
    assert error.value.field == ""
    assert [row.id for row in store.list_runs()] == ["earlier"]


@pytest.mark.slow(3)
def test_stages_of_a_chain_run_in_order(workspace: Workspace, store: Store, tmp_path: Path) -> None:
    corpus = corpus_in(tmp_path)
    stages = [
        ("tokenizer", TokenizerConfig(corpus=corpus, vocab_size=80)),
        ("shards", ShardConfig(corpus=corpus, max_seq_length=16)),
    ]
    first, second = submit_chain(workspace, stages)
    assert store.find_run(second).after == [first]
    assert wait_until_ended(workspace, second).state == "done"
    [tokenizer], [shards] = workspace.list("tokenizer"), workspace.list("shards")
    assert shards.manifest.inputs["tokenizer"] == tokenizer.fingerprint


@pytest.mark.slow(3)
def test_after_option_makes_a_run_wait_for_another(
    workspace: Workspace, store: Store, tmp_path: Path
) -> None:
    corpus = corpus_in(tmp_path, 200_000)
    first = submit(workspace, "tokenizer", TokenizerConfig(corpus=corpus, vocab_size=80))
    arguments = ["shards", "--tokenizer", "words", "--workspace", str(workspace.root), "--detach"]
    assert main([*arguments, "--after", first[:-2]]) == 0
    [second] = store.list_runs(limit=1)
    assert (second.state, second.after) == ("queued", [first])
    assert main([*arguments, "--after", "nobody"]) == 1
    for run in (second.id, first):
        request_stop(workspace, run, "abort")


def test_slots_setting_of_the_workspace_overrides_defaults(
    workspace: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, "3")
    assert get_slots(store) == 3
    set_slots(store, 2)
    assert get_slots(store, default=5) == 2
    with pytest.raises(ConfigError, match="from 1 to 64"):
        set_slots(store, 0)


@pytest.mark.parametrize("text", ["0", "many", "-1", "65"])
def test_invalid_default_for_slots_is_reported_by_its_variable(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, text)
    with pytest.raises(ConfigError, match=SLOTS_VARIABLE):
        default_slots()


@pytest.mark.slow(5)
def test_more_slots_start_queued_runs(workspace: Workspace, store: Store, tmp_path: Path) -> None:
    config = TokenizerConfig(corpus=corpus_in(tmp_path, 400_000), vocab_size=80)
    runs = [submit(workspace, "tokenizer", config) for _ in range(2)]
    wait_for(lambda: store.find_run(runs[0]).state == "running")
    assert store.find_run(runs[1]).state == "queued"
    choose_slots(workspace, 2)
    wait_for(lambda: [store.find_run(run).state for run in runs] == ["running"] * 2, 20)
    with pytest.raises(RunError) as error:
        choose_slots(workspace, 99)
    assert error.value.expected == "a whole number from 1 to 64"
    for run in runs:
        request_stop(workspace, run, "abort")
        wait_until_ended(workspace, run)


def ended_training(run_id: str, **values: Any) -> RunRow:
    config = TrainConfig(shards="rows").model_dump(mode="json")
    fixed = {"stage": "train", "name": "m", "config": config, "created": 1.0}
    return RunRow(id=run_id, after=[], warnings=[], results={}, **fixed, **values)


def test_resuming_with_fewer_or_equal_steps_is_refused(workspace: Workspace, store: Store) -> None:
    store.add_run(ended_training("done", state="done", done=100, total=100, unit="steps"))
    for steps in (0, 50, 100):
        with pytest.raises((RunError, ConfigError)) as error:
            resume_run(workspace, "done", num_train_steps=steps)
        assert error.value.field == "num_train_steps"
    assert store.find_run("done").state == "done"


def test_fetched_bytes_do_not_count_as_steps() -> None:
    row = ended_training("cut-off", state="failed", done=1e9, total=5e9, unit="bytes")
    _check_more_steps(row, 2000)
    row.unit = "steps"
    with pytest.raises(RunError, match="5,000,000,000 steps"):
        _check_more_steps(row, 2000)


@pytest.mark.slow(3)
def test_alert_kind_is_stored_with_the_warning(workspace: Workspace, store: Store) -> None:
    folder = RunFolder.of(workspace, "run")
    config = TokenizerConfig().model_dump(mode="json")
    folder.write_record(RunRecord(id="run", stage="tokenizer", config=config))
    reporter = FolderReporter(folder.path, echo=False)
    reporter.warn("The loss jumped", alert="loss_spike", step=3)
    reporter.warn("A word on the side")
    reporter.close()
    folder.write_exit(None, signal.SIGKILL)
    store.add_request("register", {"run": "run"})
    ensure_worker(workspace)
    wait_for(lambda: store.get_run("run"))
    row = wait_until_ended(workspace, "run")
    assert [(one["alert"], one["number"]) for one in row.warnings] == [("loss_spike", 1), ("", 2)]


def test_json_output_holds_only_the_last_run_on_standard_output(
    workspace: Workspace, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("first", "second"):
        add_run(store, run, "done")
        store.update_run(run, artifact=f"/made/by/{run}")
    assert follow(workspace, "first", "second", as_json=True) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["artifact"] == "/made/by/second"
    assert "/made/by/first" in said.err


@pytest.mark.parametrize("count", ["0", "-5", "1.5", "1" + 20 * "0"])
def test_invalid_limit_or_line_count_is_refused(
    count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["list", "--limit", count], ["logs", "run", "--lines", count]):
        with pytest.raises(SystemExit) as ended:
            main(["runs", *command])
        assert ended.value.code == 2
        assert "whole number" in (said := capsys.readouterr().err) or "at most" in said
