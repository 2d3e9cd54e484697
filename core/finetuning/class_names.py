"""Names of classes that a dataset stores as numbers, as `ClassLabel` of Hugging Face's datasets.

Source: https://huggingface.co/docs/datasets/about_dataset_features#classlabel
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import CorpusError
from core.finetuning.labels import LONGEST_LABEL, MOST_LABELS
from core.foreign_files import parse_json
from core.messages.values import shown

# The names of each column whose values are numbers of classes, or lists of them; unchecked.
ClassNames = Mapping[str, Any]

# Stands for the class -1, which means that there is no label.
NO_LABEL: Any = object()
_KEY = b"huggingface"
_MOST_BYTES = 8 << 20
_LISTS = ("List", "LargeList", "Sequence")


def class_names_in(metadata: Mapping[bytes, bytes], where: str) -> ClassNames:
    """Reads the names of classes from the metadata of a Parquet file's Arrow schema.

    Args:
        metadata: Untrusted.
        where: Names the file in errors.

    Raises:
        CorpusError: The metadata are too large or malformed.
    """
    data = metadata.get(_KEY)
    if data is None:
        return {}
    if len(data) > _MOST_BYTES:
        raise _malformed(where, f"{len(data):,} bytes")
    try:
        values = parse_json(data)
    except ValueError as error:
        raise _malformed(where, str(error)) from error
    info = values.get("info") if isinstance(values, dict) else None
    features = info.get("features") if isinstance(info, dict) else None
    if features is None:
        return {}
    if not isinstance(features, dict):
        raise _malformed(where, shown(features))
    return {
        column: inner.get("names")
        for column, feature in features.items()
        if (inner := _inner(feature)).get("_type") == "ClassLabel"
    }


def names_of_column(class_names: ClassNames, column: str, place: str) -> tuple[str, ...]:
    """Returns a column's names of classes, () if it has none.

    Raises:
        CorpusError: The names aren't short and different.
    """
    if column not in class_names:
        return ()
    names = class_names[column]
    if not _are_names(names):
        raise _malformed(place, f"{shown(names)} in the column {shown(column)}")
    return tuple(names)


def named(value: Any, names: Sequence[str], place: str, column: str) -> Any:
    """Returns the name of a class, NO_LABEL for -1, and values other than whole numbers as is.

    Raises:
        CorpusError: No class has this number.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if value == -1:
        return NO_LABEL
    if not 0 <= value < len(names):
        raise CorpusError(
            f"{place} has a class in the column {column!r} that has no name",
            expected=f"a number from 0 to {len(names) - 1:,}, or -1 for no label",
            received=shown(value),
            fix="correct the row, or export the dataset again with the names of all classes",
            field="label_column",
        )
    return names[value]


def _inner(feature: Any) -> Mapping[str, Any]:
    """Returns the feature of a value, or of a list's values; the oldest lists are JSON lists."""
    if isinstance(feature, list) and len(feature) == 1:
        (feature,) = feature
    elif isinstance(feature, dict) and feature.get("_type") in _LISTS:
        feature = feature.get("feature")
    return feature if isinstance(feature, dict) else {}


def _are_names(names: Any) -> bool:
    return (
        isinstance(names, list | tuple)
        and 1 <= len(names) <= MOST_LABELS
        and all(isinstance(name, str) and 1 <= len(name) <= LONGEST_LABEL for name in names)
        and len(set(names)) == len(names)
    )


def _malformed(where: str, received: str) -> CorpusError:
    return CorpusError(
        f"{where} has class names that can't be read",
        expected=f"at most {MOST_LABELS:,} different names of 1 to {LONGEST_LABEL} characters per "
        "column, as the datasets library writes them",
        received=received,
        fix="export the dataset again, with classes as text",
        field="label_column",
    )
