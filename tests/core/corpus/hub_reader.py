"""Reads corpora in a separate process, because Hub clients read HF_ENDPOINT on import.

Reads a JSON list of corpus settings from standard input and prints one result per entry.
"""

import json
import sys
from typing import Any

from core.config.corpus import CorpusConfig
from core.corpus.reading import open_corpus, preview
from core.errors import StudioError
from core.workspace.workspace import Workspace


def read(settings: dict[str, Any], workspace: Workspace) -> dict[str, Any]:
    config = CorpusConfig.parse({"source": "hub", **settings})
    try:
        corpus = open_corpus(config, workspace)
        seen = preview(config, workspace, documents=2)
        return {
            "fingerprint": corpus.fingerprint,
            "train": list(corpus.documents("train")),
            "again": list(corpus.documents("train")),
            "validation": list(corpus.documents("validation")),
            "counts": corpus.counts,
            "samples": seen.samples,
            "columns": seen.columns,
            "text_column": seen.text_column,
        }
    except StudioError as error:
        return {"type": type(error).__name__, "message": str(error), "field": error.field}


if __name__ == "__main__":
    workspace = Workspace(sys.argv[1])
    print(json.dumps([read(settings, workspace) for settings in json.load(sys.stdin)]))
