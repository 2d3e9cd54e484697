"""Options of training."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from core.config.base import StageConfig
from core.config.options import HUB_ID_PATTERN, LICENSES, Family, Size, knob
from core.errors import ConfigError
from core.presets import TRAINING_PRESETS

TrainPresetName = Literal["fast", "classic", "flax", "custom"]


class TrainConfig(StageConfig):
    """Options for training a model."""

    presets = TRAINING_PRESETS
    variant = "family"

    name: str = knob(
        "",
        "What to call the model. Empty: a name is made from the settings.",
        basic=True,
        identity=False,
    )
    preset: TrainPresetName = knob(
        "fast",
        "Which hyperparameters to start from. fast: what learns most in a given time "
        "(docs/recipe.md); as published: classic, the TPU example's, and flax, those of the "
        "family's write-up in the Flax README, or ModernBERT's own; custom: fills nothing in, what "
        "you don't set has its field's own default. What you set yourself wins.",
        basic=True,
    )
    shards: str = knob(
        "",
        "The shards' name in the workspace, their folder, or their id on the Hub.",
        basic=True,
        artifact="shards",
    )
    tokenizer: str = knob(
        "",
        "The tokenizer the shards were made with. Empty: the copy kept beside the shards.",
        artifact="tokenizer",
    )
    objective: Literal["auto", "mlm", "clm", "span_corruption", "denoising"] = knob(
        "auto",
        "What the model learns to predict: hidden words (mlm), the next word (clm), hidden spans "
        "(span_corruption), the text from a damaged copy (denoising). auto: the family's own.",
        group="Objective",
    )
    evaluate_only: bool = knob(
        False, "Only measure `checkpoint` on the validation rows; train nothing."
    )
    checkpoint: str = knob(
        "",
        "A model whose weights to start from: its name in the workspace, a checkpoint folder, or "
        "an id on the Hub like owner/name or owner/name@revision. Empty: from scratch.",
        artifact="model",
    )

    family: Family = knob(
        "roberta",
        "The architecture. In the shell that of the checkpoint or the model config, where one is "
        "named.",
        group="Model",
        basic=True,
    )
    size: Size = knob(
        "mini",
        "BERT's published miniatures: tiny 2 layers x 128, mini 4x256, small 4x512, medium 8x512, "
        "base 12x768, large 24x1024. Other families have their published sizes, as gpt2-medium "
        "24x1024 or T5 v1.1 small 8x512, and miniatures in proportion.",
        group="Model",
        basic=True,
    )
    model_config_path: str = knob(
        "",
        "A Hugging Face config.json (or a folder that holds one) to take the dimensions from.",
        title="Model config",
        group="Model",
        flag="model-config",
        path=True,
    )
    num_hidden_layers: int | None = knob(
        None, "Layers. Empty: from the size.", group="Model", ge=1, le=1024
    )
    hidden_size: int | None = knob(
        None, "Width. Empty: from the size.", group="Model", ge=1, le=65_536
    )
    num_attention_heads: int | None = knob(
        None,
        "Attention heads; they divide the width. Empty: from the size.",
        group="Model",
        ge=1,
        le=1024,
    )
    intermediate_size: int | None = knob(
        None,
        "Width of the feed-forward layer. Empty: from the size.",
        group="Model",
        ge=1,
        le=1 << 20,
    )
    max_position_embeddings: int | None = knob(
        None,
        "Longest input in tokens that the model has positions for. Empty: the rows' length.",
        group="Model",
        ge=8,
        le=1 << 20,
    )
    hidden_dropout_prob: float = knob(
        0.1, "Dropout after embeddings and layers.", title="Dropout", group="Model", ge=0, lt=1
    )
    attention_probs_dropout_prob: float = knob(
        0.1, "Dropout on attention weights.", title="Attention dropout", group="Model", ge=0, lt=1
    )
    output_bias: Literal["zeros", "log_frequency"] = knob(
        "zeros",
        "What an encoder's output bias begins with. log_frequency: what the training rows' counts "
        "say, so that nothing has to be learned of how often a token occurs.",
        group="Model",
    )
    word_embeddings: Literal["random", "cooccurrence"] = knob(
        "random",
        "What the table of words begins with. cooccurrence: vectors that say which words stand "
        "near which in the training rows, so that this needn't be learned; it takes seconds.",
        group="Model",
    )
    attention_kernels: Literal["random", "neighbours"] = knob(
        "random",
        "What queries and keys begin with, and the table of positions, in families that have one. "
        "neighbours: half of the heads, or two, look at the nearest tokens, which then needn't be "
        "learned.",
        group="Model",
    )

    per_replica_batch_size: int = knob(
        8,
        "Rows a device sees in one step.",
        title="Batch size per device",
        group="Batch",
        basic=True,
        ge=1,
        le=1 << 20,
    )
    gradient_accumulation_steps: int = knob(
        1,
        "Batches to add the gradients of before the weights are updated: a step sees so many times "
        "more rows, in the memory of one batch.",
        group="Batch",
        ge=1,
        le=1 << 16,
        identity=False,
    )
    num_train_epochs: float = knob(
        1.0,
        "Passes over the training rows, where the steps are not given.",
        title="Epochs",
        group="Length",
        basic=True,
        gt=0,
        le=1_000_000,
    )
    num_train_steps: int | None = knob(
        None,
        "Steps to train for. Empty: as many as the epochs need.",
        title="Steps",
        group="Length",
        basic=True,
        ge=1,
    )
    max_train_examples: int | None = knob(
        None, "Use only this many training rows.", group="Length", ge=1
    )
    max_eval_examples: int | None = knob(
        None, "Use only this many validation rows.", group="Evaluation", ge=1
    )

    optimizer: Literal["adamw", "muon", "adafactor"] = knob(
        "adamw",
        "adamw: as most published examples have it; muon: orthogonalised momentum for the "
        "matrices, AdamW for the rest, which learns more from a step; adafactor: as T5's example "
        "has it, with little memory, no weight decay, and a learning rate relative to the weights.",
        group="Optimizer",
        basic=True,
    )
    learning_rate: float | None = knob(
        1e-4,
        "Peak learning rate. Empty: what suits the optimizer, the family and the width "
        "(docs/recipe.md).",
        group="Optimizer",
        basic=True,
        gt=0,
        le=10,
    )
    lr_scheduler_type: Literal["linear", "cosine", "constant", "warmup_stable_decay"] = knob(
        "linear",
        "How the learning rate goes on after the warm-up; all but constant end at 0. "
        "warmup_stable_decay stays at the peak until its last part (decay_ratio), for a run that "
        "may be given more steps before that.",
        title="Schedule",
        group="Optimizer",
    )
    decay_ratio: float = knob(
        0.2,
        "warmup_stable_decay only: the share of the steps after the warm-up in which the learning "
        "rate falls to 0.",
        group="Optimizer",
        gt=0,
        le=1,
    )
    warmup_steps: int | None = knob(
        None,
        "Steps to raise the learning rate from 0. Empty: from the ratio.",
        group="Optimizer",
        ge=0,
    )
    warmup_ratio: float = knob(
        0.05,
        "Share of the steps to raise the learning rate in, where the steps are not given.",
        group="Optimizer",
        ge=0,
        le=1,
    )
    weight_decay: float = knob(
        1e-3,
        "Decoupled weight decay; norms and biases are left out.",
        group="Optimizer",
        ge=0,
        le=1,
    )
    adam_learning_rate_ratio: float = knob(
        0.5,
        "Muon only: the learning rate of what it leaves to AdamW, as a share of the learning rate; "
        "weight decay goes by the whole of it.",
        group="Optimizer",
        gt=0,
        le=10,
    )
    muon_momentum: float = knob(0.95, "Muon only: its momentum.", group="Optimizer", ge=0, lt=1)
    adam_beta1: float = knob(0.9, "AdamW's first momentum.", group="Optimizer", ge=0, lt=1)
    adam_beta2: float = knob(0.999, "AdamW's second momentum.", group="Optimizer", ge=0, lt=1)
    adam_epsilon: float = knob(1e-8, "AdamW's epsilon.", group="Optimizer", gt=0, le=1)
    max_grad_norm: float | None = knob(
        None,
        "Scale gradients down to this global norm. Empty: leave them.",
        group="Optimizer",
        gt=0,
    )
    mlm_probability: float | None = knob(
        None,
        "Share of the tokens to hide. Empty: as published, 0.15, and 0.3 for denoising; for "
        "span_corruption what the rows are laid out for. Validation is always at that.",
        title="Masking probability",
        group="Objective",
        gt=0,
        le=0.9,
    )
    whole_word_mask: bool = knob(
        False, "Hide whole words and not single tokens (mlm).", group="Objective"
    )
    mean_noise_span_length: float | None = knob(
        None,
        "Mean tokens in a hidden span (span_corruption). Empty: what the rows are laid out for.",
        group="Objective",
        ge=1,
        le=100,
    )
    poisson_lambda: float = knob(
        3.0, "Mean tokens in a hidden span (denoising).", group="Objective", gt=0, le=100
    )
    permute_sentence_ratio: float = knob(
        1.0,
        "Share of the sentences that change places (denoising).",
        group="Objective",
        ge=0,
        le=1,
    )

    eval_steps: int | None = knob(
        None,
        "Validate every so many steps. Empty: 20 times in the run, or as often as takes a tenth of "
        "the time.",
        group="Evaluation",
        ge=1,
        identity=False,
    )
    eval_on_start: bool | None = knob(
        None,
        "Validate before the first step as well. Empty: only a checkpoint that is trained further.",
        group="Evaluation",
        identity=False,
    )
    per_replica_eval_batch_size: int | None = knob(
        None,
        "Rows a device sees in one validation step. Empty: as in training.",
        title="Validation batch size",
        group="Evaluation",
        ge=1,
    )
    logging_steps: int | None = knob(
        None,
        "Write the training loss every so many steps. Empty: 200 times in the run.",
        group="Evaluation",
        ge=1,
        identity=False,
    )
    save_steps: int | None = knob(
        None,
        "Save every so many steps. Empty: 20 times in the run, or at each validation where "
        "eval_steps is set.",
        group="Checkpoints",
        ge=1,
        identity=False,
    )
    save_total_limit: int = knob(
        2,
        "Checkpoints to keep, the newest ones; the best is kept besides.",
        group="Checkpoints",
        ge=1,
        identity=False,
    )
    output: str = knob(
        "",
        "Also copy the best checkpoint to this folder.",
        group="Checkpoints",
        path=True,
        identity=False,
    )

    push_to_hub: bool = knob(
        False,
        "Upload checkpoints to the Hugging Face Hub while the run goes on, and the best one at its "
        "end. Needs a login (hf auth login) or HF_TOKEN; an upload that fails never stops the run.",
        title="Push to the Hub",
        group="Hub",
        identity=False,
    )
    hub_model_id: str = knob(
        "",
        "The repository to push to, like owner/name; without an owner it is yours. Empty: called "
        "as the model.",
        title="Hub id",
        group="Hub",
        pattern=HUB_ID_PATTERN,
        identity=False,
    )
    hub_private_repo: bool = knob(
        True,
        "Only you can see the repository. Off: everybody can, even if it was private before.",
        title="Private repository",
        group="Hub",
        identity=False,
    )
    hub_every_saves: int = knob(
        1,
        "Upload every so many saves; 0: only at the end.",
        title="Upload every so many saves",
        group="Hub",
        ge=0,
        identity=False,
    )
    hub_license: str = knob(
        "",
        "The licence that the card names, as the Hub writes it: apache-2.0, mit, cc-by-4.0.",
        title="Licence",
        group="Hub",
        choices=LICENSES,
        identity=False,
    )

    damaged_records: Literal["stop", "skip"] = knob(
        "stop",
        "What a damaged record in the shards does: stop the run, naming it, or be left out and "
        "counted.",
        group="Checkpoints",
        identity=False,
    )

    engine: Literal["auto", "tensorflow", "jax"] = knob(
        "auto",
        "auto takes TensorFlow on CPU and JAX on TPU and GPU.",
        group="Device",
        identity=False,
    )
    device: Literal["auto", "cpu", "gpu", "tpu"] = knob(
        "auto", "auto takes the fastest that is there.", group="Device", identity=False
    )
    num_devices: int | None = knob(
        None,
        "Devices of this machine that share a step. Empty: all TPUs or GPUs that are there, one "
        "CPU. Several on a CPU are simulated.",
        group="Device",
        ge=1,
        le=4096,
        identity=False,
    )
    sharding: Literal["data", "fsdp"] = knob(
        "data",
        "data: every device holds all weights; fsdp: each holds a part of weights and optimizer, "
        "for models that are too large for one (JAX only).",
        group="Device",
        identity=False,
    )
    remat: bool = knob(
        False,
        "Keep only each layer's inputs for the gradient and compute the rest twice: less memory, "
        "about a third more work.",
        title="Rematerialise",
        group="Device",
        identity=False,
    )
    steps_per_execution: int = knob(
        1,
        "Steps that the device does in one go. More than one helps where a step takes less than a "
        "few milliseconds.",
        group="Device",
        ge=1,
        le=1024,
        identity=False,
    )
    tpu_name: str = knob(
        "local",
        "TensorFlow on TPU only: the TPU's name or address; local is the one of this machine.",
        title="TPU name",
        group="Device",
        identity=False,
    )
    tpu_zone: str = knob(
        "",
        "TensorFlow on TPU only: the Google Cloud zone of a TPU that is named.",
        title="TPU zone",
        group="Device",
        identity=False,
    )
    gcp_project: str = knob(
        "",
        "TensorFlow on TPU only: the Google Cloud project of a TPU that is named.",
        title="Google Cloud project",
        group="Device",
        identity=False,
    )
    num_processes: int | None = knob(
        None,
        "Processes that share the run, one on each host of a TPU pod slice or GPU cluster (JAX "
        "only). Empty: one.",
        group="Several hosts",
        ge=1,
        le=65_536,
        identity=False,
    )
    process_id: int | None = knob(
        None,
        "The number of this process, from 0. Empty: found out, on a TPU pod.",
        group="Several hosts",
        ge=0,
        identity=False,
    )
    coordinator_address: str = knob(
        "",
        "Where process 0 is reached by the others, host:port. Empty: found out, on a TPU pod.",
        group="Several hosts",
        identity=False,
    )
    dtype_policy: Literal["auto", "float32", "mixed_bfloat16"] = knob(
        "float32",
        "mixed_bfloat16 computes in bfloat16 and keeps weights in float32; auto measures at the "
        "first start which is faster here, and stays with it.",
        title="Precision",
        group="Device",
        basic=True,
    )
    seed: int = knob(
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

    def pin_inferred(self, changed: dict[str, Any]) -> dict[str, Any]:
        # Without its steps, the warm-up ratio would take precedence.
        pinned = "warmup_ratio" in changed and self.warmup_steps
        return {**changed, "warmup_steps": self.warmup_steps} if pinned else changed


def _needs_jax(name: str, value: str, other: str) -> ConfigError:
    return ConfigError(
        f"TensorFlow can't do {name}={value}",
        expected=f"engine jax (or auto) with {name}={value}",
        received=f"engine tensorflow with {name}={value}",
        fix=f"set engine to auto or jax, or {name} to {other}",
        field=name,
    )
