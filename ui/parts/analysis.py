"""Renders the analysis of a corpus."""

from __future__ import annotations

from collections.abc import Iterator

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


def render_analysis(statistics: CorpusStatistics) -> str:
    """Renders an analysis as a panel."""
    return (
        f'<div class="ps-analysis">{markup.tiles(_figures(statistics))}{_reading_note(statistics)}'
        f"{_section('Sources', _sources(statistics), is_wide=True)}"
        f"{_section('Document lengths', _histogram(statistics))}"
        f"{_section('Languages', _languages(statistics))}"
        f"{_section('Duplicates', _duplicates(statistics))}"
        f"{_section('Training time', _hours(statistics))}"
        f"{_section('Scripts', _scripts(statistics), is_wide=True)}"
        f"{_section('Most frequent lines', _lines(statistics), is_wide=True)}"
        f"{_section('Encoding problems', _encoding(statistics), is_wide=True)}</div>"
    )


def _section(title: str, html: str, *, is_wide: bool = False) -> str:
    wide = ' class="wide"' if is_wide else ""
    return f'<section{wide}><h3 class="ps-subheading">{escape(title)}</h3>{html}</section>'


def _compact(table: str) -> str:
    return f'<div class="ps-compact">{table}</div>'


def _note(text: str) -> str:
    return f'<p class="ps-note">{escape(text)}</p>'


def _figures(statistics: CorpusStatistics) -> Iterator[tuple[str, str]]:
    sizes = [source.bytes for source in statistics.sources]
    documents = [source.documents for source in statistics.sources]
    tokens = statistics.tokens
    total = tokens["sampled"] if tokens["total"] is None else tokens["total"]
    about = "" if statistics.share == 1 else "about "
    if None in sizes or None in documents:
        yield "documents in the sample", markup.count(statistics.documents)
        yield "of text in the sample", markup.byte_count(statistics.bytes)
        yield "tokens in the sample, estimated", markup.short_count(total)
    else:
        yield "documents", about + markup.short_count(sum(count or 0 for count in documents))
        yield "of UTF-8 text", about + markup.byte_count(sum(size or 0 for size in sizes))
        yield "tokens, estimated", "about " + markup.short_count(total)
    by_size = statistics.hours["by_size"]
    if "base" in by_size:
        hours = markup.rough_duration(3600 * by_size["base"])
        yield "one epoch of BERT base on this CPU", "about " + hours


def _reading_note(statistics: CorpusStatistics) -> str:
    read = (
        f"Read {describe_share(statistics.share)} of the text in {statistics.seconds:.1f} s: "
        f"{markup.count(statistics.documents)} documents, "
        f"{markup.byte_count(statistics.bytes)}, from places "
        f"all over each source. Tokens: {METHODS[statistics.tokens['method']]}."
    )
    return _note(read)


def _sources(statistics: CorpusStatistics) -> str:
    headings = ("Source", "Kind", "Stored", "Read", "Documents", "Text")
    table = markup.table(headings, map(_source, statistics.sources), label="Sources")
    problems = "".join(
        f'<p class="ps-warning">{escape(_unreadable(source))}</p>'
        for source in statistics.sources
        if source.unreadable
    )
    return table + problems


def _source(source: SourceStatistics) -> tuple[str, ...]:
    about = "" if source.share == 1 else "about "
    return (
        source.name or "all",
        _KINDS.get(source.kind, source.kind),
        markup.byte_count(source.total_bytes) if source.total_bytes else "unknown",
        describe_share(source.share),
        ("unknown" if source.documents is None else about + markup.short_count(source.documents))
        + describe_reasons(source.skipped),
        "unknown" if source.bytes is None else about + markup.byte_count(source.bytes),
    )


def _unreadable(source: SourceStatistics) -> str:
    places = "1 place" if source.unreadable == 1 else f"{source.unreadable:,} places"
    name = f" of {source.name}" if source.name else ""
    return f"{places}{name} can't be read. {source.error}"


