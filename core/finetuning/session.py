"""A compiled classifier that trains several times: per learning rate, seed and initial weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from core.backends.base import Backend, BackendOptions
from core.backends.creation import create_backend
from core.backends.devices import Devices
from core.backends.schedule import LearningRateSchedule
from core.config.finetune import FinetuneConfig
from core.config.train import TrainConfig
from core.finetuning.batches import LabelledSequences, collate, ordered_batches
from core.finetuning.saving import ClassifierConfig

if TYPE_CHECKING:
    import keras

    from core.finetuning.classifier import Classifier

State = Mapping[str, NDArray]

# A dropout seed holds the training's number and the step's.
_STEPS_PER_TRAINING = 1 << 20


class Session:
    """Trains one classifier again and again without compiling anew.

    Args:
        longest: Most tokens of a sequence.
        policy: float32 or mixed_bfloat16.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        classifier: ClassifierConfig,
        devices: Devices,
        longest: int,
        policy: str,
    ) -> None:
        self.config = config
        self.classifier = classifier
        self._longest = longest
        self._policy = policy
        # The most rows of a batch.
        self.batch_size = config.per_replica_batch_size
        self._backend: Backend = create_backend(devices, self._build, BackendOptions())
        self._first_state = self._backend.read_state()
        self._trainings = 0

    def start(self, pretrained: State, schedule: LearningRateSchedule, seed: int) -> None:
        """Starts a training: pretrained weights, the rest random, and an empty optimizer."""
        fresh = {
            variable.path: np.asarray(variable.numpy()) for variable in self._model(seed).variables
        }
        self._backend.write_state({**self._first_state, **fresh, **pretrained})
        self._backend.set_schedule(schedule)
        self._trainings += 1

    def step(self, data: LabelledSequences, chosen: NDArray[np.intp], step: int) -> Any:
        """Updates the weights with a batch; returns the loss, on the device."""
        number = (self._trainings * _STEPS_PER_TRAINING + step) & 0x7FFFFFFF
        batch = self._collate(data, chosen)
        if self.config.r_drop:
            batch = {name: np.concatenate([rows, rows]) for name, rows in batch.items()}
        return self._backend.train_step(self._backend.put(batch, number))

    def fetch(self, losses: list[Any]) -> NDArray[np.float32]:
        """Waits for losses."""
        return self._backend.fetch(losses)

    def predict(self, data: LabelledSequences) -> list[NDArray[np.float32]]:
        """Computes the logits of each sequence, (1 or L, outputs)."""
        all_logits: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(data)
        lengths = [len(sequence.ids) for sequence in data.sequences]
        for chosen in ordered_batches(lengths, self.batch_size):
            batch = self._collate(data, chosen)
            logits = self._backend.fetch([self._backend.predict_step(self._backend.put(batch))])[0]
            for row, number in enumerate(chosen):
                all_logits[number] = logits[row]
        return all_logits

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Copies the model's weights."""
        paths = {variable.path for variable in self._backend.model.variables}
        state = self._backend.read_state()
        return {path: value for path, value in state.items() if path in paths}

    def _collate(self, data: LabelledSequences, chosen: NDArray[np.intp]) -> dict[str, NDArray]:
        head, architecture = self.classifier.head, self.classifier.architecture
        uses_decoder = architecture.kind == "encoder-decoder" and not head.encoder_only
        return collate(
            data, chosen, self.batch_size, self._longest, architecture, uses_decoder=uses_decoder
        )

    def _model(self, seed: int) -> Classifier:
        from core.finetuning.classifier import Classifier

        rate = self.config.dropout
        return Classifier(
            replace(
                self.classifier.architecture,
                hidden_dropout_prob=rate,
                attention_probs_dropout_prob=rate,
            ),
            self.classifier.head,
            self.classifier.kind,
            self.classifier.outputs,
            seed=seed,
            dtype=self._policy,
            r_drop=self.config.r_drop,
        )

    def _build(self) -> tuple[Classifier, keras.optimizers.Optimizer]:
        from core.backends.optimizers import build_optimizer, create_optimizer

        model = self._model(self.config.seed)
        optimizer = create_optimizer(train_config(self.config), make_schedule(self.config, 1.0, 1))
        build_optimizer(optimizer, model)
        return model, optimizer


def make_schedule(config: FinetuneConfig, rate: float, steps: int) -> LearningRateSchedule:
    """Returns linear warm-up and decay, as in https://arxiv.org/abs/1810.04805, appendix A.2."""
    return LearningRateSchedule(
        kind="linear",
        peak=rate,
        warmup_steps=round(config.warmup_ratio * steps),
        num_train_steps=steps,
    )


def train_config(config: FinetuneConfig) -> TrainConfig:
    """Returns the settings that training shares, such as AdamW's of BERT (epsilon 1e-6)."""
    return TrainConfig(
        preset="custom",
        engine=config.engine,
        device=config.device,
        num_devices=1,
        optimizer="adamw",
        weight_decay=config.weight_decay,
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-6,
        max_grad_norm=1.0,
        dtype_policy=config.dtype_policy,
        seed=config.seed,
    )
