"""A quick look at a text: its size, language and script, and what is odd about it."""

from __future__ import annotations

import math
import random
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.config.corpus import CorpusConfig
from core.corpus.cleaning.language import identify_language
from core.corpus.languages import name_of_language
from core.corpus.sampling import Limits, SourceSample, sample_corpus
from core.corpus.scripts import SYMBOLS, WITHOUT_SPACES, count_scripts
from core.corpus.stretches import DOCUMENT_END
from core.messages.values import byte_count
from core.workspace.workspace import Workspace

_LIMITS = Limits(bytes=2 << 20, seconds=5.0, documents=20_000)
_PASSAGE, _PASSAGES = 1000, 60
_TAG = re.compile(r"</[A-Za-z][\w:-]{0,30}>|<(?:br|p|div|a|img|span|td|tr|li)\b[^<>\n]{0,200}>")
_MUCH_MARKUP = 0.1
# Share of documents that are copies of others.
_MANY_COPIES = 0.1
_ANOTHER_LANGUAGE = 0.2
_MANY_DAMAGED = 0.01
# Least score of a passage's language: programs and tables have one by chance.
_SURE = 0.5
# Text of any language compresses better; random letters don't.
_RANDOM_RATIO = 0.97
_COMPRESSED = 1 << 16
_FEWEST_COMPARED = 200
# Bits per letter; languages have more, DNA has 2.
_LEAST_ENTROPY = 3.0


@dataclass(frozen=True)
class CorpusLook:
    """Figures of a text; those of a large one are estimates from a sample.

    Attributes:
        total_bytes: UTF-8 text; None: unknown.
        documents, letters: None: unknown. Letters are characters but white space.
        words: None: unknown, or the script has no spaces between words.
        alphabet: Different characters.
        language: English name of the main language; empty: none was recognised.
        script: Main writing system.
        distinct_share: Share of the text that stays without documents that are equal to others.
        remarks: Oddities of the text, as sentences.
        is_random: Whether letters don't follow from those before them.
        damaged_share: Share of the documents with characters that the encoding doesn't have.
    """

    total_bytes: int | None
    documents: int | None
    words: int | None
    letters: int | None
    alphabet: int
    language: str
    script: str
    distinct_share: float
    remarks: tuple[str, ...]
    is_random: bool = False
    damaged_share: float = 0.0

    @property
    def amount(self) -> tuple[int, str] | None:
        """How many words the text has, or letters if these are unknown; None: unknown."""
        if self.words is not None:
            return self.words, "words"
        return None if self.letters is None else (self.letters, "letters")


def look_at(config: CorpusConfig, workspace: Workspace) -> CorpusLook:
    """Reads a bounded sample of a text.

    Raises:
        ConfigError, CorpusError: There is no readable text.
    """
    samples = sample_corpus(config, workspace, _LIMITS)
    texts = [text for sample in samples for text in sample.texts]
    sizes = [sum(len(text.encode()) for text in sample.texts) for sample in samples]
    shares = [sample.share for sample in samples]
    total = None
    if all(shares):
        total = round(sum(size / (share or 1) for size, share in zip(sizes, shares, strict=True)))
    scale = None if total is None else total / max(1, sum(sizes))
    letters = Counter("".join(texts))
    for space in [letter for letter in letters if letter.isspace()]:
        del letters[space]
    is_random = _is_random(texts, letters)
    distinct = set(texts)
    copies = 1 - len(distinct) / len(texts)
    damaged = sum("\ufffd" in text for text in texts) / len(texts)
    is_language = not is_random and _entropy(letters) >= _LEAST_ENTROPY
    languages = _languages(texts) if is_language else []
    scripts = [script.name for script in count_scripts(texts) if script.name != SYMBOLS]
    script = scripts[0] if scripts else ""
    words = None if script in WITHOUT_SPACES else sum(len(text.split()) for text in texts)
    return CorpusLook(
        total_bytes=total,
        documents=_scaled(len(texts), scale),
        words=_scaled(words, scale),
        letters=_scaled(letters.total(), scale),
        alphabet=len(letters),
        language=languages[0][0] if languages else "",
        script=script,
        distinct_share=sum(map(len, distinct)) / max(1, sum(map(len, texts))),
        remarks=(
            *_remarks_on_files(samples),
            *_remarks(texts, copies, damaged, languages, is_random),
        ),
        is_random=is_random,
        damaged_share=damaged,
    )


