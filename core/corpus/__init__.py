"""Reads text corpora as streams of documents, with a validation split."""

from core.corpus.reading import Corpus, CorpusPreview, open_corpus, preview
from core.corpus.source import Split

__all__ = ["Corpus", "CorpusPreview", "Split", "open_corpus", "preview"]
