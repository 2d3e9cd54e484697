"""Translates errors about a corpus's options for stages that have only some of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from core.config.corpus import CorpusConfig
from core.errors import ConfigError, CorpusError

_SET = re.compile(r"\b(?:set|raise) ([a-z_]+)\b|\((skip_failing_parts)\)")
# Of options, names that are also words follow a verb.
_NAME = re.compile(r"(?<![\w./-])[a-z]+_[a-z_]+\b|(?<=\bset )[a-z]+\b|(?<=\bleave )[a-z]+\b")
_OTHERWISE = "correct the data, or choose other data"


def translate_error(
    error: ConfigError | CorpusError,
    *,
    options: Collection[str],
    advice: Mapping[str, str],
    renamed: Mapping[str, str],
    place: str,
) -> ConfigError | CorpusError:
    """Returns an error about a corpus in terms of a stage's options.

    Args:
        options: Names of the stage's options.
        advice: Advice in place of setting an option that the stage lacks.
        renamed: The stage's names of a corpus's options.
        place: Field that shows errors about options that the stage lacks.
    """
    absent = {*CorpusConfig.model_fields, "skip_failing_parts"} - {*options, *renamed}
    advised = (plain or other for plain, other in _SET.findall(error.fix))
    missing = next((name for name in advised if name in absent), "")
    field = renamed.get(error.field, error.field)
    return type(error)(
        error.problem,
        expected=error.expected,
        received=error.received,
        fix=advice.get(missing, _OTHERWISE) if missing else rename_options(error.fix, renamed),
        field=field if field in {*options, *renamed.values()} else place,
    )


def rename_options(text: str, names: Mapping[str, str]) -> str:
    """Replaces names of options in a sentence."""
    return _NAME.sub(lambda match: names.get(match[0], match[0]), text)
