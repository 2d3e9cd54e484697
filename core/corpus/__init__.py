"""Reads text corpora as streams of documents, with a validation split."""

from core.earlier_names import members_of

__getattr__ = members_of(__name__)
