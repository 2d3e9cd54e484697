"""Processes of this machine: children, their environment, cores and interruptions."""
