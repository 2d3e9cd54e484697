"""Writes the analysis of a corpus as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from core.corpus.statistics import CorpusStatistics, SourceStatistics

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


def lines_of(found: CorpusStatistics) -> Iterator[str]:
    """Yields the analysis, one line after another."""
    yield (
        f"Read {describe_share(found.share)} of the corpus: {found.documents:,} documents, "
        f"{found.bytes / 1e6:,.2f} MB, in {found.seconds:.1f} s"
    )
    yield from map(_source, found.sources)
    tokens = found.tokens
    count = tokens["sampled"] if tokens["total"] is None else tokens["total"]
    where = "in the sample" if tokens["total"] is None else "in the corpus"
    yield f"Tokens, estimated: {count:,} {where} ({METHODS[tokens['method']]})"
    yield from _hours(found.hours)
    names = ", ".join(f"{one['language']} {_percent(one['share'])}" for one in found.languages)
    yield f"Languages: {names}"
    yield "Lengths in characters: " + ", ".join(
        f"{name.replace('_', ' ')} {value:,.0f}" for name, value in found.lengths.items()
    )
    yield from _bars(found.histogram)
    # In a part of the corpus, not all copies meet.
    least = "" if found.share == 1 else "at least "
    for kind, one in found.duplicates.items():
        other = f", {one['of_other_sources']:,} of other sources" if len(found.sources) > 1 else ""
        yield (
            f"{kind.capitalize()} duplicates: {least}{one['documents']:,} documents "
            f"({_percent(one['share'])}){other}"
        )
    for one in found.lines:
        yield f"Line in {one['documents']:,} documents ({_percent(one['share'])}): {one['line']}"
    for one in found.scripts:
        main = " (main script)" if one["is_main"] else ""
        yield (
            f"{one['name']}{main}: {one['characters']:,} characters in {one['documents']:,} "
            f"documents, such as {one['examples']}"
        )
    for one in found.encoding:
        yield (
            f"{PROBLEMS[one['problem']]}: {one['places']:,} in {one['documents']:,} documents, "
            f"such as {one['example']!r}"
        )
    if not found.encoding:
        yield "No encoding problem was found"


def _source(one: SourceStatistics) -> str:
    name = f"Source {one.name}" if one.name else f"Source {one.kind}"
    stored = f"{one.total_bytes / 1e6:,.2f} MB stored, " if one.total_bytes else ""
    total = f", about {one.documents:,} documents in all" if one.documents is not None else ""
    bad = f"; {one.unreadable:,} places can't be read: {one.error}" if one.unreadable else ""
    return (
        f"{name}: {stored}read {describe_share(one.share)} "
        f"({one.sampled_documents:,} documents{describe_reasons(one.skipped)}){total}{bad}"
    )


def _hours(hours: dict[str, Any]) -> Iterator[str]:
    if hours["by_size"]:
        listed = ", ".join(f"{size} {value:.2g} h" for size, value in hours["by_size"].items())
        yield f"One epoch of {hours['family']} on this machine's CPU, estimated: {listed}"


def _bars(histogram: list[dict[str, int]]) -> Iterator[str]:
    most = max(one["documents"] for one in histogram)
    for one in histogram:
        bar = "#" * round(_BAR_CHARACTERS * one["documents"] / most)
        bounds = f"{one['from']:>10,} to {one['to'] - 1:>10,}"
        yield f"  {bounds}  {one['documents']:>9,}  {bar}".rstrip()


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
