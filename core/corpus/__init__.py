"""Reads text corpora as streams of documents, with a held-out validation split.

Sources: the documentation of the installed packages, local files, and datasets on the Hugging Face
Hub.
"""

from core.corpus.reading import Corpus, CorpusPreview, Split, open_corpus, preview

__all__ = ["Corpus", "CorpusPreview", "Split", "open_corpus", "preview"]
