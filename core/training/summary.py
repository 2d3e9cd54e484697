"""Summarises a finished run, for its model's manifest and for later forecasts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from core.models.registry import count_parameters
from core.training.mixture import BLOCK
from core.training.planner import flops_per_step
from core.training.speeds import record_speed
from core.workspace.workspace import Workspace

if TYPE_CHECKING:
    from core.training.session import Session


def summarize(session: Session) -> dict[str, float]:
    """Returns the metrics of a finished run."""
    state, inputs = session.state, session.setup.inputs
    best = state.best
    assert best is not None
    return {
        **best.figures,
        "best_step": best.step,
        "num_train_steps": state.step,
        "tokens": state.step * session.plan.tokens_per_step,
        "parameters": count_parameters(inputs.architecture),
        "seconds": round(state.seconds, 1),
        "skipped_batches": sum(stop - first for _, first, stop in state.skipped),
        **_cost_of_interim(session),
        **_source_shares(session),
    }


def remember_speed(session: Session, workspace: Workspace) -> None:
    """Stores the speed of the session's steps for later forecasts."""
    setup = session.setup
    steps = session.step - session.schedule.begun_at
    seconds = time.perf_counter() - session.started
    per_step = flops_per_step(
        session.config, setup.inputs, session.plan.tokens_per_step, setup.devices.count
    )
    record_speed(
        workspace,
        family=setup.inputs.architecture.model_type,
        device=setup.devices.kind,
        engine=setup.devices.engine,
        flops=steps * per_step / seconds,
        hidden_size=setup.inputs.architecture.hidden_size,
        seconds=seconds,
        others=session.others.share() if setup.devices.processes == 1 else 0.0,
    )


def _cost_of_interim(session: Session) -> dict[str, float]:
    """Returns the time in evaluations, and its share of the run's."""
    if session.setup.interim is None:
        return {}
    spent = session.state.evaluation_seconds
    percent = 100 * spent / max(session.state.seconds, spent, 1e-9)
    return {"evaluation_seconds": round(spent, 1), "evaluation_percent": round(percent, 2)}


def _source_shares(session: Session) -> dict[str, float]:
    sources = session.setup.inputs.sources
    if not sources.is_mixture:
        return {}
    shares = {f"share/{source.name}": source.share / BLOCK for source in sources.all}
    return {**shares, **session.source_epochs(session.step)}
