"""What the training loop asks of an engine, and the state that both engines share.

The loop sees neither TensorFlow nor JAX. What a step returns stays on the device until `fetch`, so
that the host never waits between two log lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.config import TrainConfig
from core.errors import CheckpointError, ConfigError
from core.models.architecture import Architecture
from core.models.registry import create_model
from core.objectives.mlm import log_frequencies
from core.training.batches import Batch
from core.training.devices import Devices
from core.training.recipe import LearningRateSchedule

if TYPE_CHECKING:
    import keras

    from core.models.head import LanguageModel

DeviceValue = Any

# Returns a built model, and the optimizer built for it where something is to be trained.
Build = Callable[[], "tuple[LanguageModel, keras.optimizers.Optimizer | None]"]

# A model sees these arrays of a batch; the labels are for the loss.
INPUT_NAMES = (
    "input_ids",
    "attention_mask",
    "masked_positions",
    "decoder_input_ids",
    "dropout_seed",
)

# Spreads the numbers of replicas over the integers, so that each drops something else.
_REPLICA_SALT = 0x9E3779B1


@dataclass(frozen=True)
class EngineOptions:
    """How a step is carried out; what it computes is the same but for rounding.

    Attributes:
        sharding: data: each device holds all weights; fsdp: each holds a part of them.
        gradient_accumulation_steps: Parts that a batch is worked through in.
    """

    sharding: str = "data"
    gradient_accumulation_steps: int = 1

    @classmethod
    def of(cls, config: TrainConfig) -> EngineOptions:
        """Returns the options of a training config."""
        return cls(config.sharding, config.gradient_accumulation_steps)


class Engine(Protocol):
    """One training step and one validation step, compiled for the devices."""

    model: LanguageModel
    optimizer: keras.optimizers.Optimizer | None

    def part(self, batch_size: int) -> slice:
        """Returns the rows of a global batch that this process has to `put`."""

    def put(self, batch: Batch, number: int | None = None) -> dict[str, DeviceValue]:
        """Moves this process's part of a batch to its devices. May be called from a thread.

        Args:
            batch: Its arrays.
            number: Of the training batch: decides what dropout drops. None: the batch is for
                validation, or nothing is dropped.
        """

    def train_step(self, batch: Mapping[str, DeviceValue]) -> DeviceValue:
        """Updates the weights and returns the batch's loss, a scalar on the device."""

    def train_steps(self, batches: Sequence[Mapping[str, DeviceValue]]) -> DeviceValue:
        """Does several steps in one execution and returns their losses, (steps,)."""

    def evaluate_step(self, batch: Mapping[str, DeviceValue]) -> DeviceValue:
        """Returns the sums of losses, of right predictions, and of weights, (3,) on the device."""

    def fetch(self, values: Sequence[DeviceValue]) -> NDArray[np.float32]:
        """Waits for values of equal shape and returns them stacked."""

    def agree(self, flag: int) -> int:
        """Returns the largest flag that any process gave some steps ago.

        To be called by all processes equally often. A process by itself gets its flag at once.
        """

    def read_state(self) -> dict[str, NDArray]:
        """Returns every weight and optimizer slot by path. All processes have to call it."""

    def write_state(self, state: Mapping[str, NDArray]) -> None:
        """Sets every weight and optimizer slot.

        Raises:
            CheckpointError: A value is missing, unknown, or of another shape.
        """


def create_engine(devices: Devices, build: Build, options: EngineOptions | None = None) -> Engine:
    """Returns the engine that was selected, with the model that `build` makes.

    Args:
        devices: What `select_engine` found.
        build: Makes the model and its optimizer where the engine wants them.
        options: How a step is carried out.
    """
    options = options or EngineOptions()
    if devices.engine == "jax":
        from core.training.engine_jax import JaxEngine

        return JaxEngine(build, devices, options)
    from core.training.engine_tensorflow import TensorFlowEngine

    return TensorFlowEngine(build, devices, options)


def build_for_training(
    config: TrainConfig, architecture: Architecture, schedule: LearningRateSchedule
) -> tuple[LanguageModel, keras.optimizers.Optimizer]:
    """Returns a model with its first weights, and the optimizer built for it, as `Build` does."""
    from core.training.optimizers import build_optimizer, create_optimizer

    model = create_model(
        architecture, seed=config.seed, dtype_policy=config.dtype_policy, remat=config.remat
    )
    optimizer = create_optimizer(config, schedule)
    build_optimizer(optimizer, model)
    return model, optimizer


def set_output_bias(model: LanguageModel, token_counts: NDArray[np.int64]) -> None:
    """Lets an encoder begin with how often each token occurs; other models have no output bias.

    After the bias for the prior in "Focal Loss for Dense Object Detection", section 3.3
    (https://arxiv.org/abs/1708.02002).

    Args:
        model: With its first weights.
        token_counts: Occurrences of each id in the training rows, int64, at most (vocab_size,).
    """
    if model.architecture.kind == "encoder":
        bias = model.lm_head.bias
        counts = np.pad(token_counts, (0, bias.shape[0] - len(token_counts)))
        bias.assign(log_frequencies(counts).astype(np.float32))


def learned_from(
    batch: Mapping[str, DeviceValue],
) -> tuple[dict[str, DeviceValue], DeviceValue, DeviceValue]:
    """Returns what the model sees of a batch, the labels, and what each of them counts."""
    inputs = {name: batch[name] for name in INPUT_NAMES if name in batch}
    return inputs, batch["labels"], batch["label_weights"]


def dropout_seeds(number: int, parts: int, replica: int = 0) -> NDArray[np.int32]:
    """Returns the seeds of a batch's parts, int32 (parts, 2).

    Args:
        number: Of the batch.
        parts: That it is worked through in.
        replica: Of the device, where each numbers its own elements from 0.
    """
    salt = (replica * _REPLICA_SALT) & 0x7FFFFFFF
    counts = (number * parts + np.arange(parts)) & 0x7FFFFFFF
    return np.stack([np.full(parts, salt), counts], axis=1).astype(np.int32)


def check_divisible(batch_size: int, devices: int, parts: int) -> None:
    """Refuses a batch that can't be shared out evenly.

    Raises:
        ConfigError: With the two numbers.
    """
    if batch_size % (devices * parts):
        raise ConfigError(
            "The batch can't be shared out evenly",
            expected=f"a multiple of {devices} devices x {parts} accumulation steps",
            received=f"{batch_size} rows a step, as the run was planned",
            fix="use a number of devices and of gradient_accumulation_steps that divide it",
            field="gradient_accumulation_steps" if parts > 1 else "num_devices",
        )


def variables_by_path(
    model: LanguageModel, optimizer: keras.optimizers.Optimizer | None
) -> dict[str, keras.Variable]:
    """Returns all variables by path: the same paths on every engine."""
    variables = [*model.variables, *(optimizer.variables if optimizer else [])]
    by_path = {variable.path: variable for variable in variables}
    assert len(by_path) == len(variables), "two variables share a path"
    return by_path


def check_state(variables: Mapping[str, keras.Variable], state: Mapping[str, NDArray]) -> None:
    """Refuses a state that isn't one of these variables.

    Raises:
        CheckpointError: Naming the first difference.
    """
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
            expected=f"{len(variables)} arrays of the model's shapes",
            received=f"{problems[0]} (and {len(problems) - 1} more differences)",
            fix="resume with the settings the run was started with",
        )
