"""Describes a model and pushes it to the Hub."""
