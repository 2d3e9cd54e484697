"""Answers people from a model: the playground and the demo."""
