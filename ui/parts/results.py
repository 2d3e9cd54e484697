"""Renders the figures of evaluations and fine-tunings; all text is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from core.config.metrics import is_share
from core.evaluation.baselines import baselines_for
from core.exporting.commands import commands
from core.finetuning.names import METRICS, RANDOM_INIT
from ui.parts import markup
from ui.present import escape, is_link

_MOST_ROWS = 500
# Columns beside the model's own; the table of all has the others.
_COMPARED = (
    ("LSTM (83 million tokens)", "LSTM"),
    ("BabyLM 2023, 10 million words, RoBERTa-base", "BabyLM RoBERTa"),
    ("GPT-2 large (WebText)", "GPT-2 large"),
)
_SCORES = {
    "pseudo_log_likelihood": "pseudo-log-likelihood, each token masked once",
    "log_likelihood": "log-likelihood",
    "masked_source_log_likelihood": "likelihood of each token, given a source that masks it",
}

Figures = Mapping[str, Any]


def results_of(stage: str, figures: Figures) -> str:
    """Renders a run's figures; "" for other stages and unfinished runs."""
    if stage == "evaluate" and figures.get("task") == "minimal_pairs":
        return _pairs(figures)
    if stage == "evaluate" and figures.get("task") == "text":
        return _text(figures)
    if stage == "export" and "file" in figures:
        return _export(figures)
    return _finetuning(figures) if stage == "finetune" and "per_seed" in figures else ""


def _export(figures: Figures) -> str:
    folder = Path(str(figures["artifact"]))
    tiles = [
        ("file size", markup.byte_count(figures["bytes"])),
        ("divergence from the model, in nats", f"{figures['divergence']:.2g}"),
    ]
    blocks = [("File", str(folder / figures["file"])), *commands(folder, figures).items()]
    return f'<div class="ps-results">{markup.tiles(tiles)}{markup.code_blocks(blocks)}</div>'


def headline(figures: Figures) -> str:
    """Returns an evaluation's main figure in a few words."""
    if figures.get("task") == "text":
        return f"{_number(figures, 'bits_per_byte')} bits per byte"
    return f"{_percent(figures.get('accuracy'))} of {_count(figures, 'pairs')} pairs"


def finetuning_headline(figures: Figures) -> str:
    """Returns a fine-tuned model's first metric, with its spread over seeds."""
    name = next((metric for metric in METRICS if metric in figures), "")
    return f"{METRICS[name]} {_with_spread(figures, name)}" if name else ""


def _pairs(figures: Figures) -> str:
    phenomena, paradigms = _named(figures, "by_phenomenon"), _named(figures, "by_paradigm")
    low, high = _interval(figures)
    tiles = [
        ("accuracy, a tie counts half", _percent(figures.get("accuracy"))),
        ("95 % interval", f"{low}–{high}"),
        ("mean over paradigms", _percent(figures.get("mean_over_paradigms"))),
        ("mean over phenomena", _percent(figures.get("mean_over_phenomena"))),
        ("official accuracy, a tie is right", _percent(figures.get("official_accuracy"))),
        ("pairs", _count(figures, "pairs")),
    ]
    parts = [markup.tiles(tile for tile in tiles if tile[1] != "–"), _about(figures)]
    if phenomena:
        parts += [_heading("By phenomenon"), _phenomena(phenomena)]
    parts.append(_published(figures, phenomena))
    if paradigms:
        title = f"By paradigm ({markup.count(len(paradigms))})"
        parts.append(_folded(title, _paradigms(paradigms), is_open=not phenomena))
    return _block(parts)


def _phenomena(phenomena: Mapping[str, Figures]) -> str:
    known = {baseline["name"]: baseline["by_phenomenon"] for baseline in baselines_for(phenomena)}
    compared = [(title, known[name]) for name, title in _COMPARED if name in known]
    headings = ["Phenomenon", "Accuracy", "95 % interval", "Pairs", *dict(compared)]
    rows = [
        (*_row(name, of_phenomenon), *(_percent(values.get(name)) for _, values in compared))
        for name, of_phenomenon in phenomena.items()
    ]
    return markup.table(headings, rows, label="Accuracy by phenomenon")


