"""Loads tokenizers in a separate process, because the Hub client reads HF_ENDPOINT on import.

Takes a workspace and references as arguments and prints one result per reference.
"""

import json
import sys
from typing import Any

from core.errors import StudioError
from core.tokenizer.loading import load
from core.workspace.workspace import Workspace


def describe(reference: str, workspace: Workspace) -> dict[str, Any]:
    try:
        tokenizer = load(reference, workspace)
    except StudioError as error:
        return {"type": type(error).__name__, "message": str(error)}
    files = sorted(path.name for path in tokenizer.path.iterdir())
    return {"fingerprint": tokenizer.fingerprint, "mask": tokenizer.mask_id, "files": files}


if __name__ == "__main__":
    workspace = Workspace(sys.argv[1])
    print(json.dumps([describe(reference, workspace) for reference in sys.argv[2:]]))
