"""The argument parser, and what several commands share."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from typing import Any, NoReturn

from core.messages.suggestions import did_you_mean

_MOST_LINES = 1_000_000
# Ambiguous: 500.000 may mean 500 or 500,000.
_DOTTED = re.compile(r"\d+(\.\d+)+")
# Glob patterns, which a shell expands unless quoted.
_PATTERNS = {"path": "--path", "validation_path": "--validation-path"}


class OnOffAuto(argparse.BooleanOptionalAction):
    """A flag with `--no-` and with `--auto-`, which leaves the choice to the product."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, **settings)
        automatic = [f"--auto-{flag.removeprefix('--')}" for flag in option_strings]
        self.option_strings = [*self.option_strings, *automatic]

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        if option_string and option_string.startswith("--auto-"):
            setattr(namespace, self.dest, None)
        else:
            super().__call__(parser, namespace, values, option_string)


class Formatter(argparse.HelpFormatter):
    """Lists each flag in one spelling, and keeps the usage short."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(get_terminal_size().columns, 100))

    def add_usage(
        self, usage: Any, actions: Iterable[argparse.Action], groups: Any, prefix: Any = None
    ) -> None:
        actions = list(actions)
        positional = [action for action in actions if not action.option_strings]
        if len(positional) < len(actions):
            self._prog += " [OPTIONS]"
        super().add_usage(usage, positional, [], prefix)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        spellings = [flag for flag in action.option_strings if "_" not in flag]
        if not spellings:
            return super()._format_action_invocation(action)
        if isinstance(action, argparse.BooleanOptionalAction):
            prefixes = "no-|auto-" if isinstance(action, OnOffAuto) else "no-"
            return f"--[{prefixes}]{spellings[0][2:]}"
        takes = action.nargs != 0
        value = self._format_args(action, action.dest.upper()) if takes else ""
        return " ".join(filter(None, (", ".join(spellings), value)))


class Parser(argparse.ArgumentParser):
    """Keeps help on one screen, and suggests the flag or command that was meant."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **settings})
        # Help of the options that only --help-all lists, and short help of the others.
        self._short_help: dict[argparse.Action, str] = {}
        # Flags by the option that they set.
        self.flags: dict[str, str] = {}

    def set_short_help(self, action: argparse.Action, text: str = argparse.SUPPRESS) -> None:
        """Sets what `--help` says of an option; `--help-all` says all."""
        if not self._short_help:
            about = "show all options, and what each does"
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help=about)
        self._short_help[action] = text

    def format_help(self, *, all_options: bool = False) -> str:
        if all_options or not self._short_help:
            return super().format_help()
        full = {action: action.help for action in self._short_help}
        try:
            for action, text in self._short_help.items():
                action.help = text
            return super().format_help()
        finally:
            for action, full_help in full.items():
                action.help = full_help

    def error(self, message: str) -> NoReturn:
        lists = f"({self.prog} --help lists the options)"
        self.exit(2, f"{self.format_usage()}{lists}\n{self.prog}: error: {message}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(name) for name in action.choices]
        meant = did_you_mean(str(value), names) or f"choose from {', '.join(names)}"
        raise argparse.ArgumentError(action, f"invalid choice: {str(value)!r}; {meant}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, rest = super().parse_known_args(args, namespace)
        if unknown := [word for word in rest if word.startswith("-") and " " not in word]:
            self._refuse_unknown(unknown[0].partition("=")[0], rest)
        if "words" in options:
            self._name_words(options, [*options.words, *rest])
            return options, []
        if rest and (flags := [flag for name, flag in _PATTERNS.items() if name in options]):
            self._refuse_expanded(flags, rest)
        return options, rest

    def _refuse_unknown(self, flag: str, rest: list[str]) -> None:
        flags = [known for known in self._option_string_actions if "_" not in known]
        meant = did_you_mean(flag, flags)
        given = shlex.join(rest[rest.index(next(w for w in rest if w.startswith(flag))) :][:3])
        self.error(f"unrecognized arguments: {given}{f'; {meant}' if meant else ''}")

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
    about = "print only results, warnings and errors"
    common.add_argument("-q", "--quiet", action="store_true", help=about)
    return common


class _HelpAll(argparse.Action):
    def __call__(self, parser: Any, *_: Any) -> None:
        print(parser.format_help(all_options=True), end="")
        parser.exit()


def add_command(
    commands: Any,
    common: argparse.ArgumentParser,
    name: str,
    about: str,
    handler: str,
) -> Parser:
    """Adds a command; the handler is `MODULE:FUNCTION` in `core.cli.handlers`."""
    parser: Parser = commands.add_parser(
        name, help=about, description=about, parents=[common], allow_abbrev=False
    )
    parser.set_defaults(handler=handler, flags=parser.flags)
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
