"""Reports as self-contained HTML files, and the export and import of settings."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from core.__main__ import main
from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.errors import ConfigError, RunError
from core.report.page import _figures, report_page, write_report
from core.report.settings import read_settings, settings_file
from core.stages.registry import parse_stage_config
from core.store import RunRow, Store
from core.workspace.workspace import Workspace

CONFIG = TrainConfig(name="speaker", shards="rows", learning_rate=2e-3, num_train_steps=200)
NAME = '<img src="http://example.org/x.png" onerror="alert(1)">'


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def row(workspace: Workspace) -> RunRow:
    """A finished run with curves, in the database."""
    store = Store.open(workspace)
    store.add_run(
        RunRow(
            id="train-1", stage="train", name=NAME, state="done",
            config=CONFIG.model_dump(mode="json"), after=[], created=1.0,
            started=10.0, ended=200.0, warnings=[{"message": NAME}],
            results={"eval_loss": 4.5, "frequency_baseline_loss": 6.25, "parameters": 1_234_567},
        )
    )  # fmt: skip
    metrics = [
        {"number": step, "step": step, "name": name, "value": 6.0 - step / 100, "time": 1.0}
        for step in range(1, 101)
        for name in ("loss", "eval_loss", "learning_rate")
    ]
    store.ingest("train-1", metrics, [], {})
    row = store.find_run("train-1")
    store.close()
    return row


class Page(HTMLParser):
    """A page's tags, text and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attributes)
        self.addresses += [found[name] or "" for name in ("src", "href", "action") if name in found]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_report_shows_the_results_and_is_self_contained(
    workspace: Workspace, row: RunRow, tmp_path: Path
) -> None:
    path = write_report(workspace, "train-1", tmp_path / "report.html")
    text = path.read_text("utf-8")
    page = Page(text)
    for words in (
        "4.5", "1.75 nats below the unigram baseline (6.25)", "1,234,567", "took 3 min 10 s",
        NAME, "0.002", "python -m core train", "Loss", "Learning rate",
    ):  # fmt: skip
        assert words.lower() in page.words.lower(), words
    assert f"--name {NAME}" not in page.words, "a name is used once"
    assert page.addresses and all(one.startswith("data:image/svg+xml") for one in page.addresses)
    assert "script" not in page.tags and not re.search(r"@import|url\(", text)


def settings_in_report(
    workspace: Workspace, row: RunRow, stage: str, config: StageConfig
) -> dict[str, str]:
    row.stage, row.config = stage, config.model_dump(mode="json")
    text = report_page(workspace, Store.open(workspace), row)
    [section] = re.findall(r"<h2>Settings</h2>(.*?)</section>", text, re.DOTALL)
    return dict(re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', section))


def test_report_lists_the_settings_that_apply_including_zero_and_off(
    workspace: Workspace, row: RunRow
) -> None:
    corpus = CorpusConfig(source="files", path="/data/text.txt")
    found = settings_in_report(workspace, row, "tokenizer", TokenizerConfig(corpus=corpus))
    assert found["Path"] == "/data/text.txt" and "Dataset name" not in found
    config = TrainConfig(shards="rows", hidden_dropout_prob=0.0, hub_private_repo=False)
    found = settings_in_report(workspace, row, "train", config)
    assert (found["Dropout"], found["Seed"], found["Private repository"]) == ("0.0", "0", "no")


def test_report_of_a_restarted_run_counts_attempts_and_excludes_pauses(
    workspace: Workspace, row: RunRow
) -> None:
    events = [(10, "started"), (70, "progress"), (500_000, "started"), (500_011, "finished")]
    lines = [
        json.dumps({"n": number, "t": at, "kind": kind}, separators=(",", ":"))
        for number, (at, kind) in enumerate(events, start=1)
    ]
    folder = workspace.runs / row.id
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("\n".join(lines) + '\n{"n":5,"t":')
    row.started, row.ended, row.attempt = 500_000.0, 500_012.0, 2
    words = Page(report_page(workspace, Store.open(workspace), row)).words
    assert "began 1970-01-01 00:00 UTC · took 1 min 12 s · started 2 times" in words


def test_report_of_a_run_by_another_version_shows_its_raw_settings(
    workspace: Workspace, row: RunRow
) -> None:
    row.config = {"no_longer_a_setting": "kept"}
    page = Page(report_page(workspace, Store.open(workspace), row))
    assert "no_longer_a_setting" in page.words and "The same again" not in page.words


def test_stored_config_without_a_newer_preset_field_has_that_fields_default() -> None:
    stored = TrainConfig(preset="fast").model_dump(mode="json")
    assert stored.pop("output_bias") == "log_frequency"
    assert stored.pop("word_embeddings") == "cooccurrence"
    assert stored.pop("attention_kernels") == "neighbours"
    found = parse_stage_config("train", stored)
    assert isinstance(found, TrainConfig)
    assert (found.output_bias, found.word_embeddings) == ("zeros", "random")
    assert found.attention_kernels == "random"


def test_exported_settings_are_imported_without_the_name(row: RunRow) -> None:
    stage, config = read_settings(settings_file(row))
    assert stage == "train"
    assert config == CONFIG.model_copy(update={"name": ""})


@pytest.mark.parametrize("text", ["no json", "[1]", '{"learning_rate": 1}', '{"stage": 1}'])
def test_file_without_settings_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="doesn't contain the settings"):
        read_settings(text)


