"""Options of fine-tuning a model on a labelled task."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from core.config.options import option, split_names
from core.config.remote import (
    RemoteConfig,
    max_cost_option,
    max_hours_option,
    mirror_option,
    price_option,
    target_option,
)
from core.config.reporting import (
    WebhookFormat,
    project_option,
    report_to_option,
    webhook_format_option,
    webhook_option,
)

FinetuneTask = Literal["classification", "regression", "token_classification"]
GlueTask = Literal[
    "", "cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli",
]  # fmt: skip


# A `tiny` model from Muon needs 1e-3 to learn to tag. A `mini` model needs 3e-4 to learn to
# classify: with 1e-3 it learns badly, and nothing from random weights.
_RATES_BY_WIDTH = {128: "3e-4 1e-3 3e-3", 512: "1e-4 3e-4 1e-3"}
_RATES_OF_WIDE_MODELS = "3e-5 1e-4 3e-4"


def rates_of_width(width: int) -> str:
    """Returns three learning rates to try for a model's width H."""
    fitting_rates = (rates for most, rates in _RATES_BY_WIDTH.items() if width <= most)
    return next(fitting_rates, _RATES_OF_WIDE_MODELS)


class FinetuneConfig(RemoteConfig):
    """Options for fine-tuning a model on labelled examples."""

    name: str = option(
        "",
        "Name of the fine-tuned model; empty: from the model and the data.",
        group="Model",
        identity=False,
    )
    model: str = option(
        "",
        "Name in the workspace, a folder, a Hub id, or a run's checkpoint.",
        group="Model",
        basic=True,
        artifact="model",
    )
    task: FinetuneTask = option(
        "classification",
        "What the model learns to predict.",
        options={
            "classification": ("Classification", "A class for each text or pair of texts"),
            "regression": ("Regression", "A number for each text or pair of texts"),
            "token_classification": ("Token classification", "A tag for each word"),
        },
        group="Model",
        basic=True,
    )
    glue: GlueTask = option(
        "",
        "A GLUE task by name; it sets the task, the dataset and its columns.",
        title="GLUE task",
        group="Data",
        options={"": ("None", "")},
        details="Read from nyu-mll/glue on the Hub; the results are those on its validation split, "
        "as the labels of its test split are not public.",
    )
    train_path: str = option(
        "",
        "Training examples: CSV, TSV, JSON lines, Parquet, CoNLL-U or columns.",
        title="Training file",
        group="Data",
        basic=True,
        path=True,
    )
    validation_path: str = option(
        "",
        "Development set for early stopping; empty: part of the training examples.",
        title="Development file",
        group="Data",
        basic=True,
        path=True,
    )
    test_path: str = option(
        "",
        "Examples for the results; empty: the development set.",
        title="Test file",
        group="Data",
        basic=True,
        path=True,
    )
    dataset_name: str = option(
        "",
        "Dataset on the Hub, if there is no training file.",
        title="Dataset",
        group="Data",
        basic=True,
    )
    dataset_config: str = option(
        "", "Configuration of the dataset; empty means its only one.", title="Configuration",
        group="Hub",
    )  # fmt: skip
    train_split: str = option("train", "Split with the training examples.", group="Hub")
    validation_split: str = option(
        "", "Split for early stopping; empty: part of the training split.", group="Hub"
    )
    test_split: str = option("", "Split for the results; empty: none.", group="Hub")
    text_column: str = option(
        "",
        "Column with the text or the words; empty: found by its usual name.",
        details="In column files, a number from 1, or a name in the header; by default the first "
        "one.",
        group="Columns",
    )
    text_pair_column: str = option(
        "", "Column with the second text of a pair; empty: none, or found by its usual name.",
        group="Columns",
    )  # fmt: skip
    label_column: str = option(
        "",
        "Column with the label, number or tag; empty: found by its usual name.",
        details="In CoNLL-U: upos (default), xpos or deprel; in other column files, a number from "
        "1, or a name in the header; by default the last one.",
        group="Columns",
    )
    encoding: str = option(
        "", "Character encoding, such as utf-16 or cp949; empty means UTF-8.", group="Data"
    )
    quoting: Literal["auto", "yes", "no"] = option(
        "auto",
        "Whether quotation marks enclose cells of a CSV or TSV file.",
        options={
            "auto": ("Automatic", "yes in CSV; no in TSV, whose definition has no quoting"),
            "yes": ("Yes", "Marks enclose cells, which can span several lines"),
            "no": ("No", "Marks are text, and each line is a row"),
        },
        group="Data",
    )
    csv_header: Literal["auto", "yes", "no"] = option(
        "auto",
        "Whether the first row of a CSV, TSV or column file names the columns.",
        title="CSV header",
        options={
            "auto": ("Automatic", "yes in CSV and TSV; in column files, if text_column or "
                     "label_column is a name"),
            "yes": ("Yes", ""),
            "no": ("No", "the columns are called 1, 2, 3"),
        },
        group="Data",
    )  # fmt: skip
    limit: int | None = option(
        None,
        "Train on at most this many examples; empty means all.",
        details="They are a random sample, always the same one, in their order.",
        group="Data",
        ge=2,
    )
    max_seq_length: int = option(
        128,
        "Longer texts are cut off at this many tokens; long sentences to tag are split.",
        title="Sequence length",
        group="Training",
        ge=8,
        le=65_536,
    )
    num_train_epochs: int = option(
        3,
        "Passes over the training examples.",
        title="Epochs",
        group="Training",
        basic=True,
        ge=1,
        le=1000,
    )
    per_replica_batch_size: int = option(
        32, "Examples per step.", title="Batch size", group="Training", basic=True, ge=1, le=65_536
    )
    learning_rates: str = option(
        "",
        "Peak learning rates to try; empty: three that suit the model's size.",
        details="The best on the development set is used. Empty means 3e-4, 1e-3 and 3e-3 for a "
        "width of at most 128, 1e-4, 3e-4 and 1e-3 up to 512, and 3e-5, 1e-4 and 3e-4 above. "
        "BERT's authors tried 2e-5 to 5e-5 for base and large models.",
        group="Training",
        basic=True,
        is_numbers=True,
    )
    num_seeds: int = option(
        1,
        "Trainings with the best learning rate, each with its own seed.",
        details="They differ in the head's first weights, the order and dropout. The results are "
        "the mean and the standard deviation.",
        title="Seeds",
        group="Training",
        basic=True,
        ge=1,
        le=100,
    )
    seed: int = option(0, "First random seed.", group="Training", ge=0, lt=1 << 31)
    patience: int = option(
        2,
        "Stop after this many epochs without a better result on the development set.",
        details="The weights of the last epoch are kept whose result is within a standard error of "
        "the best one.",
        group="Training",
        ge=1,
    )
    warmup_ratio: float = option(
        0.1, "Share of the steps in which the learning rate rises.", group="Training", ge=0, le=1
    )
    weight_decay: float = option(0.01, "AdamW's weight decay.", group="Training", ge=0, le=1)
    dropout: float = option(
        0.1,
        "Dropout of hidden states and attention; few examples are soon overfitted.",
        group="Training",
        ge=0,
        lt=1,
    )
    r_drop: float = option(
        0.0,
        "Weight of R-Drop: two dropout masks should lead to the same prediction; 0: off.",
        details="Each batch is computed twice, which doubles the duration. It helps most with few "
        "examples; the authors tried 0.5, 1 and 5.",
        title="R-Drop",
        group="Training",
        ge=0,
        le=100,
    )
    target: str = target_option()
    max_hours: float | None = max_hours_option()
    max_cost: float | None = max_cost_option()
    price_per_hour: float | None = price_option()
    mirror: str = mirror_option()
    report_to: str = report_to_option()
    project: str = project_option()
    webhook: str = webhook_option()
    webhook_format: WebhookFormat = webhook_format_option()
    engine: Literal["auto", "tensorflow", "jax"] = option(
        "auto",
        "Library that computes.",
        options={
            "auto": ("Automatic", ""), "tensorflow": ("TensorFlow", ""), "jax": ("JAX", ""),
        },
        title="Backend",
        group="Device",
        identity=False,
    )  # fmt: skip
    device: Literal["auto", "cpu", "gpu", "tpu"] = option(
        "auto", "Device that computes; fine-tuning uses one.", group="Device", identity=False
    )
    dtype_policy: Literal["auto", "float32", "mixed_bfloat16"] = option(
        "float32", "Precision of the training.", title="Precision", group="Device"
    )

    @field_validator("learning_rates", mode="before")
    @classmethod
    def _write_rates(cls, value: Any) -> Any:
        """Returns a number, or a list of numbers, as the option's text."""
        rates = value if isinstance(value, list | tuple) else [value]
        is_text = isinstance(value, str) or any(isinstance(rate, bool) for rate in rates)
        return value if is_text else " ".join(map(str, rates))

    @field_validator("learning_rates")
    @classmethod
    def _check_rates(cls, value: str) -> str:
        if not value.strip():
            return ""
        try:
            rates = [float(number) for number in split_names(value)]
        except ValueError:
            rates = []
        if not rates or not all(0 < rate <= 1 for rate in rates):
            raise PydanticCustomError(
                "learning_rates", "one or more numbers between 0 and 1, such as 1e-4 3e-4"
            )
        return value

    @property
    def rates(self) -> list[float]:
        """The learning rates to try, without repetitions; by default those of narrow models."""
        given = self.learning_rates or rates_of_width(0)
        return list(dict.fromkeys(float(number) for number in split_names(given)))

    def for_width(self, width: int) -> Self:
        """Returns the config with learning rates for a model's width, unless it has some."""
        rates = self.learning_rates or rates_of_width(width)
        return self.model_copy(update={"learning_rates": rates})
