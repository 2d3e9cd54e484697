"""Texts and labels for classifiers with random weights."""

from core.families import list_families

TEXTS = [("the small cat runs",), ("a horse reads the ship and the small ship sails",), ("cat",)]
PAIRS = [("the small cat runs", "a horse"), ("a ship", "the cat reads a horse")]
LABELS = ("good", "bad", "other")
HEADS = [(family.name, kind) for family in list_families() for kind in family.heads]
