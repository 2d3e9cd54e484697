"""Writes the README.md of a fine-tuned model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from core.architecture.heads import Kind
from core.config.finetune import FinetuneConfig
from core.config.options import title_of
from core.families import title_of_family
from core.finetuning.glue import GLUE
from core.finetuning.heads import body_mappings, classifier_class, head_mappings
from core.finetuning.names import METRICS, RANDOM_INIT
from core.finetuning.saving import ClassifierConfig, read_classifier_config
from core.hub.client import parse_hub_id
from core.publishing.card_notes import CardNotes
from core.publishing.facts import ModelFacts
from core.publishing.markdown import Markdown, code, escape_markup, table
from core.workspace.manifests import Manifest

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_TASKS: dict[Kind, tuple[str, str]] = {
    "sequence": ("text-classification", "Text classification"),
    "token": ("token-classification", "Token classification"),
}
_SHOWN_LABELS = 50
_SETTINGS = (
    "num_train_epochs", "per_replica_batch_size", "max_seq_length", "weight_decay", "warmup_ratio",
    "patience", "dtype_policy",
)  # fmt: skip
_STUDIO = "Pretrain Studio"


def classifier_card(facts: ModelFacts, notes: CardNotes) -> str:
    """Returns the card, with the results in `model-index` if they are known."""
    from huggingface_hub import ModelCardData

    config = read_classifier_config(facts.folder)
    made = facts.finetuning
    results = list(_results(made, config)) if made else []
    base = parse_hub_id(str(made.config.get("model") or "")) if made else None
    dataset = str(made.config.get("dataset_name") or "") if made else ""
    dataset = dataset if parse_hub_id(dataset) else ""
    data = ModelCardData(
        language=notes.languages or None,
        license=notes.license or None,
        library_name="transformers",
        pipeline_tag=_TASKS[config.kind][0],
        base_model=base[0] if base else None,
        datasets=[dataset] if dataset else None,
        tags=[config.architecture.model_type, "pretrain-studio"],
        model_name=notes.name if results else None,
        eval_results=results or None,
        parameters=_parameters(config),
    )
    sections = [
        f"# {notes.name}",
        notes.description,
        _about(config, made),
        f"## Use\n\n{_use(config, notes)}",
        f"## Results\n\n{_table_of_results(made)}" if made else "",
        f"## Fine-tuning\n\n{_settings(made)}" if made else "",
    ]
    body = "\n\n".join(section for section in sections if section)
    return f"---\n{data.to_yaml()}\n---\n\n{body}\n"


def _results(made: Manifest, config: ClassifierConfig) -> Iterator[EvalResult]:
    from huggingface_hub import EvalResult

    kind, title = _TASKS[config.kind]
    values = made.config
    dataset = str(values.get("dataset_name") or "")
    name = str(made.counts.get("test_name") or "examples")
    is_glue = dataset == GLUE
    for figure, metric in METRICS.items():
        for prefix, what in (("", ""), ("majority_", ", baseline"), (RANDOM_INIT, ", random")):
            value = made.counts.get(f"{prefix}{figure}")
            if isinstance(value, int | float):
                yield EvalResult(
                    task_type=kind,
                    task_name=title,
                    dataset_type=dataset or PurePath(name).stem,
                    dataset_name=f"GLUE {values.get('glue')}" if is_glue else dataset or name,
                    dataset_config=str(values.get("dataset_config") or "") or None,
                    dataset_split=name if dataset else None,
                    metric_type="f1" if "f1" in figure else figure,
                    metric_name=f"{metric}{what}",
                    metric_value=round(float(value), 6),
                )


def _about(config: ClassifierConfig, made: Manifest | None) -> str:
    family = title_of_family(config.architecture.model_type)
    task = "tags words" if config.kind == "token" else "classifies texts"
    if config.score_function == "none":
        task = f"predicts {'a number' if config.outputs == 1 else 'numbers'} for a text"
    whence = (
        f", fine-tuned with {_STUDIO} from {escape_markup(made.counts.get('model'))}"
        if made
        else ""
    )
    names = ", ".join(map(code, config.labels[:_SHOWN_LABELS]))
    more = len(config.labels) - _SHOWN_LABELS
    labels = f"\n\nLabels: {names}{f' and {more} more' if more > 0 else ''}." if names else ""
    return f"A {family} model that {task}{whence}.{labels}"


def _use(config: ClassifierConfig, notes: CardNotes) -> str:
    task = _TASKS[config.kind][0]
    command = "tag" if config.kind == "token" else "classify"
    return (
        "```python\nfrom transformers import pipeline\n\n"
        f'predict = pipeline("{task}", {notes.arguments})\nprint(predict("Some words."))\n```\n\n'
        f'In {_STUDIO}:\n\n```sh\npython -m core {command} {notes.reference} "Some words."\n```\n\n'
        f"The class is `{classifier_class(config.architecture, config.kind)}`."
    )


def _table_of_results(made: Manifest) -> str:
    counts = made.counts
    constant = "mean" if counts.get("task") == "regression" else "majority class"
    rows = []
    for name, title in METRICS.items():
        if isinstance(counts.get(name), int | float):
            cells = (
                _cell(counts, name),
                _cell(counts, f"{RANDOM_INIT}{name}"),
                _cell(counts, f"majority_{name}"),
            )
            rows.append((title, Markdown(f"**{cells[0]}**"), *cells[1:]))
    seeds = len(counts.get("per_seed", ()))
    spread = f", mean and standard deviation of {seeds} seeds" if seeds > 1 else ""
    examples = counts.get("test_examples")
    measured = f"Measured on {examples:,} examples" if isinstance(examples, int) else "Measured"
    about = f"{measured} ({escape_markup(counts.get('test_name'))}){spread}."
    head = ("", "model", "same from random weights", constant)
    return f"{about}\n\n{table(head, rows)}"


def _cell(counts: Mapping[str, Any], name: str) -> str:
    value, spread = counts.get(name), counts.get(f"{name}_std")
    if not isinstance(value, int | float):
        return ""
    return f"{value:.4f}" + (f" ± {spread:.4f}" if isinstance(spread, int | float) else "")


def _settings(made: Manifest) -> str:
    rows = [("Learning rate", made.counts.get("learning_rate"))]
    rows += [
        (title_of(name, FinetuneConfig.model_fields[name]), made.config.get(name))
        for name in _SETTINGS
    ]
    rows.append(("Training examples", made.counts.get("train_examples")))
    return table(("", ""), [(title, code(value)) for title, value in rows if value is not None])


def _parameters(config: ClassifierConfig) -> int:
    architecture, head = config.architecture, config.head
    body = sum(math.prod(mapping.shape) for mapping in body_mappings(architecture, head))
    return body + sum(
        math.prod(mapping.shape) for mapping in head_mappings(architecture, head, config.outputs)
    )
