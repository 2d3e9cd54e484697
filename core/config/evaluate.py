"""Options of the evaluation of a model, also during training."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

from core.config.options import option, option_like
from core.config.remote import (
    RemoteConfig,
    max_cost_option,
    max_hours_option,
    mirror_option,
    price_option,
    target_option,
)
from core.config.source import Delimiter, EncodingErrors, FileFormat, SourceConfig, TextUnit, YesNo

BLIMP = "nyu-mll/blimp"
EvaluationTask = Literal["minimal_pairs", "text"]

_as_of_corpus = partial(option_like, SourceConfig, is_later=True)


class EvaluateConfig(RemoteConfig):
    """Options for evaluating a model on minimal pairs or on held-out text."""

    name: str = option(
        "",
        "Name of the evaluation; empty: from the model and the data.",
        group="Model",
        identity=False,
    )
    model: str = option(
        "",
        "Name in the workspace, a folder, a Hub id, or a run's checkpoint.",
        details="RUN is the newest checkpoint of a run, RUN@500 that of step 500, RUN@best the one "
        "with the lowest validation loss, and RUN@words-1000000 the one kept at a million words.",
        group="Model",
        basic=True,
        artifact="model",
    )
    task: EvaluationTask = option(
        "minimal_pairs",
        "What the model is evaluated on.",
        options={
            "minimal_pairs": (
                "Minimal pairs",
                "Whether it prefers acceptable sentences to unacceptable ones, as in BLiMP",
            ),
            "text": ("Held-out text", "Loss, perplexity and bits per byte"),
        },
        group="Model",
        basic=True,
    )
    path: str = option(
        "",
        "A file, a folder or a pattern like data/*.jsonl on this machine.",
        title="Path",
        group="Data",
        basic=True,
        path=True,
        details="Minimal pairs are JSON lines; text is in any format that a corpus has. Empty: a "
        "dataset on the Hub.",
    )
    dataset_name: str = option(
        "",
        f"Dataset on the Hub, if there is no path; empty: {BLIMP}, for minimal pairs.",
        title="Dataset",
        group="Data",
        basic=True,
    )
    dataset_config: str = option(
        "",
        "Configuration of the dataset; empty means all.",
        title="Configuration",
        group="Data",
    )
    split: str = option("train", "Split of the dataset.", group="Data")
    limit: int | None = option(
        None,
        "Read at most this many pairs per paradigm, or documents per file or configuration; empty "
        "means all.",
        group="Data",
        basic=True,
        ge=1,
    )
    good_field: str = option(
        "sentence_good", "Field with the acceptable sentence.", group="Minimal pairs"
    )
    bad_field: str = option(
        "sentence_bad", "Field with the unacceptable sentence.", group="Minimal pairs"
    )
    paradigm_field: str = option(
        "UID",
        "Field with the paradigm.",
        details="Files without it are one paradigm each.",
        group="Minimal pairs",
    )
    phenomenon_field: str = option(
        "linguistics_term", "Field with the phenomenon, if there is one.", group="Minimal pairs"
    )
    text_unit: TextUnit = _as_of_corpus("text_unit", group="Text")
    text_column: str = option(
        "", "Column of a table or dataset with the text.", group="Text", choices=("text",)
    )
    context_tokens: int | None = option(
        None,
        "Tokens that the model sees of a longer document; empty means its maximum, at most 512.",
        details="Of a longer document, overlapping windows are scored.",
        title="Context length",
        group="Text",
        ge=2,
    )
    encoding: str = option(
        "", "Character encoding, such as utf-16 or cp949; empty means UTF-8.", group="Data"
    )
    encoding_errors: EncodingErrors = _as_of_corpus("encoding_errors", group="Data")
    file_format: FileFormat = _as_of_corpus("file_format", group="Text")
    csv_header: YesNo = _as_of_corpus("csv_header", group="Text")
    delimiter: Delimiter = _as_of_corpus("delimiter", group="Text")
    quoting: YesNo = _as_of_corpus("quoting", group="Text")
    target: str = target_option()
    max_hours: float | None = max_hours_option()
    max_cost: float | None = max_cost_option()
    price_per_hour: float | None = price_option()
    mirror: str = mirror_option()

    @property
    def dataset(self) -> str:
        """The dataset on the Hub that is read; "" if there is a path, or nothing to read."""
        if self.path:
            return ""
        return self.dataset_name or (BLIMP if self.task == "minimal_pairs" else "")


OF_DATASETS = ("dataset_name", "dataset_config", "split")
OF_FILES = (
    "text_unit", "encoding", "encoding_errors", "file_format", "csv_header", "delimiter", "quoting",
)  # fmt: skip
OF_TASKS = {
    "minimal_pairs": ("good_field", "bad_field", "paradigm_field", "phenomenon_field"),
    "text": (
        "text_unit", "text_column", "context_tokens", "file_format", "csv_header", "delimiter",
        "quoting",
    ),
}  # fmt: skip
_NOT_IN_TRAINING = {"model", "task", "path", *EvaluateConfig.fields_outside_identity()}
IN_TRAINING = [name for name in EvaluateConfig.model_fields if name not in _NOT_IN_TRAINING]


def names_in_training(task: str) -> dict[str, str]:
    """Returns the names that the options of an evaluation have in training."""
    names = {name: f"evaluate_{name}" for name in IN_TRAINING}
    if task == "text":
        return names | {name: f"evaluate_text_{name}" for name in ("path", *OF_DATASETS)}
    return {**names, "path": "evaluate_pairs_path"}


def declare_in_training(namespace: dict[str, Any], names: Iterable[str] = IN_TRAINING) -> None:
    """Declares options in a class body, whose `vars()` are given, by their names in training."""
    for name in names:
        namespace[f"evaluate_{name}"] = field = option_like(
            EvaluateConfig, name, group="Evaluation during training", identity=False
        )
        namespace["__annotations__"][f"evaluate_{name}"] = field.annotation


def options_read(task: str, *, has_path: bool) -> list[str]:
    """Returns the options that have an effect on the figures, without the model."""
    unread = {name for other, names in OF_TASKS.items() if other != task for name in names}
    unread |= set(OF_DATASETS if has_path else (*OF_FILES, "path"))
    unread |= {"model", *EvaluateConfig.fields_outside_identity()}
    return [name for name in EvaluateConfig.model_fields if name not in unread]
