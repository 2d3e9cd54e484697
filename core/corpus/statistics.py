"""Analyses a sample of a corpus: sizes, languages, lengths, duplicates, lines, scripts, errors."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.corpus.cleaning.duplicates import firsts_of
from core.corpus.cleaning.language import identify_language
from core.corpus.cleaning.steps import near_keys, text_keys
from core.corpus.sampling import Limits, SourceSample, sample_corpus
from core.corpus.scripts import SYMBOLS, count_scripts
from core.errors import ConfigError
from core.workspace.workspace import Workspace

if TYPE_CHECKING:
    from core.tokenizer.loading import StudioTokenizer

# Identification takes about a millisecond per document.
_IDENTIFIED_DOCUMENTS = 2000
_IDENTIFY_SECONDS = 5.0
_TOKENIZED_BYTES = 2_000_000
_MOST_LANGUAGES = 12
_MOST_LINES = 12
_MOST_SCRIPTS = 10
_LINE_CHARACTERS = 100
_AROUND_CHARACTERS = 40
# Measured with 32,000 byte-pair tokens on English text; other text needs a tokenizer.
_TOKENS_PER_WORD = 1.3
_BYTES_PER_TOKEN = 4.0
# Text without spaces, such as Chinese, has longer "words".
_LONGEST_MEAN_WORD = 15.0
_USUAL_VOCABULARY = 32_000
_SPACE = re.compile(r"\s+")
_REPLACEMENT = re.compile("\ufffd")
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u206a-\u206f\ufeff\ufff9-\ufffb]")
_ENTITY = re.compile(r"&(?:#\d{2,7}|#[xX][0-9A-Fa-f]{2,6}|amp|lt|gt|quot|apos|nbsp);")
# 1, 2, 5, 10, 20, 50, ... characters.
_LENGTH_BINS = [factor * 10**power for power in range(9) for factor in (1, 2, 5)]


@dataclass(frozen=True)
class SourceStatistics:
    """Counts of one source.

    Attributes:
        total_bytes: Stored bytes; 0 if unknown.
        share: Fraction that was read; None if unknown.
        sampled_documents, sampled_bytes: Bytes that were read, in UTF-8.
        documents, bytes: Estimates for the whole source; None if its size is unknown.
        unreadable: Places at which nothing could be read, with the first error.
        skipped: Documents without text among those that were read, by reason.
    """

    name: str
    kind: str
    total_bytes: int
    share: float | None
    sampled_documents: int
    sampled_bytes: int
    documents: int | None
    bytes: int | None
    unreadable: int
    error: str
    skipped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CorpusStatistics:
    """Figures of a corpus, from a sample. All counts but those named estimates are of the sample.

    Attributes:
        share: Fraction of the corpus that was read; None if the size of a source is unknown.
        languages: Documents by ISO 639 code, of those that were identified.
        lengths: Shortest, median, mean, 90th percentile and longest, in characters.
        histogram: Documents with at least `from` and less than `to` characters.
        duplicates: Exact and near copies: documents, their share, and how many copy another
            source. In a sample, not all copies meet, so the corpus has more.
        lines: The most frequent lines that several documents have.
        scripts: Letters by script, the main script first.
        encoding: Problems, each with documents, places and an example.
        tokens: Estimate for the corpus, and its method.
        hours: Estimate for one epoch, by size of the model.
    """

    share: float | None
    seconds: float
    documents: int
    bytes: int
    sources: list[SourceStatistics]
    languages: list[dict[str, Any]]
    lengths: dict[str, float]
    histogram: list[dict[str, int]]
    duplicates: dict[str, dict[str, Any]]
    lines: list[dict[str, Any]]
    scripts: list[dict[str, Any]]
    encoding: list[dict[str, Any]]
    tokens: dict[str, Any]
    hours: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return asdict(self)


def analyse_corpus(
    config: CorpusConfig,
    workspace: Workspace | None = None,
    *,
    tokenizer: str = "",
    limits: Limits | None = None,
) -> CorpusStatistics:
    """Analyses a bounded sample of a corpus, spread over each of its sources.

    A source in which nothing can be read is listed with its error, if others can be read.

    Args:
        tokenizer: Name, folder or Hub id of the tokenizer that counts tokens; empty: tokens are
            estimated from words, or bytes.
        limits: Limits of the sample; by default 16 MiB in 20 seconds.

    Raises:
        ConfigError, CorpusError: A source can't be opened, or nothing in it can be read.
        TokenizerError, HubError: The tokenizer can't be loaded.
    """
    if not isinstance(config, CorpusConfig):
        raise ConfigError(
            "This corpus can't be analysed",
            expected="a CorpusConfig",
            received=type(config).__name__,
            fix="pass CorpusConfig(path=...), or the corpus of another config",
            field="config",
        )
    workspace = Workspace.of(workspace)
    began = time.monotonic()
    samples = sample_corpus(config, workspace, limits, keep_failing=True)
    return analyse_samples(samples, workspace, tokenizer, began)


def analyse_samples(
    samples: Sequence[SourceSample], workspace: Workspace, tokenizer: str = "", began: float = 0.0
) -> CorpusStatistics:
    """Analyses the samples of all sources, as `analyse_corpus`.

    Args:
        began: Monotonic time at which reading began.
    """
    began = began or time.monotonic()
    texts = [text for sample in samples for text in sample.texts]
    owners = np.repeat(np.arange(len(samples)), [len(sample.texts) for sample in samples])
    sources = [_source_statistics(sample) for sample in samples]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    tokens = _estimate_tokens(texts, sources, tokenizer, workspace)
    share = _share_of(sources)
    return CorpusStatistics(
        share=share,
        documents=len(texts),
        bytes=sum(source.sampled_bytes for source in sources),
        sources=sources,
        languages=_languages(texts),
        lengths=_lengths(lengths),
        histogram=_histogram(lengths),
        duplicates=_duplicates(texts, owners),
        lines=_frequent_lines(texts),
        scripts=_scripts(texts),
        encoding=_encoding_problems(texts),
        tokens=tokens,
        hours=_hours(tokens, workspace),
        seconds=round(time.monotonic() - began, 2),
    )


def _source_statistics(sample: SourceSample) -> SourceStatistics:
    size = sum(len(text.encode()) for text in sample.texts)
    count, share = len(sample.texts), sample.share
    return SourceStatistics(
        sample.name, sample.kind, sample.total_bytes, share, count, size,
        None if share is None else round(count / share),
        None if share is None else round(size / share),
        sample.unreadable, sample.error, dict(sample.skipped),
    )  # fmt: skip


def _share_of(sources: Sequence[SourceStatistics]) -> float | None:
    if any(source.bytes is None for source in sources):
        return None
    total = sum(source.bytes or 0 for source in sources)
    return sum(source.sampled_bytes for source in sources) / total if total else None


def _languages(texts: Sequence[str]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + _IDENTIFY_SECONDS
    step = max(1, len(texts) // _IDENTIFIED_DOCUMENTS)
    by_language: Counter[str] = Counter()
    # From all over the sample, also if time is up.
    chosen = texts[::step]
    for number in np.random.default_rng(0).permutation(len(chosen)).tolist():
        by_language[identify_language(chosen[number])[0]] += 1
        if time.monotonic() > deadline:
            break
    return [
        {"language": code, "documents": count, "share": count / by_language.total()}
        for code, count in by_language.most_common(_MOST_LANGUAGES)
    ]


def _lengths(lengths: np.ndarray) -> dict[str, float]:
    return {
        "shortest": int(lengths.min()),
        "median": float(np.median(lengths)),
        "mean": round(float(lengths.mean()), 1),
        "percentile_90": float(np.percentile(lengths, 90)),
        "longest": int(lengths.max()),
    }


def _histogram(lengths: np.ndarray) -> list[dict[str, int]]:
    counts, _ = np.histogram(lengths, [*_LENGTH_BINS, np.iinfo(np.int64).max])
    filled = np.flatnonzero(counts)
    bins = range(int(filled[0]), int(filled[-1]) + 1)
    ends = [*_LENGTH_BINS[1:], int(lengths.max()) + 1]
    return [
        {"from": _LENGTH_BINS[place], "to": ends[place], "documents": int(counts[place])}
        for place in bins
    ]


def _duplicates(texts: Sequence[str], owners: np.ndarray) -> dict[str, dict[str, Any]]:
    kinds = np.zeros(len(texts), np.uint8)
    firsts = firsts_of(text_keys(texts)[None], kinds)
    is_copy = firsts != np.arange(len(texts))
    distinct = np.flatnonzero(~is_copy)
    keys = near_keys([texts[index] for index in distinct.tolist()], CleanConfig())
    near = distinct[firsts_of(keys, kinds[distinct])]
    return {
        "exact": _copies(np.flatnonzero(is_copy), firsts[is_copy], owners),
        "near": _copies(distinct[near != distinct], near[near != distinct], owners),
    }


def _copies(copies: np.ndarray, firsts: np.ndarray, owners: np.ndarray) -> dict[str, Any]:
    return {
        "documents": len(copies),
        "share": len(copies) / max(1, len(owners)),
        "of_other_sources": int((owners[copies] != owners[firsts]).sum()),
    }


def _frequent_lines(texts: Sequence[str]) -> list[dict[str, Any]]:
    documents: Counter[str] = Counter()
    for text in texts:
        # In order, so that the result is always the same.
        documents.update(list(dict.fromkeys(filter(None, map(str.strip, text.split("\n"))))))
    return [
        {"line": _shortened(line), "documents": count, "share": count / len(texts)}
        for line, count in documents.most_common(_MOST_LINES)
        if count > 1
    ]


def _shortened(line: str) -> str:
    return line if len(line) <= _LINE_CHARACTERS else line[: _LINE_CHARACTERS - 1] + "…"


def _scripts(texts: Sequence[str]) -> list[dict[str, Any]]:
    scripts = count_scripts(texts)
    # Symbols are no script, so they are never the main one.
    scripts.sort(key=lambda script: script.name == SYMBOLS and len(scripts) > 1)
    main = next((script.name for script in scripts if script.name != SYMBOLS), "")
    total = sum(script.characters for script in scripts)
    ordered = sorted(scripts, key=lambda script: (script.name != main, -script.characters))
    return [
        {**asdict(script), "share": script.characters / total, "is_main": script.name == main}
        for script in ordered[:_MOST_SCRIPTS]
    ]


def _encoding_problems(texts: Sequence[str]) -> list[dict[str, Any]]:
    kinds: dict[str, Callable[[str], list[tuple[int, int]]]] = {
        "replacement_characters": _places(_REPLACEMENT),
        "mojibake": _mojibake,
        "html_entities": _places(_ENTITY),
        "control_characters": _places(_CONTROL),
    }
    return [
        {"problem": name, **counts}
        for name, find in kinds.items()
        if (counts := _problem(texts, find))["documents"]
    ]


def _problem(texts: Sequence[str], find: Callable[[str], list[tuple[int, int]]]) -> dict[str, Any]:
    documents = places = 0
    example = ""
    for text in texts:
        if spans := find(text):
            documents += 1
            places += len(spans)
            example = example or _around(text, *spans[0])
    return {
        "documents": documents, "places": places, "share": documents / len(texts),
        "example": example,
    }  # fmt: skip


def _around(text: str, start: int, stop: int) -> str:
    begin = max(0, start - _AROUND_CHARACTERS)
    end = min(len(text), stop + _AROUND_CHARACTERS)
    shown = _SPACE.sub(" ", text[begin:end]).strip()
    # Control characters would be invisible.
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", shown)[: 4 * _AROUND_CHARACTERS]


def _places(pattern: re.Pattern[str]) -> Callable[[str], list[tuple[int, int]]]:
    return lambda text: [match.span() for match in pattern.finditer(text)]


def _mojibake(text: str) -> list[tuple[int, int]]:
    """Returns the places that look wrong, if ftfy would repair the text."""
    import ftfy
    from ftfy.badness import BADNESS_RE, is_bad

    if text.isascii() or not is_bad(text) or ftfy.fix_encoding(text) == text:
        return []
    return [match.span() for match in BADNESS_RE.finditer(text)]


def _estimate_tokens(
    texts: Sequence[str],
    sources: Sequence[SourceStatistics],
    tokenizer: str,
    workspace: Workspace,
) -> dict[str, Any]:
    size = sum(source.sampled_bytes for source in sources)
    total = None if any(source.bytes is None for source in sources) else sum(
        source.bytes or 0 for source in sources
    )  # fmt: skip
    vocab_size, tokenizer_name = _USUAL_VOCABULARY, ""
    if tokenizer:
        from core.tokenizer.loading import load  # a layer above

        loaded = load(tokenizer, workspace)
        per_byte, method = _tokens_per_byte(texts, loaded), "tokenizer"
        vocab_size, tokenizer_name = loaded.vocab_size, tokenizer
    else:
        per_byte, method = _guess_tokens_per_byte(texts, size)
    return {
        "method": method, "tokenizer": tokenizer_name, "vocab_size": vocab_size,
        "tokens_per_byte": per_byte, "sampled": round(per_byte * size),
        "total": None if total is None else round(per_byte * total),
    }  # fmt: skip


def _tokens_per_byte(texts: Sequence[str], tokenizer: StudioTokenizer) -> float:
    tokens = size = 0
    for text in _until(_TOKENIZED_BYTES, texts):
        tokens += len(tokenizer.encode(text))
        size += len(text.encode())
    return tokens / max(1, size)


def _until(most_bytes: int, texts: Sequence[str]) -> Iterator[str]:
    """Yields texts from all over, up to a total size."""
    for number in np.random.default_rng(0).permutation(len(texts)).tolist():
        yield texts[number]
        most_bytes -= len(texts[number].encode())
        if most_bytes <= 0:
            return


def _guess_tokens_per_byte(texts: Sequence[str], size: int) -> tuple[float, str]:
    words = sum(len(text.split()) for text in texts)
    characters = sum(map(len, texts))
    if words and characters / words <= _LONGEST_MEAN_WORD:
        return _TOKENS_PER_WORD * words / max(1, size), "words"
    return 1 / _BYTES_PER_TOKEN, "bytes"


def _hours(tokens: dict[str, Any], workspace: Workspace) -> dict[str, Any]:
    # A layer above; it loads the backends' devices.
    from core.training.forecast import FAMILY, SEQUENCE_LENGTH, hours_by_size

    count = tokens["sampled"] if tokens["total"] is None else tokens["total"]
    return {
        "family": FAMILY,
        "sequence_length": SEQUENCE_LENGTH,
        "by_size": hours_by_size(count, tokens["vocab_size"], workspace),
    }
