"""Creates the selected backend with a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.architecture.architecture import Architecture
from core.backends.base import Backend, BackendOptions, Build
from core.backends.devices import Devices
from core.backends.schedule import LearningRateSchedule
from core.config.train import TrainConfig
from core.models.building import create_model

if TYPE_CHECKING:
    import keras

    from core.models.head import LanguageModel


def create_backend(
    devices: Devices, build: Build, options: BackendOptions | None = None
) -> Backend:
    """Creates the selected backend."""
    options = options or BackendOptions()
    if devices.engine == "jax":
        from core.backends.jax.step import JaxBackend

        return JaxBackend(build, devices, options)
    from core.backends.tensorflow.step import TensorFlowBackend

    return TensorFlowBackend(build, devices, options)


def build_for_training(
    config: TrainConfig, architecture: Architecture, schedule: LearningRateSchedule
) -> tuple[LanguageModel, keras.optimizers.Optimizer]:
    """Creates a random model and its optimizer."""
    from core.backends.optimizers import build_optimizer, create_optimizer

    model = create_model(
        architecture, seed=config.seed, dtype_policy=config.dtype_policy, remat=config.remat
    )
    optimizer = create_optimizer(config, schedule)
    build_optimizer(optimizer, model)
    return model, optimizer
