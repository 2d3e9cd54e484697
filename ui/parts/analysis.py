"""Renders the analysis of a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from core.corpus.statistics import CorpusStatistics, SourceStatistics
from core.corpus.statistics_text import METHODS, PROBLEMS, describe_reasons, describe_share
from ui.parts import markup
from ui.present import escape

_KINDS = {
    "docs": "installed documentation",
    "files": "files",
    "hub": "Hub dataset",
    "corpus": "cleaned corpus",
}


def render_analysis(found: CorpusStatistics) -> str:
    """Renders an analysis as a panel."""
    return (
        f'<div class="ps-analysis">{markup.tiles(_figures(found))}{_reading_note(found)}'
        f"{_section('Sources', _sources(found), is_wide=True)}"
        f"{_section('Document lengths', _histogram(found))}"
        f"{_section('Languages', _languages(found))}"
        f"{_section('Duplicates', _duplicates(found))}"
        f"{_section('Training time', _hours(found))}"
        f"{_section('Scripts', _scripts(found), is_wide=True)}"
        f"{_section('Most frequent lines', _lines(found), is_wide=True)}"
        f"{_section('Encoding problems', _encoding(found), is_wide=True)}</div>"
    )


def _section(title: str, html: str, *, is_wide: bool = False) -> str:
    wide = ' class="wide"' if is_wide else ""
    return f'<section{wide}><h3 class="ps-subheading">{escape(title)}</h3>{html}</section>'


def _compact(table: str) -> str:
    return f'<div class="ps-compact">{table}</div>'


def _note(text: str) -> str:
    return f'<p class="ps-note">{escape(text)}</p>'


def _figures(found: CorpusStatistics) -> Iterator[tuple[str, str]]:
    sizes = [one.bytes for one in found.sources]
    documents = [one.documents for one in found.sources]
    tokens = found.tokens
    total = tokens["sampled"] if tokens["total"] is None else tokens["total"]
    about = "" if found.share == 1 else "about "
    if None in sizes or None in documents:
        yield "documents in the sample", markup.count(found.documents)
        yield "of text in the sample", markup.byte_count(found.bytes)
        yield "tokens in the sample, estimated", markup.short_count(total)
    else:
        yield "documents", about + markup.short_count(sum(one or 0 for one in documents))
        yield "of UTF-8 text", about + markup.byte_count(sum(one or 0 for one in sizes))
        yield "tokens, estimated", "about " + markup.short_count(total)
    by_size = found.hours["by_size"]
    if "base" in by_size:
        hours = markup.rough_duration(3600 * by_size["base"])
        yield "one epoch of BERT base on this CPU", "about " + hours


def _reading_note(found: CorpusStatistics) -> str:
    read = (
        f"Read {describe_share(found.share)} of the text in {found.seconds:.1f} s: "
        f"{markup.count(found.documents)} documents, {markup.byte_count(found.bytes)}, from places "
        f"all over each source. Tokens: {METHODS[found.tokens['method']]}."
    )
    return _note(read)


def _sources(found: CorpusStatistics) -> str:
    headings = ("Source", "Kind", "Stored", "Read", "Documents", "Text")
    table = markup.table(headings, map(_source, found.sources), label="Sources")
    problems = "".join(
        f'<p class="ps-warning">{escape(_unreadable(one))}</p>'
        for one in found.sources
        if one.unreadable
    )
    return table + problems


def _source(one: SourceStatistics) -> tuple[str, ...]:
    about = "" if one.share == 1 else "about "
    return (
        one.name or "all",
        _KINDS.get(one.kind, one.kind),
        markup.byte_count(one.total_bytes) if one.total_bytes else "unknown",
        describe_share(one.share),
        ("unknown" if one.documents is None else about + markup.short_count(one.documents))
        + describe_reasons(one.skipped),
        "unknown" if one.bytes is None else about + markup.byte_count(one.bytes),
    )


def _unreadable(one: SourceStatistics) -> str:
    places = "1 place" if one.unreadable == 1 else f"{one.unreadable:,} places"
    name = f" of {one.name}" if one.name else ""
    return f"{places}{name} can't be read. {one.error}"


def _histogram(found: CorpusStatistics) -> str:
    most = max(one["documents"] for one in found.histogram)
    bars = "".join(_bar(one, most) for one in found.histogram)
    lengths = found.lengths
    note = (
        f"Characters: shortest {markup.count(lengths['shortest'])}, median "
        f"{markup.count(lengths['median'])}, mean {markup.count(lengths['mean'])}, nine of ten up "
        f"to {markup.count(lengths['percentile_90'])}, longest {markup.count(lengths['longest'])}."
    )
    return f'<ol class="ps-bars" aria-label="Documents by length">{bars}</ol>{_note(note)}'


def _bar(one: dict[str, int], most: int) -> str:
    bounds = f"{markup.short_count(one['from'])} – {markup.short_count(one['to'])}"
    return _row(bounds, one["documents"] / most, markup.count(one["documents"]))


def _row(name: str, share: float, value: str) -> str:
    width = f"{100 * share:.2f}"
    return (
        f'<li><span class="ps-bar-name">{escape(name)}</span><span class="ps-bar" '
        f'aria-hidden="true"><i style="width:{width}%"></i></span>'
        f'<span class="ps-bar-value">{escape(value)}</span></li>'
    )


def _duplicates(found: CorpusStatistics) -> str:
    has_several = len(found.sources) > 1
    headings = ("Copies", "Documents", "Share", *(["Elsewhere"] if has_several else []))
    rows = [
        (
            {"exact": "Exact", "near": "Near"}[kind],
            markup.count(one["documents"]),
            markup.percent(one["share"]),
            *([markup.count(one["of_other_sources"])] if has_several else []),
        )
        for kind, one in found.duplicates.items()
    ]
    elsewhere = "; elsewhere: of another source" if has_several else ""
    part = "" if found.share == 1 else " In a part of the corpus not all copies meet: it has more."
    return _compact(markup.table(headings, rows, label="Duplicates")) + _note(
        f"Documents that repeat another of the sample; near ones by MinHash{elsewhere}.{part}"
    )


def _languages(found: CorpusStatistics) -> str:
    most = max((one["share"] for one in found.languages), default=1.0)
    bars = "".join(
        _row(one["language"], one["share"] / most, markup.percent(one["share"]))
        for one in found.languages
    )
    return f'<ol class="ps-bars short" aria-label="Documents by language">{bars}</ol>' + _note(
        "Identified offline from the first 2,000 characters; short documents are often uncertain."
    )


def _scripts(found: CorpusStatistics) -> str:
    rows = [
        (
            one["name"] + (" (main)" if one["is_main"] else ""),
            markup.short_count(one["characters"]),
            markup.percent(one["share"]),
            markup.count(one["documents"]),
            " ".join(one["examples"]),
        )
        for one in found.scripts
    ]
    headings = ("Script", "Characters", "Share", "Documents", "Most frequent")
    return markup.table(headings, rows, label="Scripts")


def _lines(found: CorpusStatistics) -> str:
    if not found.lines:
        return _note("No line occurs in two documents of the sample.")
    rows = [
        (one["line"], markup.count(one["documents"]), markup.percent(one["share"]))
        for one in found.lines
    ]
    table = markup.table(("Line", "Documents", "Share"), rows, label="Most frequent lines")
    return _compact(table)


def _encoding(found: CorpusStatistics) -> str:
    if not found.encoding:
        return _note("No encoding problem was found in the sample.")
    rows = [
        (PROBLEMS[one["problem"]], markup.count(one["documents"]), _places(one), one["example"])
        for one in found.encoding
    ]
    headings = ("Problem", "Documents", "Places", "Example")
    return markup.table(headings, rows, label="Encoding problems")


def _places(one: dict[str, Any]) -> str:
    return markup.count(one["places"])


def _hours(found: CorpusStatistics) -> str:
    hours = found.hours
    if not hours["by_size"]:
        return _note(
            "This machine doesn't train on its CPU. The Train tab estimates the time for shards."
        )
    cells = [
        (size, markup.rough_duration(3600 * value)) for size, value in hours["by_size"].items()
    ]
    return markup.tiles(cells) + _note(
        f"One epoch of BERT in sequences of {hours['sequence_length']} tokens on this machine's "
        "CPU, roughly. The Train tab estimates other models and machines."
    )
