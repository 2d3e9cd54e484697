"""Finds the columns of a table with texts and labels."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import ConfigError

TEXTS = ("text", "sentence", "document", "review", "content", "comment")
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
    ("question", "sentence"), ("text1", "text2"), ("text", "text_pair"),
)  # fmt: skip
LABELS = ("label", "labels", "class", "target", "score", "sentiment")
WORDS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "pos_tags", "upos", "labels", "label")


def find_text_columns(columns: Sequence[str], text: str, pair: str) -> tuple[str, ...]:
    """Returns the column of the text, or the two of a pair, as named or by their usual names.

    Raises:
        ConfigError: There is no such column.
    """
    if text:
        return tuple(
            _named(columns, name, option)
            for name, option in ((text, "text_column"), (pair, "text_pair_column"))
            if name
        )
    if pair:
        raise _unclear(columns, "text_column", "the first text of the pair", TEXTS)
    for names in PAIRS:
        pair_columns = _like(names, columns)
        if len(pair_columns) == len(names):
            return tuple(pair_columns)
    return (_usual(columns, TEXTS, "text_column", "the text"),)


def find_label_column(columns: Sequence[str], wanted: str, usual: Sequence[str] = LABELS) -> str:
    """Returns the column of the label, as named or by its usual name; raises ConfigError."""
    if wanted:
        return _named(columns, wanted, "label_column")
    return _usual(columns, usual, "label_column", "the label")


def find_words_column(columns: Sequence[str], wanted: str) -> str:
    """Returns the column with lists of words; raises ConfigError."""
    if wanted:
        return _named(columns, wanted, "text_column")
    return _usual(columns, WORDS, "text_column", "the list of words")


def check_different(texts: Sequence[str], label: str) -> None:
    """Raises ConfigError if a text is read from the label's column, or both texts from one."""
    for name, option in zip(texts, ("text_column", "text_pair_column"), strict=False):
        if name == label:
            raise ConfigError(
                f"⟬{option}⟭ and ⟬label_column⟭ are the same column, so the model would read the "
                "label",
                expected="different columns",
                received=f"{name!r} for both",
                fix=f"set ⟬{option}⟭ or ⟬label_column⟭ to another column",
                field=option,
            )
    if len(set(texts)) < len(texts):
        raise ConfigError(
            "⟬text_column⟭ and ⟬text_pair_column⟭ are the same column",
            expected="different columns",
            received=f"{texts[0]!r} for both",
            fix="set ⟬text_pair_column⟭ to the column with the second text, or leave it empty",
            field="text_pair_column",
        )


def _named(columns: Sequence[str], name: str, option: str) -> str:
    if name in columns:
        return name
    raise ConfigError(
        f"The examples have no column {name!r}",
        expected="one of the columns " + (", ".join(columns[:20]) or "(none)"),
        received=name,
        fix=f"set ⟬{option}⟭ to an existing column",
        field=option,
    )


def _usual(columns: Sequence[str], usual: Sequence[str], option: str, what: str) -> str:
    usual_columns = _like(usual, columns)
    if len(usual_columns) == 1 or (usual_columns and usual_columns[0].casefold() == usual[0]):
        return usual_columns[0]
    raise _unclear(columns, option, what, usual)


def _like(names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Returns the columns with some names, in the names' order; a differing case is no matter."""
    by_name = {column.casefold(): column for column in columns}
    return [
        name if name in columns else by_name[name]
        for name in names
        if name in columns or name in by_name
    ]


def _unclear(columns: Sequence[str], option: str, what: str, usual: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"It is unclear which column has {what}",
        expected=f"exactly one column named {', '.join(usual)}",
        received="the columns " + (", ".join(columns[:20]) or "(none)"),
        fix=f"set ⟬{option}⟭ to the right column",
        field=option,
    )
