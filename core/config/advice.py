"""Translates errors about a corpus's options for stages that have only some of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from core.config.corpus import CorpusConfig
from core.errors import ConfigError, CorpusError
from core.messages.mentions import find_mentions, rename

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
    mentioned = (mention.name for mention in find_mentions(error.texts["fix"]))
    missing = next((name for name in mentioned if name in absent), "")
    texts = {part: rename(text, renamed) for part, text in error.texts.items()}
    if missing:
        texts["fix"] = advice.get(missing, _OTHERWISE)
    field = renamed.get(error.field, error.field)
    is_known = field in {*options, *renamed.values()}
    return type(error).like(error, **texts, field=field if is_known else place)
