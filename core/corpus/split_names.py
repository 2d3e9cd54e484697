"""Reads the splits of a dataset's files from their names, as `datasets` does for a folder.

Source: https://github.com/huggingface/datasets/blob/5.2.0/src/datasets/data_files.py
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

TRAIN, VALIDATION, TEST = "train", "validation", "test"
# A name with several of these belongs to the first, so that no test file is trained on.
KEYWORDS = {
    TEST: ("test", "testing", "eval", "evaluation"),
    VALIDATION: ("validation", "valid", "dev", "val"),
    TRAIN: ("train", "training"),
}
# A file beside files of a training split, with a name that has no split.
UNNAMED = "none"
_SEPARATOR = "[-._ 0-9]"
_SHARDED = re.compile(r"data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")


def _patterns(form: str) -> dict[str, re.Pattern[str]]:
    return {
        split: re.compile(form.format(words="|".join(words), between=_SEPARATOR))
        for split, words in KEYWORDS.items()
    }


_IN_FOLDER = _patterns(r"(?:.*{between})?(?:{words})(?:{between}.*)?")
_IN_FILE = _patterns(r"(?:.*{between})?(?:{words}){between}.*")
_IS_FOLDER = _patterns(r"(?:{words}){between}*")
_IS_FILE = _patterns(r"(?:{words})(?:{between}|of)*(?:\.\w+)*")


def splits_of(names: Sequence[str]) -> list[str]:
    """Returns the split of each file, or "" for files without one.

    Beside a training and another split, files outside of all splits are `UNNAMED`. Without, or
    where most files are outside, only names that are nothing but a keyword count: test-drive.txt is
    no test split, and link-training.c in a program no training split.

    Args:
        names: Relative paths with slashes.
    """
    for rule in (_by_shard, _by_folder, _by_file):
        splits = [rule(name) for name in names]
        are_splits = TRAIN in splits and len({*splits, ""}) > 2
        if are_splits and 2 * splits.count("") <= len(splits):
            return [split or UNNAMED for split in splits]
    return [name.replace(TRAIN, "") for name in map(_by_exact_name, names)]


def names_split(name: str) -> bool:
    """Returns whether a folder's or a pattern's name has a keyword."""
    return bool(_first(_IN_FOLDER, name))


def _by_shard(name: str) -> str:
    match = _SHARDED.fullmatch(name)
    return match[1] if match else ""


def _by_folder(name: str) -> str:
    return _of_folders(_IN_FOLDER, name)


def _by_file(name: str) -> str:
    return _first(_IN_FILE, PurePosixPath(name).name)


def _by_exact_name(name: str) -> str:
    return _of_folders(_IS_FOLDER, name) or _first(_IS_FILE, PurePosixPath(name).name)


def _of_folders(patterns: dict[str, re.Pattern[str]], name: str) -> str:
    folders = PurePosixPath(name).parts[:-1]
    splits = {_first(patterns, folder) for folder in folders}
    return next((split for split in patterns if split in splits), "")


def _first(patterns: dict[str, re.Pattern[str]], name: str) -> str:
    return next((split for split, pattern in patterns.items() if pattern.fullmatch(name)), "")
