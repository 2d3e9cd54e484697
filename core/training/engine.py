"""What the training loop asks of an engine, and the state that both engines share.

The loop sees neither TensorFlow nor JAX. What a step returns stays on the device until `fetch`, so
that the host never waits between two log lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.errors import CheckpointError
from core.training.batches import Batch

if TYPE_CHECKING:
    import keras

DeviceValue = Any

# A model sees these arrays of a batch; the labels are for the loss.
INPUT_NAMES = ("input_ids", "attention_mask", "masked_positions")


class Engine(Protocol):
    """One training step and one validation step, compiled for the device."""

    model: keras.Model
    optimizer: keras.optimizers.Optimizer

    def put(self, batch: Batch) -> dict[str, DeviceValue]:
        """Moves a batch to the device. May be called from another thread."""

    def train_step(self, batch: Mapping[str, DeviceValue]) -> DeviceValue:
        """Updates the weights and returns the batch's loss, a scalar on the device."""

    def evaluate_step(self, batch: Mapping[str, DeviceValue]) -> DeviceValue:
        """Returns the sums of losses, of right predictions, and of weights, (3,) on the device."""

    def fetch(self, values: Sequence[DeviceValue]) -> NDArray[np.float32]:
        """Waits for values of equal shape and returns them stacked."""

    def read_state(self) -> dict[str, NDArray]:
        """Returns every weight, seed state and optimizer slot by path.

        Afterwards the model's own variables hold the present values too.
        """

    def write_state(self, state: Mapping[str, NDArray]) -> None:
        """Sets every weight, seed state and optimizer slot.

        Raises:
            CheckpointError: A value is missing, unknown, or of another shape.
        """


def create_engine(
    name: str, model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None
) -> Engine:
    """Returns the engine of that name for a built model.

    Args:
        name: tensorflow or jax; the one that Keras runs on.
        model: A built model.
        optimizer: Built for the model; None where nothing is trained.
    """
    if name == "jax":
        from core.training.engine_jax import JaxEngine

        return JaxEngine(model, optimizer)
    from core.training.engine_tensorflow import TensorFlowEngine

    return TensorFlowEngine(model, optimizer)


def model_inputs(batch: Mapping[str, DeviceValue]) -> dict[str, DeviceValue]:
    """Returns what the model sees of a batch."""
    return {name: batch[name] for name in INPUT_NAMES if name in batch}


def variables_by_path(
    model: keras.Model, optimizer: keras.optimizers.Optimizer | None
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
