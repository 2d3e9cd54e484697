"""Sweeps: trials of a stage with varied options, executed as queued runs."""
