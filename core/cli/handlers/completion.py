"""Runs the command `completion`: writes scripts for bash, zsh and fish."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

from core.cli.output import EXIT_DONE
from core.cli.parser import Parser

_CHOICES = re.compile(r"\{(.+)\}")
_BASH = """\
_studio() {
  local current=${COMP_WORDS[COMP_CWORD]} command= word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$command/$word" in
      %(commands)s) command="$command/$word" ;;
    esac
  done
  COMPREPLY=()
  case "$command:${COMP_WORDS[COMP_CWORD-1]}" in
%(values)s
  esac
  [ ${#COMPREPLY[@]} -gt 0 ] && return
  case "$command" in
%(words)s
  esac
}
complete -o default -F _studio studio
"""
_ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"


def print_script(options: argparse.Namespace) -> int:
    parser = options.build_parser()
    print(completion_script(parser, options.shell), end="")
    return EXIT_DONE


def completion_script(parser: Parser, shell: str) -> str:
    """Writes a shell's script for the `studio` command, to be sourced."""
    if shell == "fish":
        return "".join(f"{line}\n" for line in _fish_lines(parser))
    return (_ZSH if shell == "zsh" else "") + _bash_script(parser)


def _commands(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each command's path, such as /runs/list, and its parser; the program's is empty."""
    yield path, parser
    for name, child in _children(parser).items():
        yield from _commands(child, f"{path}/{name}")


def _children(parser: argparse.ArgumentParser) -> dict[str, Any]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _flags(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yields each flag and the choices of its value."""
    for action in parser._actions:
        shown = _CHOICES.fullmatch(str(action.metavar or ""))
        choices = shown[1].split(",") if shown else [str(choice) for choice in action.choices or ()]
        for flag in action.option_strings:
            if "_" not in flag:
                yield flag, " ".join(choices)


def _positional_choices(parser: argparse.ArgumentParser) -> list[str]:
    return [
        str(choice)
        for action in parser._actions
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction)
        for choice in action.choices or ()
    ]


def _bash_script(parser: Parser) -> str:
    values, words = [], []
    for path, command in _commands(parser):
        flags = dict(_flags(command))
        values += [_offer(f"{path}:{flag}", choices) for flag, choices in flags.items() if choices]
        names = [*_children(command), *_positional_choices(command), *flags]
        words.append(_offer(path, " ".join(names)))
    paths = "|".join(path for path, _ in _commands(parser) if path)
    filled = {"commands": paths, "values": "\n".join(values), "words": "\n".join(words)}
    return _BASH % filled


def _offer(case: str, words: str) -> str:
    return f"""    "{case}") COMPREPLY=($(compgen -W "{words}" -- "$current")) ;;"""


def _fish_lines(parser: Parser) -> Iterator[str]:
    for path, command in _commands(parser):
        conditions = [f"__fish_seen_subcommand_from {name}" for name in path.split("/")[1:]]
        children = list(_children(command))
        if children:
            conditions.append(f"not __fish_seen_subcommand_from {' '.join(children)}")
        condition = f"-n '{'; and '.join(conditions)}'" if conditions else ""
        for name in [*children, *_positional_choices(command)]:
            yield f"complete -c studio -f {condition} -a {name}"
        for flag, values in _flags(command):
            dashes = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            value = f" -x -a '{values}'" if values else ""
            yield f"complete -c studio {condition} {dashes}{value}"
