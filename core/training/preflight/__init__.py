"""What a run would need and cost, before anyone pays. `run` is the stage."""

from core.training.preflight.stage import run

__all__ = ["run"]
