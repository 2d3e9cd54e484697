"""Options of training."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import field_validator, model_validator

from core.config.evaluate import (
    OF_DATASETS,
    EvaluateConfig,
    EvaluationTask,
    declare_in_training,
    names_in_training,
)
from core.config.mixture import mixture_text, parse_mixture
from core.config.options import (
    AUTOMATIC,
    FAMILY_OPTIONS,
    HUB_ID_PATTERN,
    LICENSES,
    OBJECTIVE_OPTIONS,
    Family,
    Size,
    option,
)
from core.config.presets import TRAINING_PRESETS
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
from core.config.word_marks import BABYLM, NO_MARKS, parse_word_marks
from core.errors import ConfigError
from core.network.hub_ids import check_hub_id

TrainPresetName = Literal[
    "fast", "classic", "flax", "smollm2", "tinyllama", "olmo-ladder", "custom"
]
# They choose what the target decides.
_NOT_ELSEWHERE = ("num_processes", "process_id", "coordinator_address")

# Values of automatic settings where none are derived from shards.
_USUAL_VALUES: dict[str, Any] = {
    "size": "mini",
    "per_replica_batch_size": 32,
    "num_train_epochs": 1.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "intra_document_masking": False,
    "warmup_ratio": 0.05,
    "adam_beta2": 0.99,
    "weight_decay": 0.01,
}

T = TypeVar("T", bound="TrainConfig")


def automatic_fields(config: TrainConfig) -> list[str]:
    """Lists the settings that are automatic and have an effect."""
    unused = {"size"} if config.checkpoint or config.model_config_path else set()
    return [
        name
        for name in _USUAL_VALUES
        if getattr(config, name) in (None, AUTOMATIC) and name not in unused
    ]


def usual_value(name: str) -> Any:
    """Returns the value of an automatic setting that nothing derives."""
    return _USUAL_VALUES[name]


def with_usual_values(config: T) -> T:
    """Returns the config with usual values for what is automatic."""
    names = automatic_fields(config)
    return config.model_copy(update={name: _USUAL_VALUES[name] for name in names})


class TrainConfig(RemoteConfig):
    """Options for training a model."""

    presets = TRAINING_PRESETS
    variant = "family"

    name: str = option(
        "",
        "Empty: named by its settings.",
        basic=True,
        identity=False,
    )
    preset: TrainPresetName = option(
        "fast",
        "Starting hyperparameters; a value you set wins.",
        details="docs/recipe.md explains the Fast recipe and its evidence.",
        options={
            "fast": ("Fast", "our recipe for the lowest loss in a given time"),
            "classic": ("Classic", "published values of the TPU example"),
            "flax": ("Flax", "published values of the family's Flax example, or ModernBERT's own"),
            "smollm2": ("SmolLM2", "published values for Llama models of 135M and 360M"),
            "tinyllama": ("TinyLlama", "published values for a Llama model of 1.1B"),
            "olmo-ladder": ("OLMo ladder", "published values that follow from the parameters"),
            "custom": ("Custom", "default values"),
        },
        basic=True,
    )
    shards: str = option(
        "",
        "Name, folder or Hub id.",
        group="Data",
        basic=True,
        artifact="shards",
    )
    mixture: str = option(
        "",
        "Several shards with weights, instead of one, such as english=3 korean=1.",
        details=(
            "Each is a name, folder, address or Hub id. Without weights, the sizes decide: "
            "docs/mixtures.md."
        ),
        group="Data",
        artifacts="shards",
        is_later=True,
    )
    mixture_temperature: float | None = option(
        None,
        "Weights are the sizes to the power of 1/temperature; empty: 1.",
        details="Above 1, small sources get more. Only for a mixture without weights.",
        title="Temperature of the mixture",
        group="Data",
        gt=0,
        le=100,
        is_later=True,
    )
    mixture_stop: Literal["first_exhausted", "all_exhausted"] = option(
        "first_exhausted",
        "When an epoch of the mixture ends.",
        options={
            "first_exhausted": ("First source", "the first source has been read once"),
            "all_exhausted": ("All sources", "every source has been read at least once"),
        },
        title="Epoch of the mixture",
        group="Data",
        is_later=True,
    )
    max_source_epochs: float = option(
        4.0,
        "A mixture that reads a source more often is refused.",
        details="More than 4 epochs of the same text gain little: https://arxiv.org/abs/2305.16264.",
        title="Epochs per source at most",
        group="Data",
        gt=0,
        le=1_000_000,
        identity=False,
    )
    tokenizer: str = option(
        "",
        "Tokenizer that the shards were built with.",
        details="Empty: the copy kept beside the shards.",
        group="Data",
        artifact="tokenizer",
    )
    target: str = target_option()
    max_hours: float | None = max_hours_option()
    max_cost: float | None = max_cost_option()
    price_per_hour: float | None = price_option()
    objective: Literal["auto", "mlm", "clm", "span_corruption", "denoising"] = option(
        "auto",
        "Pretraining objective.",
        options={"auto": ("Automatic", "the family's own"), **OBJECTIVE_OPTIONS},
        group="Objective",
    )
    evaluate_only: bool = option(
        False, "Measures the checkpoint on the validation split; trains nothing.", group="Model"
    )
    checkpoint: str = option(
        "",
        "Model to continue from; empty: from scratch.",
        details=(
            "A model in the workspace, a checkpoint folder, or a Hub id like "
            "owner/name or owner/name@revision."
        ),
        group="Model",
        title="Initial checkpoint",
        artifact="model",
    )

    family: Family = option(
        "roberta",
        "Architecture of the model.",
        details="On the command line, a checkpoint or model config sets the family.",
        options=FAMILY_OPTIONS,
        group="Model",
        basic=True,
    )
    size: Literal["auto", Size] = option(
        "auto",
        "Published size of the family; automatic: the text and the time decide.",
        options={"auto": ("Automatic", "the best that the text and the time allow")},
        automatic=True,
        details=(
            "BERT's miniatures: tiny 2 layers x 128, mini 4x256, small 4x512, medium "
            "8x512, base 12x768, large 24x1024. Other families have their published "
            "sizes, such as gpt2-medium 24x1024 or T5 v1.1 small 8x512, and "
            "miniatures in proportion."
        ),
        group="Model",
        basic=True,
    )
    model_config_path: str = option(
        "",
        "Hugging Face config.json, or its folder, for the dimensions.",
        title="Model config",
        group="Model",
        flag="model-config",
        path=True,
    )
    num_hidden_layers: int | None = option(
        None, "Empty: from the size.", title="Layers", group="Model", ge=1, le=1024
    )
    hidden_size: int | None = option(None, "Empty: from the size.", group="Model", ge=1, le=65_536)
    num_attention_heads: int | None = option(
        None,
        "A divisor of the hidden size; empty: from the size.",
        title="Attention heads",
        group="Model",
        ge=1,
        le=1024,
    )
    intermediate_size: int | None = option(
        None,
        "Empty: from the size.",
        title="Feed-forward size",
        group="Model",
        ge=1,
        le=1 << 20,
    )
    max_position_embeddings: int | None = option(
        None,
        "Longest input in tokens; empty: the sequence length.",
        title="Maximum positions",
        group="Model",
        ge=8,
        le=1 << 20,
    )
    hidden_dropout_prob: float | None = option(
        None,
        "After embeddings and layers; empty: follows from the epochs.",
        title="Dropout",
        group="Model",
        automatic=True,
        ge=0,
        lt=1,
    )
    attention_probs_dropout_prob: float | None = option(
        None,
        "On attention weights; empty: follows from the epochs.",
        title="Attention dropout",
        group="Model",
        automatic=True,
        ge=0,
        lt=1,
    )
    output_bias: Literal["zeros", "log_frequency"] = option(
        "zeros",
        "Initialisation of an encoder's output bias.",
        options={
            "zeros": ("Zeros", ""),
            "log_frequency": (
                "Log frequency",
                ("log token frequencies of the training split, which then needn't be learned"),
            ),
        },
        group="Model",
    )
    word_embeddings: Literal["random", "cooccurrence"] = option(
        "random",
        "Initialisation of the token embeddings.",
        options={
            "random": ("Random", ""),
            "cooccurrence": (
                "Co-occurrence",
                "vectors from token co-occurrence in the training split; takes seconds",
            ),
        },
        title="Token embeddings",
        group="Model",
    )
    attention_kernels: Literal["random", "neighbours"] = option(
        "random",
        "Initialisation of queries, keys and position embeddings.",
        options={
            "random": ("Random", ""),
            "neighbours": (
                "Local attention",
                "half of the heads, or two, attend to nearby tokens",
            ),
        },
        group="Model",
    )

    minutes: float = option(
        10.0,
        "Minutes of training from which automatic settings follow.",
        details="A text that gives no more takes less. Without effect if steps or epochs are set.",
        title="Time budget (minutes)",
        group="Duration",
        basic=True,
        identity=False,
        is_later=True,
        gt=0,
        le=1_000_000,
    )
    per_replica_batch_size: int | None = option(
        None,
        "Sequences per device and step; empty: automatic.",
        title="Batch size per device",
        automatic=True,
        group="Duration",
        basic=True,
        ge=1,
        le=1 << 20,
    )
    gradient_accumulation_steps: int = option(
        1,
        "Micro-batches per optimizer step.",
        details=("A step uses this many micro-batches in the memory of one."),
        title="Gradient accumulation",
        group="Duration",
        ge=1,
        le=1 << 16,
        identity=False,
    )
    num_train_epochs: float | None = option(
        None,
        "Passes over the training split; empty: automatic.",
        details="Ignored if Steps is set.",
        automatic=True,
        title="Epochs",
        group="Duration",
        basic=True,
        gt=0,
        le=1_000_000,
    )
    num_train_steps: int | None = option(
        None,
        "Overrides epochs if set.",
        details="Empty: as many as the epochs need.",
        title="Steps",
        group="Duration",
        basic=True,
        ge=1,
    )
    max_train_examples: int | None = option(
        None, "Empty: all of them.", title="Training sequences limit", group="Data", ge=1
    )
    max_eval_examples: int | None = option(
        None, "Empty: all of them.", title="Validation sequences limit", group="Data", ge=1
    )

    optimizer: Literal["adamw", "muon", "adafactor"] = option(
        "adamw",
        "Updates the weights.",
        options={
            "adamw": ("AdamW", "used by most published examples"),
            "muon": (
                "Muon",
                ("orthogonalised momentum for matrices, AdamW for the rest; learns more per step"),
            ),
            "adafactor": (
                "Adafactor",
                ("T5's; little memory, no weight decay, learning rate relative to the weights"),
            ),
        },
        group="Optimizer",
        basic=True,
    )
    learning_rate: float | None = option(
        1e-4,
        "Peak; empty: automatic.",
        details="Automatic values depend on optimizer, family and hidden size: see docs/recipe.md.",
        group="Optimizer",
        basic=True,
        gt=0,
        le=10,
    )
    lr_scheduler_type: Literal["linear", "cosine", "constant", "warmup_stable_decay"] = option(
        "linear",
        "Learning rate after the warm-up.",
        options={
            "linear": ("Linear", "falls to 0"),
            "cosine": ("Cosine", "falls to 0"),
            "constant": ("Constant", "stays at the peak"),
            "warmup_stable_decay": (
                "Warm-up, stable, decay",
                (
                    "stays at the peak and falls to 0 in the last part; suits a run that may "
                    "be extended"
                ),
            ),
        },
        title="Schedule",
        group="Optimizer",
    )
    decay_ratio: float = option(
        0.2,
        "Share of steps in which the learning rate falls to 0.",
        details="Schedule warmup_stable_decay only.",
        group="Optimizer",
        gt=0,
        le=1,
    )
    warmup_steps: int | None = option(
        None,
        "Steps from 0 to the peak; empty: from the ratio.",
        title="Warm-up steps",
        group="Optimizer",
        ge=0,
    )
    warmup_ratio: float | None = option(
        0.05,
        "Share of the steps, if warm-up steps are empty; empty: a token per parameter.",
        title="Warm-up ratio",
        automatic=True,
        group="Optimizer",
        ge=0,
        le=1,
    )
    weight_decay: float | None = option(
        1e-3,
        "Decoupled; not applied to norms and biases; empty: follows from the epochs.",
        automatic=True,
        group="Optimizer",
        ge=0,
        le=1,
    )
    adam_learning_rate_ratio: float = option(
        0.5,
        "Muon's AdamW learning rate, relative to the learning rate.",
        details="Muon only. Weight decay uses the full learning rate.",
        title="AdamW learning-rate ratio",
        group="Optimizer",
        gt=0,
        le=10,
    )
    muon_momentum: float = option(0.95, "Muon only.", group="Optimizer", ge=0, lt=1)
    adam_beta1: float = option(
        0.9, "Decay of AdamW's first moment.", title="Adam beta 1", group="Optimizer", ge=0, lt=1
    )
    adam_beta2: float | None = option(
        0.999,
        "Decay of AdamW's second moment; empty: follows from the tokens per step.",
        title="Adam beta 2",
        automatic=True,
        group="Optimizer",
        ge=0,
        lt=1,
    )
    adam_epsilon: float = option(1e-8, "AdamW's epsilon.", group="Optimizer", gt=0, le=1)
    max_grad_norm: float | None = option(
        None,
        "Maximum global norm; empty: no clipping.",
        title="Gradient clipping",
        group="Optimizer",
        gt=0,
    )
    mlm_probability: float | None = option(
        None,
        "Share of tokens to mask.",
        details=(
            "Empty: as published: 0.15, and 0.3 for denoising; for span corruption "
            "the value the shards were built with. Validation always uses that value."
        ),
        title="Masking probability",
        group="Objective",
        gt=0,
        le=0.9,
    )
    whole_word_mask: bool = option(
        False,
        "Masks whole words instead of single tokens.",
        details="Masked LM only.",
        title="Whole-word masking",
        group="Objective",
    )
    intra_document_masking: bool | None = option(
        None,
        "Tokens attend only to their own document; not set: if documents are short.",
        automatic=True,
        details="Masked and causal LM. Short documents share a sequence, and attend to each "
        "other without it. Slower on GPUs and TPUs.",
        title="Intra-document masking",
        group="Objective",
        is_later=True,
        earlier=False,
    )
    mean_noise_span_length: float | None = option(
        None,
        "Mean number of tokens in a masked span.",
        details="Span corruption only. Empty: the value the shards were built with.",
        title="Mean span length",
        group="Objective",
        ge=1,
        le=100,
    )
    poisson_lambda: float = option(
        3.0,
        "Mean number of tokens in a masked span.",
        details="Denoising only.",
        group="Objective",
        gt=0,
        le=100,
    )
    permute_sentence_ratio: float = option(
        1.0,
        "Share of sentences to permute.",
        details="Denoising only.",
        title="Sentence permutation",
        group="Objective",
        ge=0,
        le=1,
    )

    eval_steps: int | None = option(
        None,
        "Steps between validations.",
        details="Empty: 20 validations per run, or as many as take a tenth of the time.",
        title="Validation interval",
        group="Evaluation",
        ge=1,
        identity=False,
    )
    eval_on_start: bool | None = option(
        None,
        "Validates before the first step.",
        details="Not set: only if a checkpoint is trained further.",
        title="Validate at the start",
        group="Evaluation",
        identity=False,
    )
    per_replica_eval_batch_size: int | None = option(
        None,
        "Sequences per device; empty: as in training.",
        title="Validation batch size",
        group="Evaluation",
        ge=1,
    )
    logging_steps: int | None = option(
        None,
        "Steps between logged losses.",
        details="Empty: 200 values per run.",
        title="Logging interval",
        group="Evaluation",
        ge=1,
        identity=False,
    )
    evaluate_every: int | None = option(
        None,
        "Steps between evaluations on minimal pairs and held-out text; empty: none.",
        details="The figures become curves, with the seconds that they took. Training is the same "
        "with and without them: docs/evaluation.md.",
        title="Evaluation interval",
        group="Evaluation during training",
        ge=1,
        identity=False,
    )
    evaluate_pairs_path: str = option(
        "",
        "Minimal pairs: a file, a folder or a pattern of JSON lines.",
        details="Empty, without held-out text: the dataset of minimal pairs on the Hub.",
        title="Minimal pairs",
        group="Evaluation during training",
        path=True,
        identity=False,
    )
    evaluate_text_path: str = option(
        "",
        "Held-out text: a file, a folder or a pattern; empty: none, or the text dataset.",
        title="Held-out text",
        group="Evaluation during training",
        path=True,
        identity=False,
    )
    declare_in_training(vars(), OF_DATASETS)
    evaluate_text_dataset_name: str = option(
        "",
        "Dataset of held-out text on the Hub, if there is no path; empty: none.",
        details="It is read once, before the first step, and kept in memory.",
        title="Text dataset",
        group="Evaluation during training",
        identity=False,
    )
    evaluate_text_dataset_config: str = option(
        "",
        "Configuration of the text dataset; empty means all.",
        title="Text configuration",
        group="Evaluation during training",
        identity=False,
    )
    evaluate_text_split: str = option(
        "train",
        "Split of the text dataset.",
        title="Text split",
        group="Evaluation during training",
        identity=False,
    )
    # The other options, such as evaluate_limit; those above keep their place.
    declare_in_training(vars())
    sample_predictions: int = option(
        0,
        "Validation sequences whose predictions are shown at each validation; 0: none.",
        details="On one device only. Predictions don't change the training.",
        group="Evaluation",
        ge=0,
        le=10,
        identity=False,
    )
    log_utilisation: bool = option(
        True,
        "Draws CPU, memory and GPU utilisation as curves.",
        group="Evaluation",
        identity=False,
    )
    save_steps: int | None = option(
        None,
        "Steps between checkpoints.",
        details=(
            "Empty: 20 checkpoints per run, or one per validation if a validation interval is set."
        ),
        title="Checkpoint interval",
        group="Checkpoints",
        ge=1,
        identity=False,
    )
    save_total_limit: int = option(
        2,
        "The newest ones; the best is always kept.",
        title="Checkpoints to keep",
        group="Checkpoints",
        ge=1,
        identity=False,
    )
    checkpoint_words: str = option(
        "",
        "Words seen at which the model is kept for good: babylm, none, or numbers such as 1M 10M.",
        details="Empty: babylm with evaluate_every, else none. babylm: each million words to 10 "
        "million, each 10 million to 100 million, each 100 million to a billion. Words are "
        "separated by white space; those seen are derived from "
        "the tokens seen and the counts of the shards: docs/evaluation.md.",
        title="Checkpoints by words",
        group="Checkpoints",
        identity=False,
    )
    output: str = option(
        "",
        "Receives a copy of the best checkpoint.",
        title="Output folder",
        group="Checkpoints",
        path=True,
        identity=False,
    )

    push_to_hub: bool = option(
        False,
        "Uploads checkpoints during the run and the best one at its end.",
        details=("Needs a login (hf auth login) or HF_TOKEN. A failed upload never stops the run."),
        title="Push to the Hub",
        group="Hub",
        identity=False,
    )
    hub_model_id: str = option(
        "",
        "Repository such as owner/name; empty: the model's name.",
        details="Without an owner, it is yours.",
        title="Hub id",
        group="Hub",
        pattern=HUB_ID_PATTERN,
        identity=False,
    )
    hub_private_repo: bool = option(
        True,
        "Only you can see the repository.",
        details="Off: everybody can, even if it was private before.",
        title="Private repository",
        group="Hub",
        identity=False,
    )
    hub_every_saves: int = option(
        1,
        "Saves per upload; 0: only at the end.",
        title="Upload interval",
        group="Hub",
        ge=0,
        identity=False,
    )
    hub_license: str = option(
        "",
        "Licence on the model card, such as apache-2.0, mit or cc-by-4.0.",
        title="Licence",
        group="Hub",
        choices=LICENSES,
        identity=False,
    )

    report_to: str = report_to_option()
    project: str = project_option()
    webhook: str = webhook_option()
    webhook_format: WebhookFormat = webhook_format_option()

    damaged_records: Literal["stop", "skip"] = option(
        "stop",
        "Handling of damaged records in the shards.",
        options={
            "stop": ("Stop", "stops the run and names the record"),
            "skip": ("Skip", "skips and counts the record"),
        },
        group="Data",
        identity=False,
    )

    engine: Literal["auto", "tensorflow", "jax"] = option(
        "auto",
        "Library that trains the model.",
        options={
            "auto": ("Automatic", "TensorFlow on CPU, JAX on TPU and GPU"),
            "tensorflow": ("TensorFlow", ""),
            "jax": ("JAX", ""),
        },
        title="Backend",
        group="Device",
        identity=False,
    )
    device: Literal["auto", "cpu", "gpu", "tpu"] = option(
        "auto",
        "Device to train on.",
        options={
            "auto": ("Automatic", "the fastest available device"),
            "cpu": ("CPU", ""),
            "gpu": ("GPU", ""),
            "tpu": ("TPU", ""),
        },
        group="Device",
        identity=False,
    )
    num_devices: int | None = option(
        None,
        "Devices that share a step; empty: all TPUs or GPUs, or one CPU.",
        details="Several devices on a CPU are simulated.",
        title="Devices",
        group="Device",
        ge=1,
        le=4096,
        identity=False,
    )
    sharding: Literal["data", "fsdp"] = option(
        "data",
        "Placement of weights on several devices.",
        options={
            "data": ("Data parallel", "all weights on every device"),
            "fsdp": (
                "FSDP",
                (
                    "weights and optimizer state sharded, for models too large for one "
                    "device; JAX only"
                ),
            ),
        },
        group="Device",
        identity=False,
    )
    remat: bool = option(
        False,
        "Recomputes activations: less memory, about a third more work.",
        title="Gradient checkpointing",
        group="Device",
        identity=False,
    )
    steps_per_execution: int = option(
        1,
        "Steps per call of the device.",
        details="More than one helps if a step takes less than a few milliseconds.",
        group="Device",
        ge=1,
        le=1024,
        identity=False,
    )
    tpu_name: str = option(
        "local",
        "Name or address; local is the TPU of this machine.",
        details="TensorFlow on TPU only.",
        title="TPU name",
        group="Device",
        identity=False,
    )
    tpu_zone: str = option(
        "",
        "Google Cloud zone of a named TPU.",
        details="TensorFlow on TPU only.",
        title="TPU zone",
        group="Device",
        identity=False,
    )
    gcp_project: str = option(
        "",
        "Google Cloud project of a named TPU.",
        details="TensorFlow on TPU only.",
        title="Google Cloud project",
        group="Device",
        identity=False,
    )
    mirror: str = mirror_option()
    num_processes: int | None = option(
        None,
        "Processes that share the run; empty: one.",
        details="One on each host of a TPU pod slice or GPU cluster. On TPUs: JAX only.",
        title="Processes",
        group="Several hosts",
        ge=1,
        le=65_536,
        identity=False,
    )
    process_id: int | None = option(
        None,
        "Rank of this process, from 0.",
        details="Empty: detected on a TPU pod.",
        title="Process index",
        group="Several hosts",
        ge=0,
        identity=False,
    )
    coordinator_address: str = option(
        "",
        "Address of process 0, as host:port.",
        details="Empty: detected on a TPU pod.",
        group="Several hosts",
        identity=False,
    )
    dtype_policy: Literal["auto", "float32", "mixed_bfloat16"] = option(
        "float32",
        "Number format of computations.",
        options={
            "auto": ("Automatic", "measured at the first start: the faster one on this machine"),
            "float32": ("float32", ""),
            "mixed_bfloat16": ("Mixed bfloat16", "computes in bfloat16, keeps weights in float32"),
        },
        title="Precision",
        group="Device",
    )
    seed: int = option(
        0, "Seeds initial weights, data order and masks.", group="General", ge=0, lt=1 << 31
    )

    @field_validator("checkpoint_words")
    @classmethod
    def _check_words(cls, text: str) -> str:
        parse_word_marks(text)
        return text

    @property
    def word_marks(self) -> str:
        return self.checkpoint_words or (BABYLM if self.evaluate_every else NO_MARKS)

    def evaluation(self, task: EvaluationTask) -> EvaluateConfig:
        """Returns the settings of the evaluations on a task during training."""
        names = names_in_training(task).items()
        return EvaluateConfig(task=task, **{name: getattr(self, option) for name, option in names})

    @field_validator("mixture", mode="before")
    @classmethod
    def _write_mixture(cls, value: Any) -> Any:
        return mixture_text(value)

    @model_validator(mode="after")
    def _check_mixture(self) -> TrainConfig:
        sources = parse_mixture(self.mixture)
        if self.mixture_temperature is not None and not (sources and sources[0].weight is None):
            raise ConfigError(
                "⟬mixture_temperature⟭ needs a mixture without weights",
                expected="names only, such as ⟬mixture=english⟭ korean",
                received=f"⟬mixture={self.mixture!r}⟭ and temperature {self.mixture_temperature:g}",
                fix="leave out the weights or the temperature",
                field="mixture_temperature",
            )
        for name in ("shards", "max_train_examples"):
            if sources and getattr(self, name):
                raise ConfigError(
                    f"A mixture doesn't go with ⟬{name}⟭",
                    expected=f"⟬mixture⟭ or ⟬{name}⟭",
                    received=f"both: ⟬{name}={getattr(self, name)}⟭",
                    fix=f"leave ⟬{name}⟭ empty",
                    field=name,
                )
        return self

    @field_validator("hub_model_id")
    @classmethod
    def _check_hub_id(cls, repo_id: str) -> str:
        if repo_id:
            check_hub_id(repo_id, field="hub_model_id")
        return repo_id

    @model_validator(mode="after")
    def _check_hub_name(self) -> TrainConfig:
        if self.push_to_hub and not self.hub_model_id and self.name:
            check_hub_id(self.name, field="name")
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> TrainConfig:
        if self.engine == "tensorflow" and self.sharding == "fsdp":
            raise ConfigError(
                "TensorFlow doesn't support ⟬sharding=fsdp⟭",
                expected="engine jax (or auto) with ⟬sharding=fsdp⟭",
                received="engine tensorflow with ⟬sharding=fsdp⟭",
                fix="set ⟬engine⟭ to auto or jax, or ⟬sharding⟭ to data",
                field="sharding",
            )
        return self

    @model_validator(mode="after")
    def _check_target(self) -> TrainConfig:
        if not self.target:
            return self
        for name in _NOT_ELSEWHERE:
            if value := getattr(self, name):
                raise _needs_other(
                    name, "nothing with a target", str(value), "leave it out: see docs/remote.md"
                )
        if self.evaluate_only:
            raise _needs_other("evaluate_only", "false with a target", "true", "evaluate here")
        return self

    @classmethod
    def preset_values(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Returns preset values; a warm-up ratio replaces warm-up steps."""
        steps: dict[str, Any] = {"warmup_steps": None} if "warmup_ratio" in values else {}
        return {**super().preset_values(values), **steps}

    def pin_inferred(self, changed: dict[str, Any]) -> dict[str, Any]:
        # Otherwise the ratio would take precedence.
        pinned = "warmup_ratio" in changed and self.warmup_steps
        return {**changed, "warmup_steps": self.warmup_steps} if pinned else changed


def _needs_other(name: str, expected: str, received: str, fix: str) -> ConfigError:
    return ConfigError(
        f"⟬{name}⟭ doesn't go with the target",
        expected=expected,
        received=received,
        fix=fix,
        field=name,
    )
