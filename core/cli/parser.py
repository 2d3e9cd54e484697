"""The argument parser, and what several commands share."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Callable
from typing import Any

_MOST_LINES = 1_000_000
# Ambiguous: 500.000 may mean 500 or 500,000.
_DOTTED = re.compile(r"\d+(\.\d+)+")
# Glob patterns, which a shell expands unless quoted.
_PATTERNS = {"path": "--path", "validation_path": "--validation-path"}


class Parser(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, rest = super().parse_known_args(args, namespace)
        if any(word.startswith("-") and " " not in word for word in rest):
            return options, rest
        if "words" in options:
            self._name_words(options, [*options.words, *rest])
            return options, []
        if rest and (flags := [flag for name, flag in _PATTERNS.items() if name in options]):
            self._refuse_expanded(flags, rest)
        return options, rest

    def _name_words(self, options: argparse.Namespace, words: list[str]) -> None:
        names = [name for name in ("model", "text") if not getattr(options, name)]
        if len(words) > len(names):
            self.error("give one model and one text (put the text in quotes)")
        for name, word in zip(names, words, strict=False):
            setattr(options, name, word)
        del options.words

    def _refuse_expanded(self, flags: list[str], rest: list[str]) -> None:
        shown = shlex.join(rest[:3]) + (" ..." if len(rest) > 3 else "")
        self.error(
            f"unrecognized arguments: {shown}; {' and '.join(flags)} take one value each: quote a "
            f"pattern, as in {flags[0]} 'data/*.txt', because the shell expands it otherwise"
        )


def build_common_options() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument(
        "--workspace",
        metavar="DIR",
        help="folder of artifacts and runs (default: STUDIO_HOME, else ./workspace)",
    )
    common.add_argument("--json", action="store_true", help="print one JSON value at the end")
    return common


def add_command(
    commands: Any,
    common: argparse.ArgumentParser,
    name: str,
    about: str,
    command: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=about, parents=[common], allow_abbrev=False
    )
    parser.set_defaults(command=command)
    return parser


def add_config_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        default="",
        help="JSON file with field values; flags override it",
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    add_config_file(parser)
    parser.add_argument("--detach", action="store_true", help="queue the run and return at once")


def parse_hours(text: str) -> float:
    number = _number(text)
    if not 0 < number < math.inf:
        wanted = "a number above 0, such as 0.5"
        raise argparse.ArgumentTypeError(f"expected {wanted}; received {text}")
    return number


def parse_count(text: str) -> int:
    number = math.nan if _DOTTED.fullmatch(text) else _number(text)
    if not 1 <= number < math.inf or number != int(number):
        wanted = "a whole number of at least 1, such as 500000 or 5e5"
        raise argparse.ArgumentTypeError(f"expected {wanted}; received {text}")
    return int(number)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse_line_count(text: str) -> int:
    number = parse_count(text)
    if number > _MOST_LINES:
        raise argparse.ArgumentTypeError(f"expected at most {_MOST_LINES:,}; received {text}")
    return number
