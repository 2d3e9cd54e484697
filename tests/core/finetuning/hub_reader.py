"""Reads examples from the Hub in a separate process, because its clients read HF_ENDPOINT once.

Reads a JSON list of configs from standard input and prints one result per entry.
"""

import json
import sys
from typing import Any

from core.config.finetune import FinetuneConfig
from core.errors import StudioError
from core.finetuning.data import read_splits
from core.finetuning.tasks import make_task


def read(values: dict[str, Any]) -> dict[str, Any]:
    config = FinetuneConfig.parse(values)
    notes: list[str] = []
    try:
        splits = read_splits(config, notes.append)
        task = make_task(config, splits)
    except StudioError as error:
        return error.to_dict()
    return {
        "test": splits.test,
        "train": len(splits.train),
        "labels": task.labels.names if task.labels else None,
        "metric": task.metric,
        "notes": notes,
    }


if __name__ == "__main__":
    print(json.dumps([read(values) for values in json.load(sys.stdin)]))
