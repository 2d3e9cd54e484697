"""Checks within a second whether a text supports a vocabulary size."""

from __future__ import annotations

import re
import time
import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from tempfile import TemporaryDirectory

from core.config.corpus import CorpusConfig
from core.config.options import settled
from core.config.tokenizer import TokenizerConfig
from core.corpus.files import FilesSource
from core.corpus.finding import find_files
from core.errors import StudioError, TokenizerError
from core.messages.system_errors import in_temporary_folder
from core.tokenizer.training import train
from core.workspace.workspace import Workspace

_SECONDS = 0.7
_MOST_BYTES = 1 << 26
_PLAIN = {".txt", ".text", ".md", ".jsonl", ".ndjson", ".csv", ".tsv"}
_TRAINED_CHARACTERS = 200_000
_LONGEST_WORD = 1_000
_MERGING = ("byte_level_bpe", "wordpiece")
# Special tokens and 256 bytes.
_OTHER_TOKENS = 300
_WORDS = re.compile(r" ?[^ \n]+|\s+")
# Qwen2 and Llama 3 leave line ends at punctuation.
_LINE_ENDS = re.compile(r"(?: |(?<![^ \r\n]))[^ \n]+[\r\n]+")


def check_vocabulary(config: TokenizerConfig) -> None:
    """Raises TokenizerError if a text certainly can't support the vocabulary size.

    Small texts are trained on; larger ones give an upper bound. Slow ones aren't checked.
    """
    state = _state_of_files(config.corpus) if config.vocab_size else ""
    if not state:
        return
    if error := _problem(config.model_copy(update={"name": ""}).model_dump_json(), state):
        raise error


def _state_of_files(config: CorpusConfig) -> str:
    if config.source != "files":
        return ""
    try:
        listed = find_files(
            config.path, field="path", file_format=config.file_format,
            skip_unreadable=config.skip_unreadable,
        )  # fmt: skip
        files = [file.path for file in listed.files]
        states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    except (StudioError, OSError):
        return ""  # The corpus has its own check.
    plain = all(path.suffix.lower() in _PLAIN for path in files)
    small = sum(size for _, size, _ in states) <= _MOST_BYTES
    return repr(states) if plain and small else ""


@lru_cache(maxsize=16)
def _problem(config: str, state: str) -> TokenizerError | None:
    try:
        _check(TokenizerConfig.model_validate_json(config))
    except TokenizerError as error:
        return error
    except StudioError:
        return None
    return None


def _check(config: TokenizerConfig) -> None:
    deadline = time.monotonic() + _SECONDS
    words: Counter[str] = Counter()
    characters = 0
    documents = FilesSource(config.corpus).documents("train")
    for text in islice(documents, config.corpus.limit):
        characters += len(text)
        for form in {text, unicodedata.normalize("NFKC", text)}:
            words.update(_WORDS.findall(form))
            if config.pre_tokenization in ("qwen2", "llama3"):
                words.update(_LINE_ENDS.findall(form))
        if len(words) >= settled(config.vocab_size) or time.monotonic() > deadline:
            return
    longest = max(map(len, words), default=0)
    if characters <= _TRAINED_CHARACTERS and longest <= _LONGEST_WORD:
        with in_temporary_folder(), TemporaryDirectory(prefix="studio-") as folder:
            train(config.model_copy(update={"name": ""}), Workspace(folder))
        return
    most = _most_tokens(config, words, deadline)
    if most is not None and most < settled(config.vocab_size):
        raise TokenizerError(
            f"The text is too small for a vocabulary of {config.vocab_size:,}",
            expected=f"at most {most:,} tokens, probably fewer",
            received=f"⟬vocab_size={config.vocab_size}⟭",
            fix=f"lower ⟬vocab_size⟭ to less than {most}, or train on more text",
            field="vocab_size",
        )


def _most_tokens(config: TokenizerConfig, words: Mapping[str, int], deadline: float) -> int | None:
    """Returns an upper bound on the vocabulary size, if too low."""
    sentinels = config.sentinels if config.algorithm == "sentencepiece_unigram" else 0
    wanted = settled(config.vocab_size) - _OTHER_TOKENS - sentinels
    least = config.min_frequency if config.algorithm in _MERGING else 1
    counts: Counter[tuple[bool, str]] = Counter()
    pieces = 0
    for word, count in words.items():
        if config.algorithm == "byte_level_bpe":
            word = word.encode("utf-8", "replace").decode("latin-1")
        if len(word) > _LONGEST_WORD:
            return None
        for start in range(len(word)):
            for stop in range(start + 1, len(word) + 1):
                part = (start == 0, word[start:stop])
                pieces += counts[part] < least <= counts[part] + count
                counts[part] += count
        if pieces >= wanted or time.monotonic() > deadline:
            return None
    return pieces + _OTHER_TOKENS + sentinels
