"""The steps of cleaning that look at one part of a corpus at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from core.config.clean import CleanConfig
from core.corpus.cleaning.blocks import Block, Flags, Hashes, block_ranges
from core.corpus.cleaning.language import chosen_languages, identify_language
from core.corpus.cleaning.lines import c4_lines, remove_citations, repeated_lines, without_lines
from core.corpus.cleaning.minhash import NO_KEY, band_keys
from core.corpus.cleaning.parts import Batch
from core.corpus.cleaning.personal import replace_emails, replace_ip_addresses, replace_phones
from core.corpus.cleaning.repair import fix_encoding, normalize
from core.corpus.cleaning.report import LENGTH, Tally
from core.corpus.cleaning.rules import (
    C4_RULES,
    FINEWEB_RULES,
    GOPHER_RULES,
    REPETITION_RULES,
    Rule,
    judge,
)
from core.corpus.folding import fold
from core.corpus.holdout import document_hash

_REPLACEMENTS = {
    "replace_emails": replace_emails,
    "replace_phones": replace_phones,
    "replace_ip_addresses": replace_ip_addresses,
}


def normalize_texts(batch: Batch, config: CleanConfig, tally: Tally) -> Batch:
    """Repairs and normalises characters."""
    if batch.is_reference:
        return batch
    if config.fix_encoding:
        batch = _mapped(batch, fix_encoding, "fix_encoding", tally)
    return _mapped(batch, lambda text: normalize(text, config), "unicode_form", tally)


def text_keys(texts: Sequence[str]) -> Hashes:
    """Hashes whole documents; none is 0."""
    hashes = (document_hash(text.encode()) or 1 for text in texts)
    return np.fromiter(hashes, np.uint64, len(texts))


def near_keys(texts: Sequence[str], config: CleanConfig) -> Hashes:
    """Returns keys of near duplicates, (bands + 1, documents); the last is of the whole text."""
    bands = band_keys(
        map(fold, texts), len(texts), bands=config.minhash_bands,
        rows=config.minhash_rows, words=config.shingle_words,
    )  # fmt: skip
    whole = text_keys(texts)
    for place in np.flatnonzero(bands[0] == NO_KEY).tolist():
        words = fold(texts[place]).lower().split()
        whole[place] = document_hash(b" ".join(words)) or 1
    return np.concatenate([bands, whole[None]])


def filter_texts(batch: Batch, config: CleanConfig, frequent: Hashes, tally: Tally) -> Batch:
    """Applies the steps between the two searches for duplicates.

    Args:
        frequent: Ascending hashes of boilerplate lines.
    """
    if batch.is_reference:
        return batch
    batch = _without_boilerplate(batch, frequent, tally)
    batch = _judged(batch, [*GOPHER_RULES, *REPETITION_RULES], config, tally)
    batch = _with_c4_lines(batch, config, tally)
    batch = _judged(batch, [*C4_RULES, *FINEWEB_RULES], config, tally)
    batch = _of_length(batch, config, tally)
    batch = _in_languages(batch, config, tally)
    for step, replace in _REPLACEMENTS.items():
        if getattr(config, step):
            batch = _replaced(batch, replace, step, tally)
    return batch


def _mapped(batch: Batch, change: Callable[[str], str], step: str, tally: Tally) -> Batch:
    return _replaced(batch, lambda text: (change(text), 1), step, tally)


def _replaced(
    batch: Batch, replace: Callable[[str], tuple[str, int]], step: str, tally: Tally
) -> Batch:
    return _replaced_by(batch, [replace(text) for text in batch.texts], step, tally)


def _replaced_by(
    batch: Batch, replaced: Sequence[tuple[str, int]], step: str, tally: Tally
) -> Batch:
    """Replaces texts by others, given with the number of changed places."""
    for number, before, (after, items) in zip(batch.numbers, batch.texts, replaced, strict=True):
        if after != before:
            tally.change(step, int(number), before, after, items)
    return _not_blank(batch, [after for after, _ in replaced], step, tally)


def _not_blank(batch: Batch, texts: Sequence[str], step: str, tally: Tally) -> Batch:
    """Removes documents of which nothing is left."""
    keep = np.fromiter((bool(text) and not text.isspace() for text in texts), bool, len(texts))
    for place in np.flatnonzero(~keep).tolist():
        number, before = int(batch.numbers[place]), batch.texts[place]
        tally.remove(step, "blank", number, before, "Nothing is left of the document")
    changed = batch.with_texts(texts)
    return changed if keep.all() else changed.take(keep)


def _blocks(batch: Batch) -> Iterator[tuple[slice, Block]]:
    for chosen in block_ranges(batch.texts):
        yield chosen, Block(batch.texts[chosen])


def _without_boilerplate(batch: Batch, frequent: Hashes, tally: Tally) -> Batch:
    if not len(frequent):
        return batch
    replaced = _without_lines(
        batch, lambda block: repeated_lines(block, frequent), keeps_blank=True
    )
    return _replaced_by(batch, replaced, "boilerplate_lines", tally)


def _with_c4_lines(batch: Batch, config: CleanConfig, tally: Tally) -> Batch:
    if not config.c4:
        return batch
    cited = batch.with_texts([remove_citations(text) for text in batch.texts])
    replaced = _without_lines(cited, lambda block: c4_lines(block, config), keeps_blank=False)
    return _replaced_by(batch, replaced, "c4", tally)


def _without_lines(
    batch: Batch, choose: Callable[[Block], Flags], *, keeps_blank: bool
) -> list[tuple[str, int]]:
    """Returns each document without the chosen lines, and their number."""
    replaced = [(text, 0) for text in batch.texts]
    for chosen, block in _blocks(batch):
        changed = without_lines(block, choose(block), keeps_blank=keeps_blank)
        for place, pair in changed.items():
            replaced[chosen.start + place] = pair
    return replaced


def _judged(batch: Batch, rules: Sequence[Rule], config: CleanConfig, tally: Tally) -> Batch:
    if not any(getattr(config, rule.step) for rule in rules):
        return batch
    keep = np.ones(len(batch), bool)
    for chosen, block in _blocks(batch):
        for place, failure in enumerate(judge(block, rules, config), chosen.start):
            if failure:
                keep[place] = False
                tally.remove(
                    failure.rule.step, failure.rule.option, int(batch.numbers[place]),
                    batch.texts[place], failure.describe(),
                )  # fmt: skip
    return batch.take(keep)


def _of_length(batch: Batch, config: CleanConfig, tally: Tally) -> Batch:
    def find(text: str) -> tuple[str, str]:
        length, least, most = len(text), config.min_characters, config.max_characters
        if least is not None and length < least:
            return "min_characters", f"{length:,} characters, fewer than {least:,}"
        if most is not None and length > most:
            return "max_characters", f"{length:,} characters, more than {most:,}"
        return "", ""

    if config.min_characters is config.max_characters is None:
        return batch
    return _removed(batch, find, LENGTH, tally)


def _in_languages(batch: Batch, config: CleanConfig, tally: Tally) -> Batch:
    languages = chosen_languages(config)

    def find(text: str) -> tuple[str, str]:
        language, probability = identify_language(text)
        if language not in languages:
            return language, f"Language {language} with probability {probability:.2f}"
        if probability < config.min_language_probability:
            return "min_language_probability", f"Language {language}, only {probability:.2f}"
        return "", ""

    return _removed(batch, find, "languages", tally) if languages else batch


def _removed(
    batch: Batch, find: Callable[[str], tuple[str, str]], step: str, tally: Tally
) -> Batch:
    keep = np.ones(len(batch), bool)
    for place, text in enumerate(batch.texts):
        rule, explanation = find(text)
        if rule:
            keep[place] = False
            tally.remove(step, rule, int(batch.numbers[place]), text, explanation)
    return batch.take(keep)
