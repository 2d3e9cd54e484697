"""Chooses how a person's own files are read: their encoding, and what of them is a document."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from core.config.corpus import CorpusConfig
from core.config.named_source import NamedSource
from core.corpus.sampling import Limits, sample_corpus
from core.workspace.workspace import Workspace

T = TypeVar("T", CorpusConfig, NamedSource)

_LIMITS = Limits(bytes=256 << 10, seconds=2.0)
ANY_ENCODING = {"encoding": "auto", "encoding_errors": "replace"}
_UNIT = "text_unit"
_SMALL_BYTES = 16 << 20
_FEWEST_LINES = 20
# Share of lines that begin within a sentence, or with a space; lengths of wrapped lines, relative
# to the 90th percentile, at the 50th and 99th one.
_CONTINUED = 0.25
_LEAST_MEDIAN, _MOST_LENGTH = 0.75, 2.0
_LEAST_WIDTH = 40
# Lines between two blank ones; between more, a blank line says little.
_LEAST_BLOCK, _MOST_BLOCK = 1.5, 40
# Words of a line at the 90th percentile, and share of different lines, of text with a word a line.
_FEW_WORDS, _MOST_DIFFERENT = 3, 0.5


def readable(corpus: CorpusConfig, workspace: Workspace) -> tuple[CorpusConfig, str]:
    """Returns the corpus with the way to read its files, where that isn't set, by a look at them.

    Returns:
        The corpus, and why its documents are paragraphs; "" if they aren't, or if that was set.

    Raises:
        ConfigError, CorpusError: There is no readable text.
    """
    if corpus.source == "several":
        sources = tuple(_in_any_encoding(source) for source in corpus.sources)
        return corpus.model_copy(update={"sources": sources}), ""
    if corpus.source != "files":
        return corpus, ""
    given = corpus.model_fields_set
    corpus = _in_any_encoding(corpus)
    if _UNIT in given or corpus.text_unit != "line":
        return corpus, ""
    samples = sample_corpus(corpus, workspace, _LIMITS)
    lines = [text for sample in samples for text in sample.texts]
    blanks = [sample.blank_lines for sample in samples if sample.blank_lines is not None]
    # Without blank lines, a file is one paragraph, which has to fit into memory.
    is_small = sum(sample.total_bytes for sample in samples) <= _SMALL_BYTES
    is_text = len(blanks) == len(samples) and (any(blanks) or is_small)
    reason = why_paragraphs(lines, sum(blanks)) if is_text else ""
    return (corpus.model_copy(update={_UNIT: "paragraph"}) if reason else corpus), reason


def _in_any_encoding(source: T) -> T:
    if source.source != "files" or source.encoding:
        return source
    given = source.model_fields_set
    unset = {name: value for name, value in ANY_ENCODING.items() if name not in given}
    return source.model_copy(update=unset)


def why_paragraphs(lines: Sequence[str], blanks: int) -> str:
    """Returns why lines are parts of documents; "" if each is a document.

    Args:
        lines: The lines with text.
        blanks: How many blank lines are between them.
    """
    if len(lines) < _FEWEST_LINES:
        return ""
    if _is_wrapped(lines):
        return "lines end at a width, within sentences"
    indented = sum(line[:1].isspace() for line in lines) / len(lines)
    if indented >= _CONTINUED and _LEAST_BLOCK * blanks <= len(lines) <= _MOST_BLOCK * blanks:
        return f"indented lines are in groups of about {len(lines) / blanks:.2g}"
    words = sorted(len(line.split(maxsplit=_FEW_WORDS)) for line in lines)
    is_few = words[int(0.9 * len(lines))] <= _FEW_WORDS
    if is_few and len(set(lines)) <= _MOST_DIFFERENT * len(lines):
        return "a line is a word"
    return ""


def _is_wrapped(lines: Sequence[str]) -> bool:
    """Returns whether lines end at a width, within sentences."""
    lengths = sorted(map(len, lines))
    middle, long, longest = (lengths[int(share * len(lengths))] for share in (0.5, 0.9, 0.99))
    continued = sum(line[:1].islower() for _, line in pairwise(lines)) / len(lines)
    return (
        continued >= _CONTINUED
        and long >= _LEAST_WIDTH
        and middle >= _LEAST_MEDIAN * long
        and longest <= _MOST_LENGTH * long
    )
