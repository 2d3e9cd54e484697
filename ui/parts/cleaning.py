"""Renders previews of cleaning, and the reports of cleaned corpora."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from core.config.clean import CleanConfig
from core.config.options import title_of
from core.corpus.cleaning.preview import CleanedDocument, CleaningPreview
from core.corpus.cleaning.report import title_of_step
from core.corpus.cleaning.stage import REPORT_FILE
from core.foreign_files import parse_json
from core.workspace.manifests import Artifact
from ui.parts import markup
from ui.present import escape

_MOST_SHOWN = 12
_MOST_REPORT_BYTES = 8 << 20
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
# Beyond this, comparing takes too long.
_COMPARED_WORDS = 1200

_TOTALS = ("train_documents", "validation_documents", "train_bytes", "validation_bytes")

# Counts of what could not be read.
_SKIPPED = {"parts_skipped": "parts", "files_skipped": "files"}

Step = Mapping[str, Any]


def render_preview(seen: CleaningPreview) -> str:
    """Renders counts by step, and documents before and after."""
    removed = [document for document in seen.documents if not document.after]
    rest = [document for document in seen.documents if document.after]
    changed = [document for document in rest if document.before != document.after]
    same = [document for document in rest if document.before == document.after]
    num_documents, read = seen.summary["documents"], seen.summary["read"]
    figures = [
        ("documents kept", f"{markup.count(num_documents)} of {markup.count(read['documents'])}"),
        ("of text kept", markup.byte_count(seen.summary["bytes"])),
        ("documents removed", markup.count(len(removed))),
        ("kept documents changed", markup.count(len(changed))),
    ]
    groups = [
        _group("Removed", _by_rule(removed), len(removed), is_open=True),
        _group("Changed", changed, len(changed), is_open=not removed),
        _group("Unchanged", same, len(same), is_open=False),
    ]
    return (
        f'<div class="ps-cleaning">{markup.tiles(figures)}'
        f"{render_steps(seen.summary['steps'])}{''.join(groups)}</div>"
    )


def _by_rule(removed: Sequence[CleanedDocument]) -> list[CleanedDocument]:
    """Orders documents so that the first ones are of different rules."""
    seen: dict[tuple[str, str], int] = {}
    turns = []
    for document in removed:
        turn = seen[document.step, document.rule] = seen.get((document.step, document.rule), 0) + 1
        turns.append((turn, document))
    return [document for _, document in sorted(turns, key=lambda pair: pair[0])]


def _group(title: str, documents: Sequence[CleanedDocument], count: int, *, is_open: bool) -> str:
    if not documents:
        return ""
    shown = "".join(map(_document, documents[:_MOST_SHOWN]))
    rest = count - _MOST_SHOWN
    more = f'<p class="ps-note">And {markup.count(rest)} more.</p>' if rest > 0 else ""
    return (
        f'<details class="ps-cleaning-group" data-group="{title}"{" open" if is_open else ""}>'
        f"<summary>{title} ({markup.count(count)})</summary>"
        f'<ol class="ps-cleaned">{shown}</ol>{more}</details>'
    )


def _document(document: CleanedDocument) -> str:
    steps = ", ".join(map(title_of_step, document.changed_by))
    if not document.after:
        reason = f"{title_of_step(document.step)}: {document.explanation}"
        return f"<li>{_badge('failed', reason)}{_text(escape(document.before))}</li>"
    if document.before == document.after:
        return f"<li>{_text(escape(document.before))}</li>"
    before, after = mark_differences(document.before, document.after)
    return (
        f"<li>{_badge('running', steps or 'Changed')}"
        f'<div class="ps-before-after">{_text(before, "Before")}{_text(after, "After")}</div></li>'
    )


def _badge(kind: str, text: str) -> str:
    return f'<p class="ps-cleaned-why"><span class="ps-badge {kind}">{escape(text)}</span></p>'


def _text(html: str, title: str = "") -> str:
    head = f"<b>{title}</b>" if title else ""
    label = title or "Document"
    return (
        f'<div class="ps-cleaned-text" tabindex="0" role="group" aria-label="{label}">'
        f"{head}{html}</div>"
    )


def mark_differences(before: str, after: str) -> tuple[str, str]:
    """Returns both texts as HTML, with the words that only one of them has marked."""
    left, right = _WORDS.findall(before), _WORDS.findall(after)
    if max(len(left), len(right)) > _COMPARED_WORDS:
        return escape(before), escape(after)
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    olds, news = [], []
    for kind, start, stop, first, last in matcher.get_opcodes():
        old, new = escape("".join(left[start:stop])), escape("".join(right[first:last]))
        is_same = kind == "equal"
        olds.append(old if is_same or not old else f"<del>{old}</del>")
        news.append(new if is_same or not new else f"<ins>{new}</ins>")
    return "".join(olds), "".join(news)


def render_steps(steps: Mapping[str, Step]) -> str:
    """Renders what each step did."""
    rows = list(step_rows(steps))
    if not rows:
        return '<p class="ps-note">No step is switched on.</p>'
    table = markup.table(("Step", "Removed", "Changed"), rows, label="What each step did")
    return f'<div class="ps-compact">{table}</div>'


def step_rows(steps: Mapping[str, Step]) -> Iterator[tuple[str, str, str]]:
    """Yields title, removed and changed documents of steps, and of the rules below."""
    for step, counts in steps.items():
        title = title_of_step(step) if _is_known(step) else step
        rules, thresholds = counts.get("removed_by", {}), counts.get("thresholds", {})
        changed = counts.get("changed_documents", 0)
        yield (
            title, markup.count(counts.get("removed_documents", 0)),
            markup.count(changed) if changed else "–",
        )  # fmt: skip
        if len(rules) > 1 or any(rule in CleanConfig.model_fields for rule in rules):
            for rule, number in sorted(rules.items(), key=lambda pair: -pair[1]):
                limit = f" ({thresholds[rule]})" if rule in thresholds else ""
                yield f"– {title_of_rule(rule)}{limit}", markup.count(number), ""


def _is_known(step: str) -> bool:
    return step == "length" or step in CleanConfig.model_fields


def title_of_rule(rule: str) -> str:
    """Returns the title of an option, or the rule's own words."""
    field = CleanConfig.model_fields.get(rule)
    return title_of(rule, field) if field else rule


