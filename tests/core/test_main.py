"""The CLI: the order of its arguments, and helpful errors."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from core.__main__ import build_parser, main
from core.config.options import field_extra, help_of
from core.config.train import TrainConfig
from core.stages.registry import STAGES
from core.workspace.workspace import Workspace

TEXT = "Returns the [MASK]"


def refusal_of(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of the CLI's error for a refused command line."""
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(shlex.split(line))
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("command", ["fill-mask", "generate", "perplexity"])
@pytest.mark.parametrize(
    "words",
    [
        ["quickstart", TEXT],
        ["quickstart", "--dtype", "auto", TEXT],
        ["--dtype", "auto", "quickstart", TEXT],
        ["--model", "quickstart", TEXT],
        [TEXT, "--model", "quickstart"],
        ["--text", TEXT, "quickstart"],
        ["--model", "quickstart", "--text", TEXT],
        ["--workspace", "here", "quickstart", "--json", TEXT],
    ],
    ids=shlex.join,
)
def test_model_and_text_may_stand_anywhere_among_the_flags(command: str, words: list[str]) -> None:
    options = build_parser().parse_args([command, *words])
    assert (options.model, options.text) == ("quickstart", TEXT)


def test_text_may_start_with_a_dash() -> None:
    options = build_parser().parse_args(["fill-mask", "it", "--top-k", "3", "- a [MASK] here"])
    assert (options.model, options.text) == ("it", "- a [MASK] here")


def test_single_argument_is_the_model() -> None:
    options = build_parser().parse_args(["fill-mask", "quickstart", "--top-k", "3"])
    assert (options.model, options.text, options.top_k) == ("quickstart", "", 3)


@pytest.mark.parametrize(
    "words", ["a b c", "--model a b c", "--model a --text b c", "a --top-k 3 b c"]
)
def test_more_than_a_model_and_a_text_is_refused(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "one model and one text" in refusal_of(f"fill-mask {words}", capsys)


def test_unknown_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal_of("fill-mask quickstart --topk 3 text", capsys)
    assert "unrecognized arguments: --topk" in said


@pytest.mark.parametrize("command", ["clean", "tokenizer", "shards"])
@pytest.mark.parametrize("flag", ["--path", "--validation-path"])
def test_pattern_expanded_by_the_shell_is_explained(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = " ".join(f"data/{name}.txt" for name in "abcdef")
    said = refusal_of(f"{command} {flag} {files} --limit 5", capsys)
    assert "data/b.txt" in said and "data/f.txt" not in said
    assert f"quote a pattern, as in {flag} 'data/*.txt'" in said


@pytest.mark.parametrize("command", ["clean", "tokenizer", "shards"])
def test_help_recommends_quoting_a_pattern(command: str) -> None:
    corpus = STAGES[command].config.model_fields["corpus"].annotation
    help_text = help_of(corpus.model_fields["path"])
    assert "Quote a pattern on the command line: 'data/*.txt'" in help_text


@pytest.mark.parametrize("command", ["tokenizer", "shards", "train", "preflight", "suggest"])
def test_help_shows_the_defaults_of_the_preset(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")  # Prevents line breaks at hyphens.
    with pytest.raises(SystemExit):
        build_parser().parse_args([command, "--help-all"])
    said = " ".join(capsys.readouterr().out.split())
    model = STAGES[command].config if command in STAGES else TrainConfig
    for name in model.preset_values({}):
        value, field = getattr(model(), name), model.model_fields[name]
        nothing = "auto" if field_extra(field)["automatic"] else "none"
        shown = nothing if value in (None, "") else str(value)
        text = " ".join(help_of(field).split())
        assert f"{text} (default: {shown}, from --preset {model().preset}" in said, name
    if model is TrainConfig:
        assert "(default: 0.4, from --preset fast; depends on --family)" in said
        assert "(default: muon, from --preset fast)" in said


def test_ctrl_c_ends_a_command_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Workspace, "list", interrupted)
    assert main(["artifacts", "list", "--workspace", str(tmp_path)]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "expected", "received"),
    [
        ("suggest --hours two", "a number above 0, such as 0.5", "two"),
        ("suggest --hours -1", "a number above 0, such as 0.5", "-1"),
        ("suggest --tokens 500,000", "a whole number of at least 1, such as 500000", "500,000"),
        ("runs logs it --lines x", "a whole number of at least 1, such as 500000", "x"),
        ("runs list --limit 1e9", "at most 1,000,000", "1e9"),
    ],
)
def test_invalid_number_is_refused_in_plain_words(
    line: str, expected: str, received: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal_of(line, capsys)
    assert expected in said and said.endswith(f"; received {received}")
    assert "_" not in said
