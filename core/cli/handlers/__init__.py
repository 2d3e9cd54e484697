"""Modules that run commands: each is imported when one of its commands runs."""
