"""Writes the analysis of a corpus as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from core.corpus.statistics import CorpusStatistics, SourceStatistics
from core.messages.values import byte_count

_BAR_CHARACTERS = 40
PROBLEMS = {
    "replacement_characters": "Replacement characters (U+FFFD)",
    "mojibake": "Wrongly decoded text (mojibake)",
    "html_entities": "HTML entities",
    "control_characters": "Control characters",
}
METHODS = {
    "words": "1.3 tokens per word",
    "bytes": "4 bytes per token",
    "tokenizer": "counted by the tokenizer",
}


def describe_share(share: float | None) -> str:
    """Describes the fraction of text that was read."""
    if share is None:
        return "a sample of unknown share"
    return "all" if share == 1 else f"about {100 * share:.3g} %"


def describe_reasons(skipped: Mapping[str, int]) -> str:
    """Describes the documents without text, if any."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
    return f", {sum(skipped.values()):,} skipped: {reasons}" if skipped else ""


def lines_of(statistics: CorpusStatistics) -> Iterator[str]:
    """Yields the analysis, one line after another."""
    yield (
        f"Read {describe_share(statistics.share)} of the corpus: {statistics.documents:,} "
        f"documents, {byte_count(statistics.bytes)}, in {statistics.seconds:.1f} s"
    )
    yield from map(_source, statistics.sources)
    tokens = statistics.tokens
    count = tokens["sampled"] if tokens["total"] is None else tokens["total"]
    where = "in the sample" if tokens["total"] is None else "in the corpus"
    yield f"Tokens, estimated: {count:,} {where} ({METHODS[tokens['method']]})"
    yield from _hours(statistics.hours)
    yield "Languages: " + ", ".join(
        f"{language['language']} {_percent(language['share'])}" for language in statistics.languages
    )
    yield "Lengths in characters: " + ", ".join(
        f"{name.replace('_', ' ')} {value:,.0f}" for name, value in statistics.lengths.items()
    )
    yield from _bars(statistics.histogram)
    # In a part of the corpus, not all copies meet.
    least = "" if statistics.share == 1 else "at least "
    for kind, counts in statistics.duplicates.items():
        copies = f", {counts['of_other_sources']:,} of other sources"
        yield (
            f"{kind.capitalize()} duplicates: {least}{counts['documents']:,} documents "
            f"({_percent(counts['share'])}){copies if len(statistics.sources) > 1 else ''}"
        )
    for line in statistics.lines:
        yield f"Line in {line['documents']:,} documents ({_percent(line['share'])}): {line['line']}"
    for script in statistics.scripts:
        main = " (main script)" if script["is_main"] else ""
        yield (
            f"{script['name']}{main}: {script['characters']:,} characters in "
            f"{script['documents']:,} documents, such as {script['examples']}"
        )
    for problem in statistics.encoding:
        yield (
            f"{PROBLEMS[problem['problem']]}: {problem['places']:,} in "
            f"{problem['documents']:,} documents, such as {problem['example']!r}"
        )
    if not statistics.encoding:
        yield "No encoding problem was found"


def _source(source: SourceStatistics) -> str:
    name = f"Source {source.name}" if source.name else f"Source {source.kind}"
    stored = f"{byte_count(source.total_bytes)} stored, " if source.total_bytes else ""
    total = f", about {source.documents:,} documents in all" if source.documents is not None else ""
    bad = f"; {source.unreadable:,} places can't be read: {source.error}"
    return (
        f"{name}: {stored}read {describe_share(source.share)} "
        f"({source.sampled_documents:,} documents{describe_reasons(source.skipped)})"
        f"{total}{bad if source.unreadable else ''}"
    )


def _hours(hours: dict[str, Any]) -> Iterator[str]:
    if hours["by_size"]:
        listed = ", ".join(f"{size} {value:.2g} h" for size, value in hours["by_size"].items())
        yield f"One epoch of {hours['family']} on this machine's CPU, estimated: {listed}"


def _bars(histogram: list[dict[str, int]]) -> Iterator[str]:
    most = max(column["documents"] for column in histogram)
    for column in histogram:
        bar = "#" * round(_BAR_CHARACTERS * column["documents"] / most)
        bounds = f"{column['from']:>10,} to {column['to'] - 1:>10,}"
        yield f"  {bounds}  {column['documents']:>9,}  {bar}".rstrip()


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
