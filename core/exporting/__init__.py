"""Writes models in the file formats of other programs."""
