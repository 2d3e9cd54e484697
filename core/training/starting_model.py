"""Starts a run's backend with initial, pretrained or restored weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from core.artifacts.checkpoint import read_arrays
from core.backends.base import Backend, BackendOptions, set_output_bias, variables_by_path
from core.backends.creation import build_for_training, create_backend
from core.backends.processes import broadcast_arrays
from core.config.train import TrainConfig
from core.models import hf
from core.training import recipe
from core.training.cooccurrence import find_token_embeddings, set_token_embeddings
from core.training.local_attention import local_attention_weights

if TYPE_CHECKING:
    from core.training.run_setup import RunSetup


def start_backend(
    setup: RunSetup,
    config: TrainConfig,
    plan: recipe.Plan,
    micro_batches: int,
    checkpoint: Path | None,
) -> Backend:
    """Builds the model and the training step; loads a checkpoint of this run, if any."""
    backend = create_backend(
        setup.devices,
        lambda: _build(setup, config, plan, is_restored=checkpoint is not None),
        BackendOptions(config.sharding, micro_batches),
    )
    if checkpoint:
        values: dict[str, NDArray] = {}
        if setup.devices.is_first:
            values = {
                **read_arrays(checkpoint),
                **hf.read_weights(checkpoint, setup.inputs.architecture),
            }
        variables = variables_by_path(backend.model, backend.optimizer)
        backend.write_state(broadcast_arrays(values, variables, setup.devices))
    return backend


def _build(setup: RunSetup, config: TrainConfig, plan: recipe.Plan, *, is_restored: bool) -> Any:
    weights = None
    if setup.inputs.checkpoint and not is_restored:
        # Before the model is built: a checkpoint's config may claim any dimensions.
        weights = hf.read_weights(setup.inputs.checkpoint, setup.inputs.architecture)
    schedule = recipe.learning_rate_schedule(config, plan)
    config = recipe.with_planned_precision(config, plan)
    model, optimizer = build_for_training(config, setup.inputs.architecture, schedule)
    if weights is not None:
        hf.assign_weights(model, weights)
    elif not is_restored:
        _initialise_weights(model, setup)
    return model, optimizer


def _initialise_weights(model: Any, setup: RunSetup) -> None:
    inputs, devices = setup.inputs, setup.devices
    if setup.config.output_bias == "log_frequency":
        set_output_bias(model, inputs.token_counts)
    if setup.cooccurrences:
        table = find_token_embeddings(model)
        # Rounding differs between hosts, and replicas must start equal.
        vectors = {table.path: setup.cooccurrences.vectors()} if devices.is_first else {}
        shared = broadcast_arrays(vectors, {table.path: table}, devices)
        set_token_embeddings(table, shared[table.path])
    if setup.config.attention_kernels == "neighbours":
        variables = variables_by_path(model, None)
        heads = inputs.architecture.num_attention_heads
        weights = local_attention_weights(model, heads, inputs.shards.row_length)
        for path, values in broadcast_arrays(weights, weights, devices).items():
            variables[path].assign(values)
