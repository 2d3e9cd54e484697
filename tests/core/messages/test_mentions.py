"""Errors mention options as data, and each reader shows the name that it knows."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.cli.main import main
from core.cli.output import say_error
from core.config.corpus import CorpusConfig
from core.config.options import flag_of
from core.errors import ConfigError, StudioError
from core.messages.mentions import find_mentions, rename, render
from core.stages.registry import STAGES
from ui.parts.labels import relabel

_ROOT = Path(__file__).parents[3]
_MODELS = (*(stage.config for stage in STAGES.values()), CorpusConfig)
_FIELDS = {name: field for model in _MODELS for name, field in model.model_fields.items()}
_FLAGS = {flag_of(name, field) for name, field in _FIELDS.items()}
# Names that are also words are left out.
_UNMARKED = re.compile(
    rf"(?<![\w./⟬=:'\"-])(?:{'|'.join(name for name in _FIELDS if '_' in name)})(?![\w(=]|\.\w)"
)
# Keys of a file, or of a search, and no options.
_NO_OPTIONS = ("valid counts row_length and vocab_size", "state, tag, learning_rate, eval_loss")


def test_each_reader_sees_its_own_name_of_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    error = ConfigError("Too large", received="⟬size=base⟭", fix="lower ⟬vocab_size⟭")
    assert str(error) == "Too large. Received: size=base. What to do: lower vocab_size."
    assert error.fix == "lower vocab_size"
    say_error(error, {"vocab_size": "--vocab-size", "size": "--size"})
    assert "Received: --size base. What to do: lower --vocab-size." in capsys.readouterr().err
    say_error(error)
    assert "lower vocab_size" in capsys.readouterr().err
    assert error.rendered(relabel)["fix"] == "lower Vocabulary size"


def test_a_stored_error_has_plain_text_and_keeps_its_mentions() -> None:
    error = ConfigError("Too large", fix="lower ⟬vocab_size⟭", field="vocab_size")
    stored = json.loads(json.dumps(error.to_dict()))
    assert stored["fix"] == "lower vocab_size"
    assert StudioError(**stored).rendered(relabel)["fix"] == "lower Vocabulary size"
    assert "marked" not in ConfigError("No file", fix="choose another one").to_dict()


def test_an_error_like_another_one_keeps_its_other_parts() -> None:
    error = ConfigError("Too large", expected="less", fix="lower ⟬vocab_size⟭", field="vocab_size")
    other = StudioError.like(error, problem="Source web: too large")
    assert str(other) == "Source web: too large. Expected: less. What to do: lower vocab_size."
    assert (other.field, other.texts["fix"]) == ("vocab_size", error.texts["fix"])


def test_a_stage_renames_the_options_of_another_one() -> None:
    text = "set ⟬path⟭, ⟬--path⟭ or ⟬path=path⟭; the path stays"
    renamed = rename(text, {"path": "train_path"})
    assert render(renamed) == "set train_path, --train_path or train_path=path; the path stays"
    assert [mention.name for mention in find_mentions(renamed)] == ["train_path"] * 3


def test_the_command_line_names_flags_and_json_the_names_of_configs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--engine", "tensorflow", "--sharding", "fsdp", "--json"]
    assert main([*command, "--workspace", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert "What to do: set --engine to auto or jax, or --sharding to data." in output.err
    error = json.loads(output.out)["error"]
    assert error["fix"] == "set engine to auto or jax, or sharding to data"


def test_texts_of_errors_mark_the_options_that_they_mention() -> None:
    unmarked = [
        f"{path}: {text}"
        for path, text in _texts_of_errors()
        if _UNMARKED.search(text) and not text.startswith(_NO_OPTIONS)
    ]
    assert unmarked == []


def test_marked_options_exist() -> None:
    unknown = [
        f"{path}: {mention}"
        for path in (*_ROOT.glob("core/**/*.py"), *_ROOT.glob("ui/**/*.py"))
        if path.name != "mentions.py"
        for mention in find_mentions(path.read_text(encoding="utf-8"))
        if mention.name not in (_FLAGS if mention.is_flag else _FIELDS)
    ]
    assert unknown == []


def _texts_of_errors() -> Iterator[tuple[Path, str]]:
    """Yields the literal texts of calls that make an error."""
    for path in (*_ROOT.glob("core/**/*.py"), *_ROOT.glob("ui/**/*.py")):
        source = path.read_text(encoding="utf-8")
        if "Error(" not in source and "_error(" not in source:
            continue
        for call in ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call) and ast.unparse(call.func).lower().endswith("error"):
                parts = (*call.args, *(word.value for word in call.keywords if word.arg != "field"))
                for node in (node for part in parts for node in ast.walk(part)):
                    if isinstance(node, ast.Constant) and " " in str(node.value):
                        yield path, str(node.value)
