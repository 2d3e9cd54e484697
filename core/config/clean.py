"""Options of cleaning a corpus.

Sources of the published rules: Gopher, https://arxiv.org/abs/2112.11446, appendix A.1.1; C4,
https://jmlr.org/papers/v21/20-074.html, section 2.2; FineWeb, https://arxiv.org/abs/2406.17557,
section 3.6.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import option
from core.config.workers import (
    cluster_option,
    part_mb_option,
    skip_failing_parts_option,
    workers_option,
)
from core.errors import ConfigError

_NAMES_PATTERN_HELP = "separated by commas"
_OFF = "Empty: no limit."


def _threshold(
    default: float | None,
    help: str,
    title: str,
    group: str,
    slider: tuple[float, float, float],
    **bounds: Any,
) -> Any:
    """Declares a limit of published rules, which their switch shows."""
    return option(
        default, help, title=title, group=group, basic=True, details=_OFF, slider=slider,
        needs=group.lower().replace(" ", "_"), **bounds,
    )  # fmt: skip


def _share(default: float, help: str, title: str, group: str) -> Any:
    return _threshold(default, help, title, group, (0, 1, 0.01), ge=0, le=1)


def _repetition(default: float, help: str, title: str) -> Any:
    return _share(default, help, title, "Gopher repetition")


class CleanConfig(StageConfig):
    """Options for cleaning a corpus, each step of which can be switched on separately."""

    name: str = option("", "Empty: named by its source.", basic=True, identity=False)
    corpus: CorpusConfig = option(CorpusConfig(), "Text to clean.")
    against: str = option(
        "",
        f"Cleaned corpora whose documents are not repeated, {_NAMES_PATTERN_HELP}.",
        title="Other corpora",
        group="Duplicates",
        artifacts="corpus",
        details="Names in the workspace.",
    )
    workers: int | None = workers_option()
    cluster: str = cluster_option()
    part_mb: float = part_mb_option()
    skip_failing_parts: bool = skip_failing_parts_option()
    unicode_form: Literal["none", "nfc", "nfkc"] = option(
        "nfc",
        "Normal form of the characters.",
        title="Unicode normalisation",
        group="Text",
        basic=True,
        options={
            "none": ("None", ""),
            "nfc": ("NFC", "composes accents and letters"),
            "nfkc": ("NFKC", "also replaces ligatures and full-width letters"),
        },
    )
    fix_encoding: bool = option(
        True,
        "Repair text that was decoded with a wrong encoding (ftfy).",
        title="Repair encoding",
        group="Text",
        basic=True,
        details="Also decodes HTML entities and removes control characters.",
    )
    replace_emails: bool = option(
        False, "Replace e-mail addresses by name@example.com.", title="E-mail addresses",
        group="Personal data", basic=True,
    )  # fmt: skip
    replace_phones: bool = option(
        False, "Replace phone numbers by 555-0100.", title="Phone numbers",
        group="Personal data", basic=True,
    )  # fmt: skip
    replace_ip_addresses: bool = option(
        False, "Replace public IP addresses by 192.0.2.1 or 2001:db8::1.", title="IP addresses",
        group="Personal data", basic=True,
    )  # fmt: skip
    exact_duplicates: bool = option(
        True, "Keep the first of equal documents.", group="Duplicates", basic=True
    )
    near_duplicates: bool = option(
        True,
        "Keep the first of documents with mostly the same words (MinHash).",
        group="Duplicates",
        basic=True,
        details="Held-out documents count as first, so their copies leave the training documents. "
        "Two documents with the share s of word windows in common are found with probability "
        "1 - (1 - s^rows)^bands: 77 % for 0.75, 99.9 % for 0.9.",
    )
    minhash_bands: int = option(14, "Bands of hashes; more find less similar documents.",
                                title="Bands", group="Duplicates", slider=(1, 64, 1),
 needs="near_duplicates", ge=1, le=64)  # fmt: skip
    minhash_rows: int = option(8, "Hashes in a band; more require more similar documents.",
                               title="Rows per band", group="Duplicates", slider=(1, 32, 1),
 needs="near_duplicates", ge=1, le=32)  # fmt: skip
    shingle_words: int = option(
        5, "Words in a window that is compared.", title="Window words", group="Duplicates",
        slider=(2, 50, 1), needs="near_duplicates", ge=2, le=50,
    )  # fmt: skip
    boilerplate_lines: bool = option(
        False, "Remove lines that occur in many documents.", group="Duplicates", basic=True
    )
    boilerplate_min_documents: int = option(
        10, "Fewest documents with such a line.", title="Documents with the line",
        group="Duplicates", basic=True, slider=(2, 100, 1), needs="boilerplate_lines", ge=2,
    )  # fmt: skip
    boilerplate_min_percent: float = option(
        0.1, "Smallest percentage of documents with such a line.",
        title="Percentage with the line", group="Duplicates", basic=True, slider=(0, 10, 0.1),
        needs="boilerplate_lines", ge=0, le=100,
    )  # fmt: skip
    min_characters: int | None = option(
        None,
        "Shortest document, in characters.",
        group="Documents",
        basic=True,
        slider=(1, 5000, 1),
        ge=1,
    )
    max_characters: int | None = option(
        None,
        "Longest document, in characters.",
        group="Documents",
        basic=True,
        slider=(1000, 1_000_000, 1000),
        ge=1,
    )
    languages: str = option(
        "",
        "Codes of the languages to keep, such as en, or ko, no; empty means all.",
        group="Documents",
        basic=True,
        details="py3langid identifies them offline from the first 2,000 characters.",
    )
    min_language_probability: float = option(
        0.2, "Lowest probability of the language.", title="Language probability",
        group="Documents", slider=(0, 1, 0.01), ge=0, le=1,
    )  # fmt: skip
    gopher: bool = option(
        False,
        "Remove documents by Gopher's quality rules.",
        title="Gopher quality rules",
        group="Quality rules",
        basic=True,
        details="Made for web pages in English: many short documents don't pass.",
    )
    gopher_min_words: int | None = _threshold(
        50, "Fewest words.", "Minimum words", "Gopher", (1, 500, 1), ge=1
    )
    gopher_max_words: int | None = _threshold(
        100_000, "Most words.", "Maximum words", "Gopher", (1000, 200_000, 1000), ge=1
    )
    gopher_min_word_length: float | None = _threshold(
        3.0, "Shortest mean word, in characters.", "Minimum word length", "Gopher", (0, 10, 0.1),
        ge=0,
    )  # fmt: skip
    gopher_max_word_length: float | None = _threshold(
        10.0, "Longest mean word, in characters.", "Maximum word length", "Gopher", (3, 30, 0.1),
        ge=0,
    )  # fmt: skip
    gopher_max_hashes: float | None = _share(0.1, "Most # signs per word.", "Hash signs", "Gopher")
    gopher_max_ellipses: float | None = _share(0.1, "Most ellipses per word.", "Ellipses", "Gopher")
    gopher_max_bullet_lines: float | None = _share(
        0.9, "Largest share of lines that begin with a bullet.", "Bullet lines", "Gopher"
    )
    gopher_max_ellipsis_lines: float | None = _share(
        0.3, "Largest share of lines that end in an ellipsis.", "Ellipsis lines", "Gopher"
    )
    gopher_min_alphabetic_words: float | None = _share(
        0.8, "Smallest share of words with a letter.", "Alphabetic words", "Gopher"
    )
    gopher_min_stop_words: int | None = _threshold(
        2, "Fewest different stop words.", "Minimum stop words", "Gopher", (1, 8, 1), ge=1
    )
    gopher_stop_words: str = option(
        "the be to of and that have with",
        "Stop words, in lower case; other languages need others.",
        title="Stop words",
        group="Gopher",
        basic=True,
        needs="gopher",
    )
    gopher_repetition: bool = option(
        False,
        "Remove documents by Gopher's repetition rules.",
        title="Gopher repetition rules",
        group="Quality rules",
        basic=True,
    )
    gopher_max_duplicate_lines: float | None = _repetition(
        0.30, "Largest share of repeated lines.", "Repeated lines"
    )
    gopher_max_duplicate_paragraphs: float | None = _repetition(
        0.30, "Largest share of repeated paragraphs.", "Repeated paragraphs"
    )
    gopher_max_duplicate_line_characters: float | None = _repetition(
        0.20, "Largest share of characters in repeated lines.", "Characters in repeated lines"
    )
    gopher_max_duplicate_paragraph_characters: float | None = _repetition(
        0.20, "Largest share of characters in repeated paragraphs.",
        "Characters in repeated paragraphs",
    )  # fmt: skip
    gopher_max_top_2_gram: float | None = _repetition(
        0.20, "Largest share of characters in the most frequent 2-gram.", "Top 2-gram"
    )
    gopher_max_top_3_gram: float | None = _repetition(
        0.18, "Largest share of characters in the most frequent 3-gram.", "Top 3-gram"
    )
    gopher_max_top_4_gram: float | None = _repetition(
        0.16, "Largest share of characters in the most frequent 4-gram.", "Top 4-gram"
    )
    gopher_max_duplicate_5_gram: float | None = _repetition(
        0.15, "Largest share of characters in repeated 5-grams.", "Repeated 5-grams"
    )
    gopher_max_duplicate_6_gram: float | None = _repetition(
        0.14, "Largest share of characters in repeated 6-grams.", "Repeated 6-grams"
    )
    gopher_max_duplicate_7_gram: float | None = _repetition(
        0.13, "Largest share of characters in repeated 7-grams.", "Repeated 7-grams"
    )
    gopher_max_duplicate_8_gram: float | None = _repetition(
        0.12, "Largest share of characters in repeated 8-grams.", "Repeated 8-grams"
    )
    gopher_max_duplicate_9_gram: float | None = _repetition(
        0.11, "Largest share of characters in repeated 9-grams.", "Repeated 9-grams"
    )
    gopher_max_duplicate_10_gram: float | None = _repetition(
        0.10, "Largest share of characters in repeated 10-grams.", "Repeated 10-grams"
    )
    c4: bool = option(
        False,
        "Remove lines and documents by C4's rules.",
        title="C4 rules",
        group="Quality rules",
        basic=True,
        details="Removes citation marks, lines about JavaScript or cookies, and lines by the "
        "limits below.",
    )
    c4_end_punctuation: bool = option(
        True, "Remove lines without a final punctuation mark.", title="Final punctuation",
        group="C4", basic=True, needs="c4",
    )  # fmt: skip
    c4_min_line_words: int | None = _threshold(
        5, "Fewest words in a line.", "Words in a line", "C4", (1, 30, 1), ge=1
    )
    c4_max_word_length: int | None = _threshold(
        1000, "Longest word in a line, in characters.", "Longest word", "C4", (10, 2000, 10), ge=1
    )
    c4_min_sentences: int | None = _threshold(
        3, "Fewest sentences.", "Minimum sentences", "C4", (1, 20, 1), ge=1
    )
    c4_lorem_ipsum: bool = option(
        True,
        "Remove documents with lorem ipsum.",
        title="Lorem ipsum",
        group="C4",
        basic=True,
        needs="c4",
    )
    c4_curly_brackets: bool = option(
        True,
        "Remove documents with a curly bracket.",
        title="Curly brackets",
        group="C4",
        basic=True,
        needs="c4",
    )
    fineweb: bool = option(
        False,
        "Remove documents by FineWeb's rules.",
        title="FineWeb rules",
        group="Quality rules",
        basic=True,
    )
    fineweb_min_punctuated_lines: float | None = _share(
        0.12, "Documents with at most this share of lines that end in punctuation are removed.",
        "Punctuated lines", "FineWeb",
    )  # fmt: skip
    fineweb_max_short_lines: float | None = _share(
        0.67, "Documents with at least this share of short lines are removed.", "Short lines",
        "FineWeb",
    )  # fmt: skip
    fineweb_short_line_characters: int = option(
        30, "Longest short line, in characters.", title="Short line", group="FineWeb", basic=True,
        slider=(1, 200, 1), needs="fineweb", ge=1,
    )  # fmt: skip
    fineweb_max_duplicate_line_characters: float | None = option(
        0.1,
        "Documents with at least this share of characters in repeated lines are removed.",
        title="Repeated characters",
        group="FineWeb",
        details="The paper says 0.1; the code that it publishes has 0.01. Empty: no limit.",
        basic=True,
        slider=(0, 1, 0.01),
        needs="fineweb",
        ge=0,
        le=1,
    )
    fineweb_max_lines_per_word: float | None = option(
        0.3,
        "Most line ends per word.",
        title="Lines per word",
        group="FineWeb",
        details="Only in the published code. Empty: no limit.",
        basic=True,
        slider=(0, 2, 0.01),
        needs="fineweb",
        ge=0,
    )

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        shortest, longest = self.min_characters, self.max_characters
        if shortest is not None and longest is not None and shortest > longest:
            raise ConfigError(
                "No document has these lengths",
                expected="⟬min_characters⟭ of at most ⟬max_characters⟭",
                received=f"⟬min_characters={shortest}⟭, ⟬max_characters={longest}⟭",
                fix="lower ⟬min_characters⟭, or raise ⟬max_characters⟭",
                field="min_characters",
            )
        return self
