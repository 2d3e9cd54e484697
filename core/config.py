"""One pydantic model per stage, the only place where an option is declared.

The form, the command-line flags, the stored JSON and the documentation are generated from a field's
type, bounds, default and help. To add an option, add a field.

A *preset* fills unset fields; explicit values win. `core.presets` has the values and their sources.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from core.errors import ConfigError
from core.foreign_files import parse_json
from core.models.families import list_family_names
from core.models.family import Size
from core.presets import SHARD_PRESETS, TOKENIZER_PRESETS, TRAINING_PRESETS, Preset
from core.training.topologies import TOPOLOGIES

PresetName = Literal["classic", "flax", "custom"]
TrainPresetName = Literal["fast", "classic", "flax", "custom"]
# Precision of inference.
Dtype = Literal["auto", "float32", "mixed_bfloat16", "bfloat16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@dataclass(frozen=True)
class OneOf:
    """Limits a text field to names that are listed when a value is validated."""

    names: Callable[[], Sequence[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def _validate(self, value: Any) -> Any:
        names = self.names()
        if value in names:
            return value
        *others, last = map(repr, names)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise PydanticKnownError("literal_error", {"expected": expected})


Family = Annotated[str, OneOf(list_family_names)]

# The default dataset. It has several configurations, none of them the default.
_OFFERED_DATASET, _OFFERED_CONFIG = "Salesforce/wikitext", "wikitext-103-raw-v1"

HUB_ID_PATTERN = r"^$|^([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*$"
# Branch names on the Hub may contain /, but not in the owner/name@branch notation used here.
_BRANCH_PATTERN = r"^$|^[A-Za-z0-9][\w-]*(\.[\w-]+)*$"
_LANGUAGE_PATTERN = r"^[A-Za-z, -]*$"
# For error messages.
_WORDS_OF_PATTERNS = {
    HUB_ID_PATTERN: "a name like my-model or owner/my-model, of letters, digits, and . _ - within",
    _BRANCH_PATTERN: "a name like trial-2, of letters, digits, and . _ - within; no /",
    _LANGUAGE_PATTERN: "codes of languages with commas between them, such as en, or de, fr",
}
# The Hub accepts more: https://huggingface.co/docs/hub/repositories-licenses.
LICENSES = ("apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "cc0-1.0", "gpl-3.0", "other")

# Far above any tokenizer in use; ids fit in an unsigned 32-bit integer.
_MAX_VOCAB_SIZE = 1 << 24

_MOST_CONFIG_BYTES = 16 << 20

# Fields that name text, and the source that each implies.
_SOURCES = {"validation_path": "files", "path": "files", "dataset_name": "hub"}


def option(
    default: Any,
    help: str,
    *,
    title: str = "",
    group: str = "General",
    basic: bool = False,
    flag: str = "",
    choices: tuple[str, ...] = (),
    artifact: str = "",
    path: bool = False,
    **bounds: Any,
) -> Any:
    """Declares an option as a config field.

    Args:
        default: Default value.
        help: One or two sentences for the form, `--help` and the docs.
        title: Label in the form; derived from the name if empty.
        group: Heading in the advanced form.
        basic: Whether the basic form shows it.
        flag: Command-line flag, if it differs from the field's name.
        choices: Suggested values of a field that also allows others.
        artifact: Kind of artifact that it names.
        path: Whether it is a local path, which the web app confines to the allowed folders.
        **bounds: For pydantic's `Field`, such as `ge`, `max_length` or `pattern`.
    """
    extra: dict[str, Any] = {
        "group": group,
        "basic": basic,
        "flag": flag,
        "choices": list(choices),
        "artifact": artifact,
        "path": path,
    }
    return Field(default, title=title or None, description=help, json_schema_extra=extra, **bounds)


class StageConfig(BaseModel):
    """Base of all stage configs: strict fields, presets, fingerprints."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=()
    )

    # Fields that affect only naming, location or execution, not the result.
    unfingerprinted: ClassVar[frozenset[str]] = frozenset({"name"})
    presets: ClassVar[dict[str, Preset]] = {}
    # The field that selects a preset's variant, such as the family.
    variant: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "preset" not in cls.model_fields:
            return values
        return {**cls.preset_values(values), **values}

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_mistyped(cls, value: Any, info: ValidationInfo) -> Any:
        """Rejects integers with a dot (10.000 may mean 10 or 10,000) and text that isn't UTF-8.

        File names may hold undecodable bytes, which can't be stored.
        """
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, str) and any("\ud800" <= one <= "\udfff" for one in value):
            raise PydanticCustomError("not_utf_8", "text in UTF-8; rename such a file")
        if isinstance(value, str) and "." in value and plain_type(field)[0] is int:
            raise PydanticCustomError("int_dotted", "a whole number such as 10000")
        return value

    @classmethod
    def inferred(
        cls, values: dict[str, Any], before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Returns `values` completed by inferred ones; `before` are those they will be added to."""
        return values

    @classmethod
    def preset_values(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Returns a preset's values; reads only the preset and the variant field of `values`."""
        preset, variant = (
            values.get(name, cls.model_fields[name].default) if name else None
            for name in ("preset", cls.variant)
        )
        found = cls.presets.get(preset) if isinstance(preset, str) else None
        return found.values_for(variant) if found else {}

    @classmethod
    def preset_fields(cls) -> list[str]:
        filled = [
            values
            for preset in cls.presets.values()
            for values in (preset.values, *preset.variants.values())
        ]
        return sorted({name for values in filled for name in values})

    def __init__(self, **values: Any) -> None:
        """Validates plain values.

        Raises ConfigError if a value is unknown, missing, of the wrong type or out of bounds. Its
        `field` names the first such field.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise config_error(type(self), error) from error

    @classmethod
    def parse(cls, values: dict[str, Any]) -> typing.Self:
        """Makes a config from a dict; raises ConfigError like the constructor."""
        return cls(**values)

    def fingerprint(self) -> str:
        """Returns 16 hex digits that identify the fields that affect the result."""
        return fingerprint_of(self.model_dump(mode="json", exclude=set(self.unfingerprinted)))


class CorpusConfig(StageConfig):
    """The source of the text, and how some of it is held out for validation."""

    source: Literal["docs", "files", "hub"] = option(
        "docs",
        "docs: the documentation of the Python packages installed here (no download); "
        "files: text on this machine; hub: a dataset on the Hugging Face Hub, streamed. Where it "
        "isn't given, a path means files, and a dataset's name hub.",
        basic=True,
    )
    path: str = option(
        "",
        "A file, a folder or a pattern like data/*.txt (in a shell in quotes: 'data/*.txt'): .txt, "
        ".jsonl, .json, .csv, .tsv, .parquet, also compressed (.gz, .zst, .xz, .bz2, .zip).",
        basic=True,
        group="Files",
        path=True,
    )
    text_unit: Literal["line", "paragraph", "file"] = option(
        "line",
        "What one document is in a .txt file. Blank ones are skipped.",
        group="Files",
        basic=True,
    )
    text_column: str = option(
        "",
        "The column that holds the text; a.b is a field within a column, a[] joins a list of "
        "strings. Empty: the only string column, or the one named text.",
        group="Files",
        basic=True,
    )
    file_format: Literal["auto", "text", "jsonl", "json", "csv", "tsv", "parquet"] = option(
        "auto",
        "How to read the files, whatever they are called. auto: by suffix and content.",
        group="Files",
    )
    encoding: str = option(
        "",
        "The files' character encoding, such as utf-16, cp1252 or cp949. Empty: UTF-8.",
        group="Files",
        choices=("utf-16", "cp1252", "cp949", "cp932", "gb18030", "big5", "cp1251", "iso8859-2"),
    )
    encoding_errors: Literal["strict", "replace", "ignore"] = option(
        "strict",
        "Bytes that are not in the encoding. strict: refuse the file; replace: write U+FFFD in "
        "their place; ignore: drop them.",
        group="Files",
    )
    csv_header: Literal["auto", "yes", "no"] = option(
        "auto",
        "Whether the first row of a CSV or TSV file names the columns. no: columns are called 1, "
        "2, 3. auto: decided from the rows, refused where that is not clear.",
        title="CSV header",
        group="Files",
    )
    delimiter: Literal["auto", "comma", "semicolon", "tab", "pipe"] = option(
        "auto",
        "What separates the cells of a CSV or TSV file. auto: decided from the first rows.",
        group="Files",
    )
    quoting: Literal["auto", "yes", "no"] = option(
        "auto",
        "Whether quotation marks enclose cells of a CSV or TSV file. no: they are text, and each "
        "line is a row. auto: yes, but refused where the marks do not pair up.",
        group="Files",
    )
    skip_unreadable: bool = option(
        False,
        "Pass over files and folders that cannot be opened, instead of refusing to start.",
        group="Files",
    )
    max_document_mb: int = option(
        128,
        "Refuse files with a document, or a table row, larger than this many megabytes.",
        title="Document size limit (MB)",
        group="Files",
        ge=1,
        le=1_000_000,
    )
    max_unpack_ratio: int = option(
        200,
        "Refuse files that hold this many times their own size in text, from 256 MB of text on.",
        title="Unpacking limit (ratio)",
        group="Files",
        ge=1,
    )
    dataset_name: str = option(
        _OFFERED_DATASET, "The dataset's id on the Hub.", group="Hub", basic=True
    )
    dataset_config: str = option(
        "",
        f"The dataset's configuration. Empty: its default one; {_OFFERED_CONFIG} of "
        f"{_OFFERED_DATASET}.",
        group="Hub",
        basic=True,
    )
    train_split: str = option("train", "The dataset's split to train on.", group="Hub")
    validation_split: str = option(
        "",
        "The dataset's split to validate on. Empty: hold documents out of the training split.",
        group="Hub",
    )
    validation_path: str = option(
        "",
        "Files to validate on (a pattern: in a shell in quotes). Those that lie in the training "
        "folder aren't trained on. Empty: hold documents out of the training files.",
        group="Files",
        path=True,
    )
    validation_percent: float = option(
        5.0,
        "Percent of the documents held out for validation where no part is named for it. "
        "A document's own hash decides, so equal documents are always on the same side.",
        group="Validation",
        basic=True,
        gt=0,
        le=50,
    )
    drop_overlapping_validation: bool | None = option(
        None,
        "Drop held-out documents that share a window of 20 words with a training document. "
        "Costs one more pass over the text. Empty: only for installed documentation.",
        group="Validation",
    )
    limit: int | None = option(
        None, "Read at most this many documents.", title="Document limit", basic=True, ge=1
    )

    @model_validator(mode="before")
    @classmethod
    def _infer(cls, values: Any) -> Any:
        return cls._configured(cls.inferred(values)) if isinstance(values, dict) else values

    @classmethod
    def _configured(cls, values: dict[str, Any]) -> dict[str, Any]:
        fields = cls.model_fields
        source, name, chosen = (
            values.get(one, fields[one].default)
            for one in ("source", "dataset_name", "dataset_config")
        )
        is_read = source == "hub" and name == _OFFERED_DATASET
        return {**values, "dataset_config": _OFFERED_CONFIG} if is_read and not chosen else values

    @property
    def has_leftover_configuration(self) -> bool:
        """True if a changed dataset name still has the default dataset's configuration."""
        is_offered = self.dataset_name == _OFFERED_DATASET
        return self.dataset_config == _OFFERED_CONFIG and not is_offered

    @classmethod
    def inferred(
        cls, values: dict[str, Any], before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Infers the source from the fields that name text, unless one is chosen.

        A newly named dataset doesn't inherit the previous one's configuration. Raises ConfigError
        if the values name two sources.
        """
        name = values.get("dataset_name")
        if name and name != (before or {}).get("dataset_name"):
            values = {"dataset_config": "", **values}
        named = {source: name for name, source in _SOURCES.items() if values.get(name)}
        if "source" in values or not named:
            return values
        if len(named) > 1:
            raise ConfigError(
                "It isn't clear where the text comes from",
                expected="files or a dataset on the Hub, or a source that says which counts",
                received=" and ".join(f"{name}={values[name]}" for name in named.values()),
                fix="set source to files or hub, or leave one of them out",
                field="source",
            )
        return {**values, "source": next(iter(named))}


class TokenizerConfig(StageConfig):
    """Options for training a tokenizer."""

    # The family only selects the preset's variant.
    unfingerprinted = frozenset({"name", "family"})
    presets = TOKENIZER_PRESETS
    variant = "family"

    name: str = option(
        "", "What to call the tokenizer. Empty: a name is made from the settings.", basic=True
    )
    preset: PresetName = option(
        "classic",
        "classic: 10,048 tokens, as the TPU example's Unigram; flax: algorithm and size of the "
        "family's write-up, as byte-level BPE of 50,265 for RoBERTa; custom: fills nothing in, "
        "what you don't set has its field's own default.",
        basic=True,
    )
    family: Family = option(
        "roberta",
        "The architecture it is for: the preset's algorithm and size go by it.",
        basic=True,
    )
    corpus: CorpusConfig = option(CorpusConfig(), "The text to train on.")
    algorithm: Literal["unigram", "sentencepiece_unigram", "byte_level_bpe", "wordpiece"] = option(
        "unigram",
        "unigram: picks the most probable pieces, as in the TPU example; sentencepiece_unigram: "
        "the same as T5 has it, with sentinels and no mask; byte_level_bpe: merges bytes, knows "
        "no unknown, as in RoBERTa, GPT-2 and BART; wordpiece: merges characters within words, as "
        "in BERT.",
        basic=True,
    )
    vocab_size: int = option(
        10_048,
        "Number of tokens, special ones included.",
        title="Vocabulary size",
        basic=True,
        ge=16,
        le=_MAX_VOCAB_SIZE,
    )
    min_frequency: int = option(
        2,
        "A pair of symbols seen less often is never merged (byte_level_bpe and wordpiece).",
        ge=1,
    )
    lowercase: bool = option(
        False, "Upper case counts as lower case (wordpiece and sentencepiece_unigram)."
    )
    strip_accents: bool | None = option(
        None,
        "Take accents off letters (wordpiece). Empty: as BERT does it, where text is lower-cased.",
    )
    sentinels: int = option(
        100,
        "How many tokens <extra_id_0>, <extra_id_1> and so on stand for hidden spans; T5 has 100 "
        "(sentencepiece_unigram).",
        ge=0,
        le=10_000,
    )


class ShardConfig(StageConfig):
    """Options for packing text into TFRecord shards of fixed-length sequences."""

    unfingerprinted = frozenset({"name", "output_dir"})
    presets = SHARD_PRESETS
    variant = "objective"

    name: str = option(
        "", "What to call the shards. Empty: a name is made from the settings.", basic=True
    )
    preset: PresetName = option(
        "classic",
        "classic: rows of 512 tokens; flax: rows of 128 for mlm, 512 for clm and span_corruption, "
        "1,024 for denoising; custom: fills nothing in, what you don't set has its field's own "
        "default.",
        basic=True,
    )
    corpus: CorpusConfig = option(CorpusConfig(), "The text to tokenise.")
    tokenizer: str = option(
        "",
        "A tokenizer's name in the workspace, its folder, or its id on the Hub.",
        basic=True,
        artifact="tokenizer",
    )
    objective: Literal["mlm", "clm", "span_corruption", "denoising"] = option(
        "mlm",
        "What the rows are for. mlm and clm: documents one after the other, rows for either where "
        "the tokenizer puts an end after a text (clm does so in any case); "
        "span_corruption: rows so long that T5 sees max_seq_length tokens of them; denoising: the "
        "ends of sentences are marked for BART.",
        basic=True,
    )
    max_seq_length: int = option(
        512, "Tokens that the model sees.", title="Row length", basic=True, ge=8, le=65_536
    )
    mlm_probability: float | None = option(
        None,
        "Share of the tokens that the rows are laid out to hide (span_corruption only). Empty: "
        "0.15.",
        title="Noise density",
        gt=0,
        le=0.9,
    )
    mean_noise_span_length: float | None = option(
        None,
        "Mean tokens in a hidden span that the rows are laid out for (span_corruption only). "
        "Empty: 3.",
        ge=1,
        le=100,
    )
    line_by_line: bool = option(
        False,
        "Each line is a row of its own, filled up with padding; a longer one is cut (mlm only).",
    )
    split: Literal["all", "train", "validation"] = option(
        "all", "Which part to write, as in the original script; all writes both."
    )
    shard_size: int = option(
        16_384, "Rows in one file.", title="Rows per file", ge=1, le=10_000_000
    )
    record_format: Literal["bytes", "int64"] = option(
        "bytes",
        "bytes: fixed-width ids, the studio's own fast layout; int64: input_ids and "
        "attention_mask as the original TPU script writes and reads them.",
    )
    output_dir: str = option(
        "",
        "Where the files go: a folder, or an address like gs://bucket/folder. Empty: the "
        "workspace.",
        path=True,
    )


class TrainConfig(StageConfig):
    """Options for training a model."""

    unfingerprinted = frozenset(
        {
            "name",
            "output",
            "save_steps",
            "eval_steps",
            "eval_on_start",
            "logging_steps",
            "save_total_limit",
            "engine",
            "device",
            "damaged_records",
            "gradient_accumulation_steps",
            "steps_per_execution",
            "remat",
            "sharding",
            "num_devices",
            "tpu_name",
            "tpu_zone",
            "gcp_project",
            "coordinator_address",
            "num_processes",
            "process_id",
            "push_to_hub",
            "hub_model_id",
            "hub_private_repo",
            "hub_every_saves",
            "hub_license",
        }
    )
    presets = TRAINING_PRESETS
    variant = "family"

    name: str = option(
        "", "What to call the model. Empty: a name is made from the settings.", basic=True
    )
    preset: TrainPresetName = option(
        "fast",
        "Which hyperparameters to start from. fast: what learns most in a given time "
        "(docs/recipe.md); as published: classic, the TPU example's, and flax, those of the "
        "family's write-up in the Flax README, or ModernBERT's own; custom: fills nothing in, what "
        "you don't set has its field's own default. What you set yourself wins.",
        basic=True,
    )
    shards: str = option(
        "",
        "The shards' name in the workspace, their folder, or their id on the Hub.",
        basic=True,
        artifact="shards",
    )
    tokenizer: str = option(
        "",
        "The tokenizer the shards were made with. Empty: the copy kept beside the shards.",
        artifact="tokenizer",
    )
    objective: Literal["auto", "mlm", "clm", "span_corruption", "denoising"] = option(
        "auto",
        "What the model learns to predict: hidden words (mlm), the next word (clm), hidden spans "
        "(span_corruption), the text from a damaged copy (denoising). auto: the family's own.",
        group="Objective",
    )
    evaluate_only: bool = option(
        False, "Only measure `checkpoint` on the validation rows; train nothing."
    )
    checkpoint: str = option(
        "",
        "A model whose weights to start from: its name in the workspace, a checkpoint folder, or "
        "an id on the Hub like owner/name or owner/name@revision. Empty: from scratch.",
        artifact="model",
    )

    family: Family = option(
        "roberta",
        "The architecture. In the shell that of the checkpoint or the model config, where one is "
        "named.",
        group="Model",
        basic=True,
    )
    size: Size = option(
        "mini",
        "BERT's published miniatures: tiny 2 layers x 128, mini 4x256, small 4x512, medium 8x512, "
        "base 12x768, large 24x1024. Other families have their published sizes, as gpt2-medium "
        "24x1024 or T5 v1.1 small 8x512, and miniatures in proportion.",
        group="Model",
        basic=True,
    )
    model_config_path: str = option(
        "",
        "A Hugging Face config.json (or a folder that holds one) to take the dimensions from.",
        title="Model config",
        group="Model",
        flag="model-config",
        path=True,
    )
    num_hidden_layers: int | None = option(
        None, "Layers. Empty: from the size.", group="Model", ge=1, le=1024
    )
    hidden_size: int | None = option(
        None, "Width. Empty: from the size.", group="Model", ge=1, le=65_536
    )
    num_attention_heads: int | None = option(
        None,
        "Attention heads; they divide the width. Empty: from the size.",
        group="Model",
        ge=1,
        le=1024,
    )
    intermediate_size: int | None = option(
        None,
        "Width of the feed-forward layer. Empty: from the size.",
        group="Model",
        ge=1,
        le=1 << 20,
    )
    max_position_embeddings: int | None = option(
        None,
        "Longest input in tokens that the model has positions for. Empty: the rows' length.",
        group="Model",
        ge=8,
        le=1 << 20,
    )
    hidden_dropout_prob: float = option(
        0.1, "Dropout after embeddings and layers.", title="Dropout", group="Model", ge=0, lt=1
    )
    attention_probs_dropout_prob: float = option(
        0.1, "Dropout on attention weights.", title="Attention dropout", group="Model", ge=0, lt=1
    )
    output_bias: Literal["zeros", "log_frequency"] = option(
        "zeros",
        "What an encoder's output bias begins with. log_frequency: what the training rows' counts "
        "say, so that nothing has to be learned of how often a token occurs.",
        group="Model",
    )
    word_embeddings: Literal["random", "cooccurrence"] = option(
        "random",
        "What the table of words begins with. cooccurrence: vectors that say which words stand "
        "near which in the training rows, so that this needn't be learned; it takes seconds.",
        group="Model",
    )
    attention_kernels: Literal["random", "neighbours"] = option(
        "random",
        "What queries and keys begin with, and the table of positions, in families that have one. "
        "neighbours: half of the heads, or two, look at the nearest tokens, which then needn't be "
        "learned.",
        group="Model",
    )

    per_replica_batch_size: int = option(
        8,
        "Rows a device sees in one step.",
        title="Batch size per device",
        group="Batch",
        basic=True,
        ge=1,
        le=1 << 20,
    )
    gradient_accumulation_steps: int = option(
        1,
        "Batches to add the gradients of before the weights are updated: a step sees so many times "
        "more rows, in the memory of one batch.",
        group="Batch",
        ge=1,
        le=1 << 16,
    )
    num_train_epochs: float = option(
        1.0,
        "Passes over the training rows, where the steps are not given.",
        title="Epochs",
        group="Length",
        basic=True,
        gt=0,
        le=1_000_000,
    )
    num_train_steps: int | None = option(
        None,
        "Steps to train for. Empty: as many as the epochs need.",
        title="Steps",
        group="Length",
        basic=True,
        ge=1,
    )
    max_train_examples: int | None = option(
        None, "Use only this many training rows.", group="Length", ge=1
    )
    max_eval_examples: int | None = option(
        None, "Use only this many validation rows.", group="Evaluation", ge=1
    )

    optimizer: Literal["adamw", "muon", "adafactor"] = option(
        "adamw",
        "adamw: as most published examples have it; muon: orthogonalised momentum for the "
        "matrices, AdamW for the rest, which learns more from a step; adafactor: as T5's example "
        "has it, with little memory, no weight decay, and a learning rate relative to the weights.",
        group="Optimizer",
        basic=True,
    )
    learning_rate: float | None = option(
        1e-4,
        "Peak learning rate. Empty: what suits the optimizer, the family and the width "
        "(docs/recipe.md).",
        group="Optimizer",
        basic=True,
        gt=0,
        le=10,
    )
    lr_scheduler_type: Literal["linear", "cosine", "constant", "warmup_stable_decay"] = option(
        "linear",
        "How the learning rate goes on after the warm-up; all but constant end at 0. "
        "warmup_stable_decay stays at the peak until its last part (decay_ratio), for a run that "
        "may be given more steps before that.",
        title="Schedule",
        group="Optimizer",
    )
    decay_ratio: float = option(
        0.2,
        "warmup_stable_decay only: the share of the steps after the warm-up in which the learning "
        "rate falls to 0.",
        group="Optimizer",
        gt=0,
        le=1,
    )
    warmup_steps: int | None = option(
        None,
        "Steps to raise the learning rate from 0. Empty: from the ratio.",
        group="Optimizer",
        ge=0,
    )
    warmup_ratio: float = option(
        0.05,
        "Share of the steps to raise the learning rate in, where the steps are not given.",
        group="Optimizer",
        ge=0,
        le=1,
    )
    weight_decay: float = option(
        1e-3,
        "Decoupled weight decay; norms and biases are left out.",
        group="Optimizer",
        ge=0,
        le=1,
    )
    adam_learning_rate_ratio: float = option(
        0.5,
        "Muon only: the learning rate of what it leaves to AdamW, as a share of the learning rate; "
        "weight decay goes by the whole of it.",
        group="Optimizer",
        gt=0,
        le=10,
    )
    muon_momentum: float = option(0.95, "Muon only: its momentum.", group="Optimizer", ge=0, lt=1)
    adam_beta1: float = option(0.9, "AdamW's first momentum.", group="Optimizer", ge=0, lt=1)
    adam_beta2: float = option(0.999, "AdamW's second momentum.", group="Optimizer", ge=0, lt=1)
    adam_epsilon: float = option(1e-8, "AdamW's epsilon.", group="Optimizer", gt=0, le=1)
    max_grad_norm: float | None = option(
        None,
        "Scale gradients down to this global norm. Empty: leave them.",
        group="Optimizer",
        gt=0,
    )
    mlm_probability: float | None = option(
        None,
        "Share of the tokens to hide. Empty: as published, 0.15, and 0.3 for denoising; for "
        "span_corruption what the rows are laid out for. Validation is always at that.",
        title="Masking probability",
        group="Objective",
        gt=0,
        le=0.9,
    )
    whole_word_mask: bool = option(
        False, "Hide whole words and not single tokens (mlm).", group="Objective"
    )
    mean_noise_span_length: float | None = option(
        None,
        "Mean tokens in a hidden span (span_corruption). Empty: what the rows are laid out for.",
        group="Objective",
        ge=1,
        le=100,
    )
    poisson_lambda: float = option(
        3.0, "Mean tokens in a hidden span (denoising).", group="Objective", gt=0, le=100
    )
    permute_sentence_ratio: float = option(
        1.0,
        "Share of the sentences that change places (denoising).",
        group="Objective",
        ge=0,
        le=1,
    )

    eval_steps: int | None = option(
        None,
        "Validate every so many steps. Empty: 20 times in the run, or as often as takes a tenth of "
        "the time.",
        group="Evaluation",
        ge=1,
    )
    eval_on_start: bool | None = option(
        None,
        "Validate before the first step as well. Empty: only a checkpoint that is trained further.",
        group="Evaluation",
    )
    per_replica_eval_batch_size: int | None = option(
        None,
        "Rows a device sees in one validation step. Empty: as in training.",
        title="Validation batch size",
        group="Evaluation",
        ge=1,
    )
    logging_steps: int | None = option(
        None,
        "Write the training loss every so many steps. Empty: 200 times in the run.",
        group="Evaluation",
        ge=1,
    )
    save_steps: int | None = option(
        None,
        "Save every so many steps. Empty: 20 times in the run, or at each validation where "
        "eval_steps is set.",
        group="Checkpoints",
        ge=1,
    )
    save_total_limit: int = option(
        2,
        "Checkpoints to keep, the newest ones; the best is kept besides.",
        group="Checkpoints",
        ge=1,
    )
    output: str = option(
        "", "Also copy the best checkpoint to this folder.", group="Checkpoints", path=True
    )

    push_to_hub: bool = option(
        False,
        "Upload checkpoints to the Hugging Face Hub while the run goes on, and the best one at its "
        "end. Needs a login (hf auth login) or HF_TOKEN; an upload that fails never stops the run.",
        title="Push to the Hub",
        group="Hub",
    )
    hub_model_id: str = option(
        "",
        "The repository to push to, like owner/name; without an owner it is yours. Empty: called "
        "as the model.",
        title="Hub id",
        group="Hub",
        pattern=HUB_ID_PATTERN,
    )
    hub_private_repo: bool = option(
        True,
        "Only you can see the repository. Off: everybody can, even if it was private before.",
        title="Private repository",
        group="Hub",
    )
    hub_every_saves: int = option(
        1,
        "Upload every so many saves; 0: only at the end.",
        title="Upload every so many saves",
        group="Hub",
        ge=0,
    )
    hub_license: str = option(
        "",
        "The licence that the card names, as the Hub writes it: apache-2.0, mit, cc-by-4.0.",
        title="Licence",
        group="Hub",
        choices=LICENSES,
    )

    damaged_records: Literal["stop", "skip"] = option(
        "stop",
        "What a damaged record in the shards does: stop the run, naming it, or be left out and "
        "counted.",
        group="Checkpoints",
    )

    engine: Literal["auto", "tensorflow", "jax"] = option(
        "auto", "auto takes TensorFlow on CPU and JAX on TPU and GPU.", group="Device"
    )
    device: Literal["auto", "cpu", "gpu", "tpu"] = option(
        "auto", "auto takes the fastest that is there.", group="Device"
    )
    num_devices: int | None = option(
        None,
        "Devices of this machine that share a step. Empty: all TPUs or GPUs that are there, one "
        "CPU. Several on a CPU are simulated.",
        group="Device",
        ge=1,
        le=4096,
    )
    sharding: Literal["data", "fsdp"] = option(
        "data",
        "data: every device holds all weights; fsdp: each holds a part of weights and optimizer, "
        "for models that are too large for one (JAX only).",
        group="Device",
    )
    remat: bool = option(
        False,
        "Keep only each layer's inputs for the gradient and compute the rest twice: less memory, "
        "about a third more work.",
        title="Rematerialise",
        group="Device",
    )
    steps_per_execution: int = option(
        1,
        "Steps that the device does in one go. More than one helps where a step takes less than a "
        "few milliseconds.",
        group="Device",
        ge=1,
        le=1024,
    )
    tpu_name: str = option(
        "local",
        "TensorFlow on TPU only: the TPU's name or address; local is the one of this machine.",
        title="TPU name",
        group="Device",
    )
    tpu_zone: str = option(
        "",
        "TensorFlow on TPU only: the Google Cloud zone of a TPU that is named.",
        title="TPU zone",
        group="Device",
    )
    gcp_project: str = option(
        "",
        "TensorFlow on TPU only: the Google Cloud project of a TPU that is named.",
        title="Google Cloud project",
        group="Device",
    )
    num_processes: int | None = option(
        None,
        "Processes that share the run, one on each host of a TPU pod slice or GPU cluster (JAX "
        "only). Empty: one.",
        group="Several hosts",
        ge=1,
        le=65_536,
    )
    process_id: int | None = option(
        None,
        "The number of this process, from 0. Empty: found out, on a TPU pod.",
        group="Several hosts",
        ge=0,
    )
    coordinator_address: str = option(
        "",
        "Where process 0 is reached by the others, host:port. Empty: found out, on a TPU pod.",
        group="Several hosts",
    )
    dtype_policy: Literal["auto", "float32", "mixed_bfloat16"] = option(
        "float32",
        "mixed_bfloat16 computes in bfloat16 and keeps weights in float32; auto measures at the "
        "first start which is faster here, and stays with it.",
        title="Precision",
        group="Device",
        basic=True,
    )
    seed: int = option(
        0, "Decides the first weights, the order, the masks.", group="General", ge=0, lt=1 << 31
    )

    @field_validator("hub_model_id")
    @classmethod
    def _check_hub_id(cls, repo_id: str) -> str:
        if repo_id:
            from core.hub.ids import check_hub_id

            check_hub_id(repo_id, field="hub_model_id")
        return repo_id

    @model_validator(mode="after")
    def _check_hub_name(self) -> TrainConfig:
        if self.push_to_hub and not self.hub_model_id and self.name:
            from core.hub.ids import check_hub_id

            check_hub_id(self.name, field="name")
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> TrainConfig:
        if self.engine == "tensorflow" and self.sharding == "fsdp":
            raise _needs_jax("sharding", "fsdp", "data")
        if self.engine == "tensorflow" and (self.num_processes or 1) > 1:
            raise _needs_jax("num_processes", str(self.num_processes), "1")
        if self.engine == "tensorflow" and self.coordinator_address:
            raise _needs_jax("coordinator_address", self.coordinator_address, "nothing")
        return self

    @classmethod
    def preset_values(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the preset's values, without warm-up steps if a warm-up ratio is given."""
        found = super().preset_values(values)
        return {**found, "warmup_steps": None} if "warmup_ratio" in values else found


class PreflightConfig(TrainConfig):
    """Options for estimating what a training run needs and costs on a TPU, attached or not."""

    topology: str = option(
        "v5e-8",
        "The TPU: v2-8, v3-8, v3-32, v4-8, v4-16, v4-32, v5e-1, -4, -8, -16, -32, v5p-8, v5p-16, "
        "v6e-1, -4, -8 or -16.",
        group="Preflight",
        basic=True,
        choices=tuple(TOPOLOGIES),
    )
    price_per_chip_hour: float | None = option(
        None,
        "What an hour of one chip costs you, in any currency. Empty: no cost is worked out.",
        title="Price per chip-hour",
        group="Preflight",
        basic=True,
        gt=0,
    )
    largest_batch: bool = option(
        True,
        "Also look for the largest batch that fits, which takes a few more compilations.",
        group="Preflight",
    )
    trial: bool = option(
        True,
        "Also take five real steps with few rows on this machine, save, and read back.",
        group="Preflight",
    )
    vocab_size: int | None = option(
        None,
        "Number of tokens, where there are no shards yet.",
        title="Vocabulary size",
        group="Preflight",
        ge=16,
        le=1 << 22,
    )
    max_seq_length: int | None = option(
        None,
        "Tokens in a row, where there are no shards yet.",
        title="Row length",
        group="Preflight",
        ge=8,
        le=1 << 20,
    )


class PushConfig(StageConfig):
    """Options for publishing on the Hugging Face Hub.

    Access tokens are not options: they come from HF_TOKEN or the Hub's own login.
    """

    kind: Literal["model", "tokenizer", "shards"] = option(
        "model",
        "What to publish. Shards become a dataset repository.",
        title="What",
        group="What",
        basic=True,
    )
    model: str = option(
        "",
        "A model's name in the workspace, or a checkpoint folder; for a Space alone, an id on the "
        "Hub.",
        group="Model",
        basic=True,
        artifact="model",
    )
    tokenizer: str = option(
        "",
        "A tokenizer's name in the workspace, or its folder.",
        group="Tokenizer",
        basic=True,
        artifact="tokenizer",
    )
    shards: str = option(
        "",
        "The shards' name in the workspace, or their folder.",
        group="Shards",
        basic=True,
        artifact="shards",
    )
    repo_id: str = option(
        "",
        "The repository, like owner/name; without an owner it is yours. It is made where there is "
        "none. Empty: called as what is published.",
        title="Hub id",
        group="Where",
        basic=True,
        pattern=HUB_ID_PATTERN,
    )
    private: bool = option(
        True,
        "Only you can see the repository. Off: everybody can, even if it was private before.",
        group="Where",
        basic=True,
    )
    revision: str = option(
        "",
        "A branch to push to, made where there is none. Empty: main.",
        title="Branch",
        group="Where",
        pattern=_BRANCH_PATTERN,
    )
    commit_message: str = option("", "Empty: says what is pushed.", group="Where")
    license: str = option(
        "",
        "The licence that the card names, as the Hub writes it: apache-2.0, mit, cc-by-4.0.",
        title="Licence",
        group="Card",
        basic=True,
        choices=LICENSES,
    )
    language: str = option(
        "",
        "The text's languages for the card, as ISO codes: en, or de, fr.",
        group="Card",
        basic=True,
        pattern=_LANGUAGE_PATTERN,
    )
    description: str = option(
        "", "A sentence or two that the card begins with.", group="Card", basic=True
    )
    space: bool = option(
        False,
        "Also make a Space called the same: a demo of the model that answers in the browser.",
        title="Make a Space",
        group="Model",
        basic=True,
    )
    dry_run: bool = option(
        False, "Only show the files and the card; nothing is sent.", group="Where"
    )

    @field_validator("repo_id")
    @classmethod
    def _check_hub_id(cls, repo_id: str) -> str:
        if repo_id:
            from core.hub.ids import check_hub_id

            check_hub_id(repo_id, field="repo_id")
        return repo_id

    @model_validator(mode="before")
    @classmethod
    def _infer_kind(cls, values: Any) -> Any:
        """Infers the kind from the artifact that is named, and drops names of other kinds."""
        if not isinstance(values, dict):
            return values
        kinds = ("model", "tokenizer", "shards")
        named = [name for name in kinds if values.get(name)]
        if "kind" not in values:
            return {**values, "kind": named[0]} if len(named) == 1 else values
        others = [name for name in kinds if name != values["kind"]]
        return {name: value for name, value in values.items() if name not in others}


class QuickstartConfig(StageConfig):
    """Options for running all stages on the built-in corpus, in minutes on two CPU cores."""

    size: Literal["tiny", "mini"] = option("tiny", "Size of the RoBERTa to train.", basic=True)
    num_train_steps: int | None = option(
        None, "Steps to train for. Empty: what takes a few minutes on two CPU cores.", ge=1
    )
    limit: int | None = option(None, "Read at most this many documents.", ge=1)
    engine: Literal["auto", "tensorflow", "jax"] = option("auto", "The engine to train on.")
    seed: int = option(0, "Decides the first weights, the order, the masks.", ge=0, lt=1 << 31)


def flag_of(name: str, field: FieldInfo) -> str:
    """Returns a field's command-line flag without the dashes, as in `max-seq-length`."""
    return str(field_extra(field)["flag"] or name.replace("_", "-"))


def field_extra(field: FieldInfo) -> dict[str, Any]:
    """Returns the properties of a field that `knob` adds to pydantic's."""
    defaults = {
        "group": "General",
        "basic": False,
        "flag": "",
        "choices": [],
        "artifact": "",
        "path": False,
    }
    extra = field.json_schema_extra
    return {**defaults, **extra} if isinstance(extra, dict) else defaults


def title_of(name: str, field: FieldInfo) -> str:
    return field.title or name.replace("_", " ").capitalize()


def plain_type(field: FieldInfo) -> tuple[Any, bool]:
    """Returns a field's type without None, and whether None is allowed."""
    annotation = field.annotation
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation, False
    arguments = [part for part in typing.get_args(annotation) if part is not type(None)]
    return arguments[0], True


def choices_of(field: FieldInfo) -> list[str]:
    annotation, _ = plain_type(field)
    if names := next((one.names() for one in field.metadata if isinstance(one, OneOf)), None):
        return list(names)
    return list(typing.get_args(annotation)) if typing.get_origin(annotation) is Literal else []


def changed_values(config: StageConfig) -> dict[str, Any]:
    """Returns the fields whose values differ from their defaults under the same preset."""
    model = type(config)
    values: dict[str, Any] = {
        name: getattr(config, name)
        for name in ("preset", model.variant)
        if name in model.model_fields
    }
    plain = model(**values)
    for name in model.model_fields:
        value = getattr(config, name)
        if isinstance(value, StageConfig):
            if nested := changed_values(value):
                values[name] = nested
        elif value != getattr(plain, name):
            values[name] = value
    if isinstance(config, CorpusConfig) and not _SOURCES.keys().isdisjoint(values):
        values = {"source": config.source, **values}  # else inferred from these
    if isinstance(config, TrainConfig) and "warmup_ratio" in values and config.warmup_steps:
        values["warmup_steps"] = config.warmup_steps  # else the ratio would win
    return {
        name: value
        for name, value in values.items()
        if name not in ("preset", model.variant) or value != model.model_fields[name].default
    }


def load_config_file(path: str | Path) -> dict[str, Any]:
    """Reads a JSON object of config values; raises ConfigError if that fails."""
    try:
        # Pipes too: a shell makes one of --config <(command).
        with Path(path).open("rb") as file:
            data = file.read(_MOST_CONFIG_BYTES + 1)
        if len(data) > _MOST_CONFIG_BYTES:
            raise ValueError(f"it is longer than {_MOST_CONFIG_BYTES:,} bytes")
        values = parse_json(data)
    except OSError as error:
        raise ConfigError(
            f"The config file {path} can't be read",
            expected="a JSON file",
            received=str(error.strerror or error),
            fix="check the path given with --config",
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"The config file {path} isn't JSON",
            expected="an object of field names and values",
            received=str(error),
            fix="mend the file at that place",
        ) from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"The config file {path} doesn't hold an object",
            expected='{"field": value, ...}',
            received=type(values).__name__,
        )
    return values


def fingerprint_of(value: Any) -> str:
    """Returns 16 hex digits of the SHA-256 of a JSON value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode("utf-8")).hexdigest()[:16]


def describe_expected(problem: Mapping[str, Any]) -> str:
    """Describes the expected value of one of `ValidationError.errors()`; patterns in words."""
    if problem["type"] == "string_pattern_mismatch":
        return _WORDS_OF_PATTERNS[problem["ctx"]["pattern"]]
    return str(problem["msg"]).removeprefix("Input should be ")


def config_error(model: type[StageConfig], error: ValidationError) -> ConfigError:
    """Converts pydantic's first error into a ConfigError that counts the others."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    name = str(first["loc"][-1]) if first["loc"] else ""
    others = len(error.errors()) - 1
    more = f" (and {others} more)" if others else ""
    if first["type"] == "extra_forbidden":
        return ConfigError(
            f"{model.__name__} has no field {where}{more}",
            expected="one of " + ", ".join(model.model_fields),
            received=where,
            field=name,
            fix="check the spelling",
        )
    return ConfigError(
        f"{where} is not right{more}",
        expected=describe_expected(first),
        received=repr(first["input"]),
        fix=f"set {where} to such a value",
        field=name,
    )


def _needs_jax(name: str, value: str, other: str) -> ConfigError:
    return ConfigError(
        f"TensorFlow can't do {name}={value}",
        expected=f"engine jax (or auto) with {name}={value}",
        received=f"engine tensorflow with {name}={value}",
        fix=f"set engine to auto or jax, or {name} to {other}",
        field=name,
    )
