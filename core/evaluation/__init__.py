"""Evaluates models on minimal pairs and held-out text; importing it imports no backend."""
