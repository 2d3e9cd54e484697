"""The published quality rules, each of which measures all documents of a block at once.

Words are runs without white space, lines those that aren't blank. Sources: see
`core/config/clean.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from core.config.clean import CleanConfig
from core.config.options import title_of
from core.corpus.cleaning.blocks import Block, Places, hash_words
from core.corpus.cleaning.characters import BULLET, LETTER, SENTENCE_END, SPACE
from core.corpus.cleaning.repetition import WordGrams, repeated_items

Values = npt.NDArray[np.float64]

Comparison = Callable[[Any, Any], Any]

_WORDS_OF: dict[Comparison, str] = {
    operator.lt: "below",
    operator.le: "not above",
    operator.gt: "above",
    operator.ge: "not below",
}


class Measures:
    """Values of a block's documents, each (documents,)."""

    def __init__(self, block: Block, config: CleanConfig) -> None:
        self._block = block
        self._config = config

    @cached_property
    def characters(self) -> Values:
        return self._block.lengths.astype(np.float64)

    @cached_property
    def words(self) -> Values:
        return self._block.count(self._block.words.owners).astype(np.float64)

    @cached_property
    def lines(self) -> Values:
        return self._block.count(self._block.lines.owners).astype(np.float64)

    @cached_property
    def word_characters(self) -> Values:
        words = self._block.words
        return self._block.sum(words.owners, words.lengths)

    @cached_property
    def mean_word_length(self) -> Values:
        return _ratio(self.word_characters, self.words)

    @cached_property
    def hashes_per_word(self) -> Values:
        return _ratio(self._count(np.flatnonzero(self._block.codes == ord("#"))), self.words)

    @cached_property
    def ellipses_per_word(self) -> Values:
        signs = self._count(np.flatnonzero(self._block.codes == 0x2026))
        return _ratio(signs + self._count(self._three_dots()), self.words)

    def _three_dots(self) -> Places:
        """Returns a place for each three of the full stops in a row."""
        dots = np.flatnonzero(self._block.codes == ord("."))
        run_starts = np.flatnonzero(np.diff(dots, prepend=-2) > 1)
        lengths = np.diff(np.append(run_starts, len(dots)))
        return np.repeat(dots[run_starts], lengths // 3)

    @cached_property
    def bullet_lines(self) -> Values:
        block = self._block
        is_bullet = (block.classes[block.lines.starts] & BULLET) != 0
        return _ratio(block.sum(block.lines.owners, is_bullet), self.lines)

    @cached_property
    def ellipsis_lines(self) -> Values:
        block = self._block
        return _ratio(block.sum(block.lines.owners, block.ends_in_ellipsis), self.lines)

    @cached_property
    def punctuated_lines(self) -> Values:
        block = self._block
        return _ratio(block.sum(block.lines.owners, block.ends_in_punctuation), self.lines)

    @cached_property
    def short_lines(self) -> Values:
        block = self._block
        is_short = block.lines.lengths <= self._config.fineweb_short_line_characters
        return _ratio(block.sum(block.lines.owners, is_short), self.lines)

    @cached_property
    def alphabetic_words(self) -> Values:
        words = self._block.words
        if not len(words.starts):
            return np.zeros(len(self._block))
        # A word's range ends at the next word; the white space between has no letter.
        has_letter = np.maximum.reduceat(self._block.classes & LETTER, words.starts) != 0
        return _ratio(self._block.sum(words.owners, has_letter), self.words)

    @cached_property
    def stop_words(self) -> Values:
        """Number of different stop words."""
        tokens = self._block.tokens
        wanted = self._config.gopher_stop_words.split()
        short = tokens.lengths <= max(map(len, wanted), default=0)
        owners = tokens.owners[short]
        hashes = self._block.hasher(tokens.starts[short], tokens.stops[short])
        occurs = np.zeros((len(self._block), len(wanted)), bool)
        for column, value in enumerate(hash_words(wanted) if wanted else []):
            occurs[owners[hashes == value], column] = True
        return occurs.sum(1).astype(np.float64)

    @cached_property
    def sentences(self) -> Values:
        """Sentence ends, and lines that end without one."""
        block = self._block
        marks = np.flatnonzero((block.classes & SENTENCE_END) != 0)
        after = block.classes[marks + 1]
        ends = marks[((after & SPACE) != 0) | (block.codes[marks] > 0x7F)]
        open_lines = block.lines.owners[(block.classes[block.lines.stops - 1] & SENTENCE_END) == 0]
        return (self._count(ends) + block.count(open_lines)).astype(np.float64)

    @cached_property
    def curly_brackets(self) -> Values:
        return self._count(np.flatnonzero(self._block.codes == ord("{"))).astype(np.float64)

    @cached_property
    def lorem_ipsum(self) -> Values:
        return self._count(find_all(lowered(self._block.text), "lorem ipsum")).astype(np.float64)

    @cached_property
    def lines_per_word(self) -> Values:
        # The newline that ends a document is ours.
        return _ratio(self._count(self._block.line_ends) - 1, self.words)

    @cached_property
    def duplicate_lines(self) -> Values:
        block = self._block
        return _ratio(block.sum(block.lines.owners, self._repeated_lines), self.lines)

    @cached_property
    def duplicate_line_characters(self) -> Values:
        block = self._block
        lengths = block.lines.lengths * self._repeated_lines
        return _ratio(block.sum(block.lines.owners, lengths), self.characters)

    @cached_property
    def _repeated_lines(self) -> npt.NDArray[np.bool_]:
        return repeated_items(self._block, self._block.lines)

    @cached_property
    def duplicate_paragraphs(self) -> Values:
        paragraphs = self._block.paragraphs
        count = self._block.count(paragraphs.owners)
        return _ratio(self._block.sum(paragraphs.owners, self._repeated_paragraphs), count)

    @cached_property
    def duplicate_paragraph_characters(self) -> Values:
        paragraphs = self._block.paragraphs
        lengths = paragraphs.lengths * self._repeated_paragraphs
        return _ratio(self._block.sum(paragraphs.owners, lengths), self.characters)

    @cached_property
    def _repeated_paragraphs(self) -> npt.NDArray[np.bool_]:
        return repeated_items(self._block, self._block.paragraphs)

    @cached_property
    def grams(self) -> WordGrams:
        return WordGrams(self._block)

    def _count(self, places: Places) -> Places:
        return self._block.count(self._block.owners_of(places))


def lowered(text: str) -> str:
    """Returns lower-cased text of the same length."""
    # The only character with a longer lower case.
    return text.replace("\u0130", "I").lower()


def find_all(text: str, part: str) -> Places:
    """Returns the ascending places of a part."""
    places, place = [], text.find(part)
    while place >= 0:
        places.append(place)
        place = text.find(part, place + 1)
    return np.array(places, np.int64)


def _ratio(part: npt.NDArray, whole: npt.NDArray) -> Values:
    return np.divide(part, np.maximum(whole, 1))


@dataclass(frozen=True)
class Rule:
    """Removes documents whose value compares so with the threshold.

    Attributes:
        step: Option that switches the rule's set on.
        option: Option with the threshold; True means above 0.
    """

    step: str
    option: str
    measure: Callable[[Measures], Values]
    fails: Comparison

    def threshold(self, config: CleanConfig) -> float | None:
        """Returns the threshold, None if the rule is off."""
        value = getattr(config, self.option)
        if isinstance(value, bool):
            return 0.0 if value else None
        return None if value is None else float(value)

    def describe(self, value: float, threshold: float) -> str:
        """Describes why a document fails."""
        title = title_of(self.option, CleanConfig.model_fields[self.option])
        return f"{title}: {value:.4g} is {_WORDS_OF[self.fails]} {threshold:.6g}"


def _quality(option: str, measure: str, fails: Comparison) -> Rule:
    step = option.partition("_")[0]
    return Rule(step, option, operator.attrgetter(measure), fails)


def _repetition(option: str, measure: Callable[[Measures], Values]) -> Rule:
    return Rule("gopher_repetition", option, measure, operator.gt)


def _top(n: int) -> Rule:
    return _repetition(f"gopher_max_top_{n}_gram", lambda values: values.grams.top_shares(n))


def _repeated(n: int) -> Rule:
    option = f"gopher_max_duplicate_{n}_gram"
    return _repetition(option, lambda values: values.grams.repeated_shares(n))


GOPHER_RULES = (
    _quality("gopher_min_words", "words", operator.lt),
    _quality("gopher_max_words", "words", operator.gt),
    _quality("gopher_min_word_length", "mean_word_length", operator.lt),
    _quality("gopher_max_word_length", "mean_word_length", operator.gt),
    _quality("gopher_max_hashes", "hashes_per_word", operator.gt),
    _quality("gopher_max_ellipses", "ellipses_per_word", operator.gt),
    _quality("gopher_max_bullet_lines", "bullet_lines", operator.gt),
    _quality("gopher_max_ellipsis_lines", "ellipsis_lines", operator.gt),
    _quality("gopher_min_alphabetic_words", "alphabetic_words", operator.lt),
    _quality("gopher_min_stop_words", "stop_words", operator.lt),
)
REPETITION_RULES = (
    *(
        _repetition(f"gopher_max_{measure}", operator.attrgetter(measure))
        for measure in (
            "duplicate_lines",
            "duplicate_paragraphs",
            "duplicate_line_characters",
            "duplicate_paragraph_characters",
        )
    ),
    *map(_top, (2, 3, 4)),
    *map(_repeated, (5, 6, 7, 8, 9, 10)),
)
C4_RULES = (
    _quality("c4_lorem_ipsum", "lorem_ipsum", operator.gt),
    _quality("c4_curly_brackets", "curly_brackets", operator.gt),
    _quality("c4_min_sentences", "sentences", operator.lt),
)
FINEWEB_RULES = (
    _quality("fineweb_min_punctuated_lines", "punctuated_lines", operator.le),
    _quality("fineweb_max_short_lines", "short_lines", operator.ge),
    _quality("fineweb_max_duplicate_line_characters", "duplicate_line_characters", operator.ge),
    _quality("fineweb_max_lines_per_word", "lines_per_word", operator.gt),
)
RULES = (*GOPHER_RULES, *REPETITION_RULES, *C4_RULES, *FINEWEB_RULES)


def rules_in_use(rules: Sequence[Rule], config: CleanConfig) -> Iterator[tuple[Rule, float]]:
    """Yields the rules that are switched on, with thresholds."""
    for rule in rules:
        threshold = rule.threshold(config)
        if threshold is not None and getattr(config, rule.step):
            yield rule, threshold


@dataclass(frozen=True)
class Failure:
    """The first rule that a document fails."""

    rule: Rule
    value: float
    threshold: float

    def describe(self) -> str:
        return self.rule.describe(self.value, self.threshold)


def judge(block: Block, rules: Sequence[Rule], config: CleanConfig) -> list[Failure | None]:
    """Returns each document's first failure."""
    failures: list[Failure | None] = [None] * len(block)
    measures = Measures(block, config)
    for rule, threshold in rules_in_use(rules, config):
        values = rule.measure(measures)
        for number in np.flatnonzero(rule.fails(values, threshold)).tolist():
            failures[number] = failures[number] or Failure(rule, float(values[number]), threshold)
    return failures