def read_report(corpus: Artifact) -> dict[str, Any]:
    """Reads the report of a cleaned corpus; without one, the counts of its manifest."""
    path = corpus.path / REPORT_FILE
    try:
        if path.stat().st_size <= _MOST_REPORT_BYTES:
            values = parse_json(path.read_bytes())
            if is_report(values):
                return {**values, **_skipped_of(corpus.manifest.counts)}
    except (OSError, ValueError):
        pass
    counts = corpus.manifest.counts
    return dict(counts) if is_report(counts) else {}


def _skipped_of(counts: Mapping[str, Any]) -> dict[str, int]:
    return {name: counts[name] for name in _SKIPPED if isinstance(counts.get(name), int)}


def is_report(values: Any) -> bool:
    """Returns whether a file's values have the form of a report."""
    try:
        return isinstance(values, dict) and _has_form_of_report(values)
    except (AttributeError, KeyError, TypeError):
        return False


def _has_form_of_report(values: Mapping[str, Any]) -> bool:
    totals = [values.get(name, 0) for name in _TOTALS]
    sources = list(values.get("sources", {}).values())
    steps = list(values.get("steps", {}).values())
    examples = [example for of_step in values.get("examples", {}).values() for example in of_step]
    return (
        all(isinstance(table, dict) for table in [*sources, *steps, *examples])
        and _are_counts(totals)
        and _are_counts(values.get("read", {}).values())
        and all(_are_counts(source["read"].values()) for source in sources)
        and all(isinstance(step.get("thresholds", {}), dict) for step in steps)
        and all(_are_counts(step.get("removed_by", {}).values()) for step in steps)
    )