def _scaled(count: int | None, scale: float | None) -> int | None:
    return None if scale is None or count is None else round(count * scale)


def _languages(texts: Sequence[str]) -> list[tuple[str, float]]:
    """Returns the languages and their shares of passages from all over, the main one first."""
    text = "\n".join(texts)
    step = max(_PASSAGE, len(text) // _PASSAGES)
    passages = [text[start : start + _PASSAGE] for start in range(0, len(text), step)]
    languages = [identify_language(passage) for passage in passages]
    names = Counter(name_of_language(code) for code, score in languages if score >= _SURE)
    del names[""]
    return [(name, count / len(passages)) for name, count in names.most_common()]


def _remarks_on_files(samples: Sequence[SourceSample]) -> list[str]:
    names = sorted({name for sample in samples for name in sample.encodings} - {"utf-8"})
    shown = " and ".join(name.upper() for name in names)
    remarks = [f"It is read as {shown}; check that the letters look right"] if names else []
    for sample in samples:
        if sample.unread and sample.unread_bytes > sample.total_bytes:
            suffix = Path(sample.unread).suffix
            remarks.append(
                f"{byte_count(sample.unread_bytes)} of other text in the folder, such as "
                f"{sample.unread}, isn't read; the pattern **/*{suffix} after the folder's name "
                "reads only that"
            )
    return remarks


def _remarks(
    texts: Sequence[str],
    copies: float,
    damaged: float,
    languages: Sequence[tuple[str, float]],
    is_random: bool,
) -> list[str]:
    remarks = []
    if is_random:
        remarks.append("Little about a letter follows from those before it")
    if copies >= _MANY_COPIES:
        remarks.append(f"{copies:.0%} of the documents are copies of others, and are left out")
    several = [(name, share) for name, share in languages if share >= _ANOTHER_LANGUAGE]
    if len(several) > 1:
        shown = ", ".join(f"{share:.0%} {name}" for name, share in several)
        remarks.append(f"It is in several languages: {shown}")
    if sum(DOCUMENT_END in text for text in texts) >= max(1, _MANY_DAMAGED * len(texts)):
        remarks.append(
            f"It has marks {DOCUMENT_END}: with the document “Up to a mark” (--text-unit mark), "
            "documents end there"
        )
    if damaged >= _MANY_DAMAGED:
        remarks.append(
            f"{damaged:.0%} of the documents have undecodable characters; another "
            "character encoding (--encoding) may fit"
        )
    marked_up = sum(bool(_TAG.search(text)) for text in texts)
    if marked_up >= _MUCH_MARKUP * len(texts):
        remarks.append(
            f"{marked_up / len(texts):.0%} of the documents hold HTML or XML tags, which a model "
            "learns like words"
        )
    return remarks


def _entropy(letters: Counter[str]) -> float:
    """Returns the entropy of a letter, in bits."""
    shares = [count / letters.total() for count in letters.values()]
    return -sum(share * math.log2(share) for share in shares)


def _is_random(texts: Sequence[str], letters: Counter[str]) -> bool:
    """Compares the compressed size with that of letters in a random order."""
    sample = "".join("".join(text.split()) for text in texts)[:_COMPRESSED]
    if len(sample) < _FEWEST_COMPARED or len(letters) < 2:
        return False
    characters = list(sample)
    random.Random(0).shuffle(characters)
    shuffled = "".join(characters)
    size, random_size = (len(zlib.compress(text.encode(), 9)) for text in (sample, shuffled))
    return size > _RANDOM_RATIO * random_size