def _histogram(statistics: CorpusStatistics) -> str:
    most = max(bin["documents"] for bin in statistics.histogram)
    bars = "".join(_bar(bin, most) for bin in statistics.histogram)
    lengths = statistics.lengths
    note = (
        f"Characters: shortest {markup.count(lengths['shortest'])}, median "
        f"{markup.count(lengths['median'])}, mean {markup.count(lengths['mean'])}, nine of ten up "
        f"to {markup.count(lengths['percentile_90'])}, longest {markup.count(lengths['longest'])}."
    )
    return f'<ol class="ps-bars" aria-label="Documents by length">{bars}</ol>{_note(note)}'


def _bar(bin: dict[str, int], most: int) -> str:
    bounds = f"{markup.short_count(bin['from'])} – {markup.short_count(bin['to'])}"
    return _row(bounds, bin["documents"] / most, markup.count(bin["documents"]))


def _row(name: str, share: float, value: str) -> str:
    width = f"{100 * share:.2f}"
    return (
        f'<li><span class="ps-bar-name">{escape(name)}</span><span class="ps-bar" '
        f'aria-hidden="true"><i style="width:{width}%"></i></span>'
        f'<span class="ps-bar-value">{escape(value)}</span></li>'
    )


def _duplicates(statistics: CorpusStatistics) -> str:
    has_several = len(statistics.sources) > 1
    headings = ("Copies", "Documents", "Share", *(["Elsewhere"] if has_several else []))
    rows = [
        (
            {"exact": "Exact", "near": "Near"}[kind],
            markup.count(counts["documents"]),
            markup.percent(counts["share"]),
            *([markup.count(counts["of_other_sources"])] if has_several else []),
        )
        for kind, counts in statistics.duplicates.items()
    ]
    elsewhere = "; elsewhere: of another source" if has_several else ""
    more = " In a part of the corpus not all copies meet: it has more."
    note = "" if statistics.share == 1 else more
    return _compact(markup.table(headings, rows, label="Duplicates")) + _note(
        f"Documents that repeat another of the sample; near ones by MinHash{elsewhere}.{note}"
    )


def _languages(statistics: CorpusStatistics) -> str:
    most = max((language["share"] for language in statistics.languages), default=1.0)
    bars = "".join(
        _row(language["language"], language["share"] / most, markup.percent(language["share"]))
        for language in statistics.languages
    )
    return f'<ol class="ps-bars short" aria-label="Documents by language">{bars}</ol>' + _note(
        "Identified offline from the first 2,000 characters; short documents are often uncertain."
    )


def _scripts(statistics: CorpusStatistics) -> str:
    rows = [
        (
            script["name"] + (" (main)" if script["is_main"] else ""),
            markup.short_count(script["characters"]),
            markup.percent(script["share"]),
            markup.count(script["documents"]),
            " ".join(script["examples"]),
        )
        for script in statistics.scripts
    ]
    headings = ("Script", "Characters", "Share", "Documents", "Most frequent")
    return markup.table(headings, rows, label="Scripts")


def _lines(statistics: CorpusStatistics) -> str:
    if not statistics.lines:
        return _note("No line occurs in two documents of the sample.")
    rows = [
        (line["line"], markup.count(line["documents"]), markup.percent(line["share"]))
        for line in statistics.lines
    ]
    table = markup.table(("Line", "Documents", "Share"), rows, label="Most frequent lines")
    return _compact(table)


def _encoding(statistics: CorpusStatistics) -> str:
    if not statistics.encoding:
        return _note("No encoding problem was found in the sample.")
    rows = [
        (
            PROBLEMS[p["problem"]],
            markup.count(p["documents"]),
            markup.count(p["places"]),
            p["example"],
        )
        for p in statistics.encoding
    ]
    headings = ("Problem", "Documents", "Places", "Example")
    return markup.table(headings, rows, label="Encoding problems")


def _hours(statistics: CorpusStatistics) -> str:
    hours = statistics.hours
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
