"""Backend interface of the training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.backends.schedule import LearningRateSchedule
from core.config.train import TrainConfig
from core.errors import CheckpointError, ConfigError
from core.objectives.mlm import log_frequencies
from core.objectives.objective import Batch

if TYPE_CHECKING:
    import keras

    from core.models.head import LanguageModel

DeviceValue = Any

# None: the model is only evaluated.
Build = Callable[[], "tuple[LanguageModel, keras.optimizers.Optimizer | None]"]

INPUT_NAMES = (
    "input_ids",
    "attention_mask",
    "masked_positions",
    "decoder_input_ids",
    "token_type_ids",
    "text_starts",
    "dropout_seed",
)

# Makes each replica's dropout differ.
_REPLICA_SALT = 0x9E3779B1


@dataclass(frozen=True)
class BackendOptions:
    """Execution options; `sharding` is data (replicated weights) or fsdp."""

    sharding: str = "data"
    gradient_accumulation_steps: int = 1

    @classmethod
    def of(cls, config: TrainConfig) -> BackendOptions:
        return cls(config.sharding, config.gradient_accumulation_steps)


class Backend(Protocol):
    """Compiled training and validation steps."""

    model: LanguageModel
    optimizer: keras.optimizers.Optimizer | None

    def part(self, batch_size: int) -> slice:
        """Returns this process's slice of a batch."""

    def put(self, batch: Batch, number: int | None = None) -> dict[str, DeviceValue]:
        """Copies this process's slice to its devices; thread-safe.

        `number` seeds dropout; None: validation.
        """

    def train_step(self, batch: Mapping[str, DeviceValue]) -> DeviceValue:
        """Updates the weights and returns the loss, on the device."""

    def train_steps(self, batches: Sequence[Mapping[str, DeviceValue]]) -> DeviceValue:
        """Runs several steps in one execution; returns losses, (steps,)."""

    def evaluate_step(self, batch: Mapping[str, DeviceValue]) -> DeviceValue:
        """Returns sums of losses, correct predictions and weights, (3,)."""

    def predict_step(self, batch: Mapping[str, DeviceValue]) -> DeviceValue:
        """Returns the logits of a batch, float32 (B, K, …); on one device only."""

    def set_schedule(self, schedule: LearningRateSchedule) -> None:
        """Replaces the learning-rate schedule by one of the same kind, without recompiling.

        On TensorFlow, the first call precedes the first step.
        """

    def fetch(self, values: Sequence[DeviceValue]) -> NDArray[np.float32]:
        """Waits for values, stacked on the host."""

    def agree(self, flag: int) -> int:
        """Returns the largest flag, some steps late; all processes must call it equally often."""

    def read_state(self) -> dict[str, NDArray]:
        """Returns weights and slots by path; all processes must call it."""

    def write_state(self, state: Mapping[str, NDArray]) -> None:
        """Sets weights and slots; raises CheckpointError."""


def set_output_bias(model: LanguageModel, token_counts: NDArray[np.int64]) -> None:
    """Initialises an encoder's output bias to log token frequencies.

    `token_counts` are at most (vocab_size,). Source: https://arxiv.org/abs/1708.02002, section 3.3.
    """
    if model.architecture.kind == "encoder":
        bias = model.lm_head.bias
        counts = np.pad(token_counts, (0, bias.shape[0] - len(token_counts)))
        bias.assign(log_frequencies(counts).astype(np.float32))


def learned_from(
    batch: Mapping[str, DeviceValue],
) -> tuple[dict[str, DeviceValue], DeviceValue, DeviceValue]:
    """Splits a batch into inputs, labels and label weights."""
    return inputs_of(batch), batch["labels"], batch["label_weights"]


def inputs_of(batch: Mapping[str, DeviceValue]) -> dict[str, DeviceValue]:
    """Returns a batch's inputs to the model."""
    return {name: batch[name] for name in INPUT_NAMES if name in batch}


def dropout_seeds(number: int, parts: int, replica: int = 0) -> NDArray[np.int32]:
    """Computes dropout seeds, int32 (parts, 2).

    `replica` is for devices that number their own elements.
    """
    salt = (replica * _REPLICA_SALT) & 0x7FFFFFFF
    counts = (number * parts + np.arange(parts)) & 0x7FFFFFFF
    return np.stack([np.full(parts, salt), counts], axis=1).astype(np.int32)


def check_divisible(batch_size: int, devices: int, parts: int) -> None:
    """Raises ConfigError unless a batch divides evenly."""
    if batch_size % (devices * parts):
        raise ConfigError(
            "The batch can't be split evenly between devices",
            expected=f"a multiple of {devices} devices x {parts} accumulation steps",
            received=f"{batch_size} sequences per step, as planned for the run",
            fix="set ⟬num_devices⟭ and ⟬gradient_accumulation_steps⟭ to numbers whose product "
            "divides the batch",
            field="gradient_accumulation_steps" if parts > 1 else "num_devices",
        )


def variables_by_path(
    model: LanguageModel, optimizer: keras.optimizers.Optimizer | None
) -> dict[str, keras.Variable]:
    """Returns all variables by path, alike on all backends."""
    variables = [*model.variables, *(optimizer.variables if optimizer else [])]
    by_path = {variable.path: variable for variable in variables}
    assert len(by_path) == len(variables), "two variables share a path"
    return by_path


def check_state(variables: Mapping[str, keras.Variable], state: Mapping[str, NDArray]) -> None:
    """Raises CheckpointError unless variables and shapes agree."""
    problems = [f"{path} is missing" for path in variables if path not in state]
    problems += [f"{path} is unknown" for path in state if path not in variables]
    problems += [
        f"{path} has shape {state[path].shape} instead of {tuple(variable.shape)}"
        for path, variable in variables.items()
        if path in state and tuple(variable.shape) != state[path].shape
    ]
    if problems:
        raise CheckpointError(
            "The training state doesn't fit the model",
            expected=f"{len(variables)} arrays with the model's shapes",
            received=f"{problems[0]} (and {len(problems) - 1} more differences)",
            fix="resume with the original settings of the run",
        )
