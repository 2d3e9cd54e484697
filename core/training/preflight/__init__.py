"""Preflight: estimates a run's memory, time and cost."""

from core.training.preflight.stage import check, run

__all__ = ["check", "run"]