def _paradigms(paradigms: Mapping[str, Figures]) -> str:
    rows = [_row(name, of_paradigm) for name, of_paradigm in paradigms.items()]
    headings = ("Paradigm", "Accuracy", "95 % interval", "Pairs")
    return markup.table(headings, rows, label="Accuracy by paradigm")


def _row(name: str, figures: Figures) -> tuple[str, ...]:
    interval = "–".join(_interval(figures))
    return _readable(name), _percent(figures.get("accuracy")), interval, _count(figures, "pairs")


def _published(figures: Figures, phenomena: Mapping[str, Figures]) -> str:
    """Lists the published figures with the model among them, the most accurate first."""
    baselines = baselines_for(phenomena)
    own = figures.get("mean_over_paradigms")
    if not baselines or not isinstance(own, (int, float)):
        return ""
    rows = [(each["accuracy"], each["name"], _source(each["source"])) for each in baselines]
    rows.append((float(own), f"{figures.get('model', 'This model')} (this model)", "measured here"))
    rows.sort(key=lambda row: -row[0])
    table = markup.table(
        ("Model", "Accuracy", "Source"),
        [(name, _percent(share), source) for share, name, source in rows],
        label="Published figures",
    )
    links = "; ".join(map(_link, dict.fromkeys(baseline["source"] for baseline in baselines)))
    return (
        f"{_heading('Published figures')}{table}"
        f'<p class="ps-note">Means over paradigms; for BabyLM 2023 over phenomena, on the pairs '
        f"whose words occur in its training text. Sources: {links}.</p>"
    )


def _source(source: str) -> str:
    """Shortens an address with a remark: babylm-eval (2026)."""
    address, _, remark = source.partition(" ")
    return f"{PurePosixPath(address).name} {remark}".strip()


def _link(source: str) -> str:
    address = source.partition(" ")[0]
    if not is_link(address):
        return escape(source)
    return (
        f'<a href="{escape(address)}" target="_blank" rel="noreferrer">{escape(_source(source))}'
        "</a>"
    )


def _text(figures: Figures) -> str:
    tiles = [
        ("bits per byte", _number(figures, "bits_per_byte")),
        ("loss, nats per token", _number(figures, "loss")),
        ("perplexity", _number(figures, "perplexity")),
        ("tokens", _count(figures, "tokens")),
    ]
    sources = _named(figures, "by_source")
    headings = ("Source", "Bits per byte", "Loss", "Perplexity", "Tokens", "Documents")
    rows = [
        (
            name,
            *(_number(of_source, figure) for figure in ("bits_per_byte", "loss", "perplexity")),
            *(_count(of_source, figure) for figure in ("tokens", "documents")),
        )
        for name, of_source in sources.items()
    ]
    parts = [markup.tiles(tiles), _about(figures)]
    if len(sources) > 1:
        parts += [_heading("By source"), markup.table(headings, rows, label="Figures by source")]
    return _block(parts)


def _about(figures: Figures) -> str:
    score = _SCORES.get(str(figures.get("score")), str(figures.get("score", "")))
    step, model = figures.get("step"), str(figures.get("model", ""))
    if _is(step) and not model.endswith(f"@{step}"):
        model += f", step {markup.count(step)}"
    seconds = figures.get("seconds")
    took = f" Took {markup.rough_duration(float(seconds))}." if _is(seconds) else ""
    return f'<p class="ps-note">Model: <b>{escape(model)}</b>. Score: {escape(score)}.{took}</p>'


def _finetuning(figures: Figures) -> str:
    constant = "Mean" if figures.get("task") == "regression" else "Majority class"
    names = [name for name in METRICS if name in figures]
    rows = [
        (
            METRICS[name],
            _with_spread(figures, name),
            _with_spread(figures, f"{RANDOM_INIT}{name}"),
            _metric(name, figures.get(f"majority_{name}")),
        )
        for name in names
    ]
    headings = ("Metric", "This model", "Random weights", constant)
    listed = figures.get("per_seed")
    of_seeds = listed if isinstance(listed, list) else []
    seeds = [of_seed for of_seed in of_seeds if isinstance(of_seed, Mapping)]
    parts = [
        _gain(figures, names),
        markup.table(headings, rows, label="Metrics beside the baselines"),
        _tested(figures, len(seeds)),
        _rates(figures),
        _seeds(seeds, names),
    ]
    return _block(parts)


