"""What a run would need and cost, before anyone pays. `run` is the stage."""

from core.training.preflight.stage import check, run

__all__ = ["check", "run"]
