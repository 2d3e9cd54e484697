"""Preflight: estimates memory, time and cost of a run in advance. `run` is the stage."""

from core.training.preflight.stage import check, run

__all__ = ["check", "run"]