def test_settings_of_an_unknown_stage_or_field_are_refused() -> None:
    with pytest.raises(ConfigError, match="stage 'dance' is unknown"):
        read_settings('{"stage": "dance", "config": {}}')
    with pytest.raises(ConfigError, match="no field wings"):
        read_settings('{"stage": "train", "config": {"wings": 2}}')


def test_cli_exports_reports_and_reads_settings_back(
    workspace: Workspace, row: RunRow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--workspace", str(workspace.root)]
    settings, report = tmp_path / "settings.json", tmp_path / "report.html"
    assert main(["runs", "export", "train-1", "--output", str(settings), *place]) == 0
    assert main(["runs", "report", "train-1", "--output", str(report), *place]) == 0
    assert json.loads(settings.read_text())["config"]["learning_rate"] == 2e-3
    assert report.read_text().startswith("<!doctype html>")
    capsys.readouterr()
    assert main(["shards", "--config", str(settings), *place]) == 2
    assert "settings of train" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["export", "report"])
def test_missing_output_folder_is_a_one_line_error(
    workspace: Workspace,
    row: RunRow,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    action: str,
) -> None:
    place = ["--workspace", str(workspace.root), "--output", str(tmp_path / "no" / "file")]
    assert main(["runs", action, "train-1", *place]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "no") in line and "No such file or directory" in line


def test_report_of_an_unknown_run_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="run 'nothing' was not found"):
        write_report(workspace, "nothing", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_multi_line_results_are_not_shown_as_figures() -> None:
    results = {"card": "one\ntwo", "url": "https://hf.co/me/words", "commit": "", "bytes": 1200}
    assert list(_figures(results)) == [
        ("Address", "https://hf.co/me/words", ""),
        ("Size", "1,200", "bytes"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"stage": "train", "config": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"stage": "train", "config": {"learning_rate": 1e999}}',
        '{"stage": "train", "config": {"learning_rate": NaN}}',
        '{"stage": "train", "config": {"seed": ' + "1" * 5000 + "}}",
        '{"stage": "train", "config": {"name": "\\ud800"}}',
        '{"stage": "train", "config": {"seed": 1, "seed": 2}}',
        '{"stage": ["train"], "config": {}}',
    ],
    ids=[
        "nested",
        "infinite",
        "not a number",
        "huge",
        "lone surrogate",
        "twice",
        "list",
    ],
)
def test_invalid_settings_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_settings(text)
    assert len(str(error.value)) < 10_000
    str(error.value).encode("utf-8")
