"""Texts and labels for classifiers with random weights."""

TEXTS = [("the small cat runs",), ("a horse reads the ship and the small ship sails",), ("cat",)]
PAIRS = [("the small cat runs", "a horse"), ("a ship", "the cat reads a horse")]
LABELS = ("good", "bad", "other")