def _are_counts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int) for value in values)


def describe_report(corpus: Artifact) -> dict[str, Any]:
    """Returns what the Runs tab shows of a cleaned corpus."""
    report = read_report(corpus)
    return {
        "figures": [list(pair) for pair in _figures(report)],
        "skipped": _describe_skipped(report),
        "sources": [list(row) for row in _source_rows(report)],
        "rows": [list(row) for row in step_rows(_steps(report))],
        "examples": [list(example) for example in _examples(report)],
    }


def render_report(corpus: Artifact) -> str:
    """Renders the report of a cleaned corpus: counts and examples of each step."""
    report = read_report(corpus)
    examples = "".join(_example(*example) for example in _examples(report))
    shown = (
        f'<details class="ps-cleaning-group"><summary>Examples</summary>'
        f'<ol class="ps-cleaned">{examples}</ol></details>'
        if examples
        else ""
    )
    incomplete = _describe_skipped(report)
    skipped = f'<p class="ps-warning">{escape(incomplete)}</p>' if incomplete else ""
    return (
        f'<div class="ps-cleaning">{markup.tiles(_figures(report))}{skipped}{_sources(report)}'
        f"{render_steps(_steps(report))}{shown}</div>"
    )


def _steps(report: Mapping[str, Any]) -> Mapping[str, Step]:
    steps = report.get("steps")
    return steps if isinstance(steps, dict) else {}


def _figures(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    read = report.get("read", {})
    num_documents = report.get("train_documents", 0) + report.get("validation_documents", 0)
    size = report.get("train_bytes", 0) + report.get("validation_bytes", 0)
    total = read.get("documents", 0)
    yield "documents kept", f"{markup.count(num_documents)} of {markup.count(total)}"
    yield (
        "of text kept",
        f"{markup.byte_count(size)} of {markup.byte_count(read.get('bytes', 0))}",
    )
    yield "for training", markup.count(report.get("train_documents", 0))
    yield "for validation", markup.count(report.get("validation_documents", 0))


def _describe_skipped(report: Mapping[str, Any]) -> str:
    """Says what could not be read, if anything."""
    left_out = [f"{markup.count(report[name])} {things}" for name, things in _SKIPPED.items()
                if report.get(name)]  # fmt: skip
    return f"Incomplete: {' and '.join(left_out)} could not be read." if left_out else ""


def _sources(report: Mapping[str, Any]) -> str:
    rows = list(_source_rows(report))
    if not rows:
        return ""
    return markup.table(("Source", "Read", "Training", "Validation"), rows, label="Sources")


def _source_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    sources = report.get("sources")
    for name, source in sources.items() if isinstance(sources, dict) else ():
        yield (
            name,
            markup.count(source["read"].get("documents", 0)),
            markup.count(source.get("train_documents", 0)),
            markup.count(source.get("validation_documents", 0)),
        )


def _examples(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields reason, text before and text after; the last is empty for removed documents."""
    examples = report.get("examples")
    for step, of_step in examples.items() if isinstance(examples, dict) else ():
        for example in of_step:
            title = title_of_step(step) if _is_known(step) else step
            reason = f"{title}: {example['explanation']}" if example.get("explanation") else title
            yield reason, str(example.get("before", "")), str(example.get("after", ""))


def _example(reason: str, before: str, after: str) -> str:
    if not after:
        return f"<li>{_badge('failed', reason)}{_text(escape(before))}</li>"
    old, new = mark_differences(before, after)
    return (
        f"<li>{_badge('running', reason)}"
        f'<div class="ps-before-after">{_text(old, "Before")}{_text(new, "After")}</div></li>'
    )
