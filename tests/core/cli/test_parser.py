"""Help on one screen, suggestions for misspelt words, and shell completion."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from core.__main__ import build_parser, main
from core.cli.handlers.completion import completion_script
from core.cli.main import load_handler
from core.stages.registry import STAGES

_SCREEN_LINES = 55


def help_of(command: str, flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([*command.split(), flag])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", [*STAGES, "quickstart", "analyse", "suggest"])
def test_help_of_a_stage_fits_on_one_screen_and_help_all_has_every_flag(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    short = help_of(command, "--help", capsys)
    assert len(short.splitlines()) <= _SCREEN_LINES
    arguments = " [MODEL]" if command == "export" else ""
    assert short.startswith(f"usage: python -m core {command} [OPTIONS]{arguments}\n")
    every = help_of(command, "--help-all", capsys)
    parser = next(action for action in build_parser()._actions if action.choices).choices[command]
    for flag in parser._option_string_actions:
        if "_" not in flag and not flag.startswith("--no-"):
            name = flag.removeprefix("--").removeprefix("auto-")
            shown = (flag, f"--[no-]{name}", f"--[no-|auto-]{name}")
            assert any(one in every for one in shown), flag


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("train --szie tiny", "unrecognized arguments: --szie tiny; did you mean --size?"),
        ("train --szie=tiny --seed 1", "did you mean --size?"),
        ("train --learning_rat 1", "did you mean --learning-rate?"),
        ("--worksapce=x train --shards it", "did you mean --workspace?"),
        ("train -size tiny", "did you mean --size?"),
        ("train --batch-size 8", "--per-replica-batch-size or"),
        ("trian", "invalid choice: 'trian'; did you mean train?"),
        ("runs shw it", "invalid choice: 'shw'; did you mean show?"),
        ("artifacts delete modle it", "invalid choice: 'modle'; did you mean model?"),
        ("fill-mask it text --dtype flaot32", "did you mean float32"),
        ("completion tcsh", "choose from bash, zsh, fish"),
    ],
)  # fmt: skip
def test_misspelt_word_gets_a_suggestion_and_a_short_usage(
    line: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert meant in lines[-1]
    assert lines[0].startswith("usage: python -m core") and len(lines) <= 5


def test_word_unlike_all_others_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--xyzzy"])
    assert capsys.readouterr().err.endswith("unrecognized arguments: --xyzzy\n")


def test_misspelt_choice_of_a_field_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--shards", "it", "--size", "smal"]) == 2
    assert "What to do: did you mean small?" in capsys.readouterr().err


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    name, version = capsys.readouterr().out.split()
    assert name == "studio" and version[0].isdigit()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tr"], {"train"}),
        (["train", "--si"], {"--size"}),
        (["train", "--size", "m"], {"mini", "medium"}),
        (["--workspace", "here", "runs", "sh"], {"show"}),
        (["artifacts", "delete", "to"], {"tokenizer"}),
    ],
)
def test_bash_completes_commands_flags_and_choices(words: list[str], expected: set[str]) -> None:
    line = shlex.join(["studio", *words])
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _studio; echo ${{COMPREPLY[*]}}"
    script = f"{completion_script(build_parser(), 'bash')}\n{ask}"
    found = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert set(found.stdout.split()) == expected and not found.stderr


def test_fish_script_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    script = capsys.readouterr().out
    for stage in STAGES:
        assert f" -a {stage}\n" in script
    assert " -l size -x -a 'auto tiny mini small" in script


def test_every_command_has_a_handler_whose_module_help_does_not_load() -> None:
    script = (
        "import sys; from core.cli.main import build_parser; build_parser().format_help(); "
        "print([name for name in sys.modules if 'handlers.' in name or name == 'core.store'])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert loaded.stdout.decode().strip() == "[]"
    handlers = list(_handlers(build_parser()))
    assert len(handlers) > 30
    assert all(callable(load_handler(handler)) for handler in handlers)


def _handlers(parser: argparse.ArgumentParser) -> Iterator[str]:
    if handler := parser.get_default("handler"):
        yield handler
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _handlers(command)
