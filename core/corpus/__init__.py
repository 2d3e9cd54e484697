"""Text to train on: a stream of documents with a part held out for validation.

Three sources: the documentation of the installed packages, files on this machine, a dataset on the
Hugging Face Hub. `open_corpus` gives the stream, `preview` a look at it.
"""

from core.corpus.reading import Corpus, CorpusPreview, Split, open_corpus, preview

__all__ = ["Corpus", "CorpusPreview", "Split", "open_corpus", "preview"]
