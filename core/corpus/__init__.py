"""Reads text corpora as streams of documents, with a validation split."""

from core.corpus.reading import (
    Corpus,
    CorpusPreview,
    LabelledDocument,
    Split,
    open_corpus,
    preview,
)

__all__ = ["Corpus", "CorpusPreview", "LabelledDocument", "Split", "open_corpus", "preview"]
