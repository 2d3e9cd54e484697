"""Normalises Unicode, and repairs text that was decoded with a wrong encoding."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any

from core.config.clean import CleanConfig

# ftfy changes these in text without mojibake: entities, terminal escapes, control characters,
# surrogates and byte order marks.
_SUSPECT = re.compile(
    "&[#A-Za-z0-9]{1,24};|[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u206a-\u206f\ufeff\ufff9-\ufffc"
    "\ud800-\udfff]"
)


def normalize(text: str, config: CleanConfig) -> str:
    """Returns text in the chosen normal form."""
    if config.unicode_form == "none" or text.isascii():
        return text
    return unicodedata.normalize("NFC" if config.unicode_form == "nfc" else "NFKC", text)


def fix_encoding(text: str) -> str:
    """Repairs mojibake, such as Ã© instead of é, entities and control characters."""
    import ftfy
    from ftfy.badness import is_bad

    if not _SUSPECT.search(text) and (text.isascii() or not is_bad(text)):
        return text
    return str(ftfy.fix_text(text, _repairs()))


@lru_cache(maxsize=1)
def _repairs() -> Any:
    """Leaves alone what isn't an error of decoding: quotation marks, ligatures, line ends."""
    from ftfy import TextFixerConfig

    return TextFixerConfig(
        uncurl_quotes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        fix_line_breaks=False,
        normalization=None,
        explain=False,
    )
