"""Submits, queues, starts, follows and stops runs."""