def _gain(figures: Figures, names: Sequence[str]) -> str:
    if not names:
        return ""
    name = names[0]
    tiles = [
        (f"{METRICS[name]}, this model", _with_spread(figures, name)),
        ("same model from random weights", _with_spread(figures, f"{RANDOM_INIT}{name}")),
    ]
    return markup.tiles(tiles)


def _tested(figures: Figures, seeds: int) -> str:
    spread = f", mean ± standard deviation of {seeds} seeds" if seeds > 1 else ""
    base = escape(figures.get("model", ""))
    return (
        f'<p class="ps-note">Fine-tuned from <b>{base}</b>; measured on '
        f"{_count(figures, 'test_examples')} examples ({escape(figures.get('test_name', ''))})"
        f"{spread}. Trained on {_count(figures, 'train_examples')}.</p>"
    )


def _rates(figures: Figures) -> str:
    tried = figures.get("learning_rates")
    if not isinstance(tried, Mapping) or len(tried) < 2:
        return ""
    metric = str(figures.get("metric", ""))
    rows = [(str(rate), _metric(metric, value)) for rate, value in list(tried.items())[:_MOST_ROWS]]
    table = markup.table(("Learning rate", "Development set"), rows, label="Learning rates")
    chosen = _write(figures.get("learning_rate"))
    return _folded(f"Learning rates tried; {chosen} was chosen", table)


def _seeds(seeds: Sequence[Figures], names: Sequence[str]) -> str:
    if len(seeds) < 2:
        return ""
    headings = ("Seed", "Best epoch", *(METRICS[name] for name in names))
    rows = []
    for number, of_seed in enumerate(seeds[:_MOST_ROWS]):
        tested = of_seed.get("test")
        values: Figures = tested if isinstance(tested, Mapping) else of_seed
        cells = (_metric(name, values.get(name)) for name in names)
        rows.append((str(of_seed.get("seed", number)), str(of_seed.get("epoch", "–")), *cells))
    return _folded("Each seed", markup.table(headings, rows, label="Results by seed"))


def _with_spread(figures: Figures, name: str) -> str:
    spread = figures.get(f"{name}_std")
    # More digits of a few seeds' spread are chance.
    shown = f" ± {_metric(name, float(f'{spread:.2g}'))}" if _is(spread) else ""
    return _metric(name, figures.get(name)) + shown


def _metric(name: str, value: Any) -> str:
    """Formats an accuracy as a percentage, as everywhere, and other metrics as they are."""
    return _percent(value) if is_share(name) else _write(value)


def _block(parts: Sequence[str]) -> str:
    return f'<div class="ps-results">{"".join(parts)}</div>'


def _heading(text: str) -> str:
    return f'<h4 class="ps-subheading">{escape(text)}</h4>'


def _folded(title: str, content: str, *, is_open: bool = False) -> str:
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{escape(title)}</summary>{content}</details>"


def _named(figures: Figures, name: str) -> dict[str, Figures]:
    return dict(_rows_of(figures.get(name)))


def _rows_of(figures_by_name: Any) -> Iterator[tuple[str, Figures]]:
    if not isinstance(figures_by_name, Mapping):
        return
    for name, figures in list(figures_by_name.items())[:_MOST_ROWS]:
        if isinstance(figures, Mapping):
            yield str(name), figures


def _interval(figures: Figures) -> tuple[str, str]:
    bounds = figures.get("interval")
    if isinstance(bounds, Sequence) and len(bounds) == 2 and all(map(_is, bounds)):
        return f"{100 * bounds[0]:.1f}", f"{100 * bounds[1]:.1f} %"
    return "", ""


def _readable(name: str) -> str:
    return name.replace("_", " ") or "without a name"


def _is(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _percent(share: Any) -> str:
    return f"{100 * share:.1f} %" if _is(share) else "–"


def _count(figures: Figures, name: str) -> str:
    value = figures.get(name)
    return markup.count(value) if isinstance(value, (int, float)) else "–"


def _number(figures: Figures, name: str) -> str:
    return _write(figures.get(name))


def _write(value: Any) -> str:
    return f"{value:.4g}" if _is(value) else "–"
