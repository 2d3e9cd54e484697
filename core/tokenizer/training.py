"""Trains a tokenizer on a corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from core.automatic.rules import choose_vocab_size
from core.config.options import settled
from core.config.tokenizer import TokenizerConfig
from core.corpus.parts import bytes_of_parts
from core.corpus.reading import Corpus, open_corpus
from core.errors import CorpusError, TokenizerError
from core.records.events import Reporter
from core.tokenizer import bpe, sentencepiece, unigram, wordpiece
from core.tokenizer.counters import WordCounter
from core.tokenizer.counting import count_corpus
from core.tokenizer.loading import StudioTokenizer
from core.tokenizer.roles import write_files
from core.tokenizer.scoring import scorecard
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ROLES = {
    "unigram": unigram.ROLES,
    "sentencepiece_unigram": sentencepiece.ROLES,
    "byte_level_bpe": bpe.ROLES,
    "wordpiece": wordpiece.ROLES,
}
_MERGING = ("byte_level_bpe", "wordpiece")
_SCORED_CHARACTERS = 2_000_000
_SPECIAL_TOKENS = 5
_BYTES = 256
# White space as pre-tokenizers write it.
_WORD_MARKS = " \u2581\u0120"
_REPORTED_SCORES = ("tokens_per_word", "tokens_per_byte", "unknown_share")


def train(
    config: TokenizerConfig, workspace: Workspace, reporter: Reporter | None = None
) -> Artifact:
    """Trains a tokenizer and scores it on the validation split.

    Raises:
        ConfigError: A name is taken or wrong.
        CorpusError: The corpus has no text.
        TokenizerError: The text doesn't support the vocabulary size.
        RunStopped: Counts of finished parts are kept for the next run on this text.
    """
    reporter = reporter or Reporter()
    name, wanted = config.name or derive_name(config), config.vocab_size
    with workspace.new_artifact("tokenizer", name, exact=bool(config.name)) as draft:
        size = bytes_of_parts(config.part_mb) if config.skip_failing_parts else None
        corpus = open_corpus(config.corpus, workspace, reporter, skipped_bytes=size)
        counter, parts = _counter_of(config), workspace.cache / "parts"
        with count_corpus(config, counter, corpus, parts, reporter) as (words, skipped):
            config = _fitted(config, words, reporter)
            backend = _train_on_words(config, words, reporter)
            config = _check_size(config, backend, is_fitted=wanted is None)
        write_files(draft.folder, backend, _ROLES[config.algorithm])
        tokenizer = StudioTokenizer(draft.folder, name)
        draft.fingerprint = tokenizer.fingerprint
        config = config.model_copy(update={"corpus": corpus.config})
        draft.config = config.model_dump(mode="json")
        reporter.event("resolved", settings={"vocab_size": config.vocab_size})
        draft.inputs = {"corpus": corpus.input_fingerprint}
        draft.counts = {
            "vocab_size": tokenizer.vocab_size,
            **_scores(tokenizer, corpus, reporter),
            "corpus": {**corpus.counts, "reading": corpus.reading},
            **({"sources": corpus.source_counts} if corpus.source_names else {}),
            **corpus.cleaning,
            **skipped,
        }
        reporter.metrics(0, {score: draft.counts[score] for score in _REPORTED_SCORES})
    assert draft.artifact
    return draft.artifact


def derive_name(config: TokenizerConfig) -> str:
    """Returns a name such as docs-unigram-10048; without the size if it is automatic."""
    splits = config.pre_tokenization if config.algorithm == "byte_level_bpe" else "gpt2"
    parts = ["" if splits == "gpt2" else splits, str(config.vocab_size or "")]
    return "-".join([config.corpus.short_name, config.algorithm, *filter(None, parts)])


def special_tokens_of(config: TokenizerConfig) -> int:
    """Returns the number of tokens that stand for no text."""
    sentinels = config.sentinels if config.algorithm == "sentencepiece_unigram" else 0
    return _SPECIAL_TOKENS + sentinels


def _fitted(
    config: TokenizerConfig, words: Mapping[str, int], reporter: Reporter
) -> TokenizerConfig:
    """Returns the config with a vocabulary size, which follows from the words if automatic."""
    if config.vocab_size is not None:
        return config
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word.strip(_WORD_MARKS):
            characters[character] += count
    alphabet = _BYTES if config.algorithm == "byte_level_bpe" else len(characters)
    chosen = choose_vocab_size(characters.total(), alphabet, special_tokens_of(config))
    reporter.note(f"Vocabulary size: {chosen.reason}")
    return config.model_copy(update={"vocab_size": chosen.value})


def _counter_of(config: TokenizerConfig) -> WordCounter:
    if config.algorithm == "unigram":
        return unigram.UnigramCounter()
    if config.algorithm == "sentencepiece_unigram":
        return sentencepiece.SentencepieceCounter(config.sentinels, config.lowercase)
    if config.algorithm == "wordpiece":
        return wordpiece.WordpieceCounter(config.lowercase, config.strip_accents)
    return bpe.BytePairCounter(config.pre_tokenization)


def _train_on_words(
    config: TokenizerConfig, words: Mapping[str, int], reporter: Reporter
) -> Tokenizer:
    size, least = settled(config.vocab_size), config.min_frequency
    if config.algorithm == "unigram":
        return unigram.train_on_words(words, size, reporter)
    if config.algorithm == "sentencepiece_unigram":
        return sentencepiece.train_on_words(
            words, size, reporter, sentinels=config.sentinels, lowercase=config.lowercase
        )
    if config.algorithm == "wordpiece":
        return wordpiece.train_on_words(
            words, size, least, reporter,
            lowercase=config.lowercase, strip_accents=config.strip_accents,
        )  # fmt: skip
    return bpe.train_on_words(words, size, least, reporter, config.pre_tokenization)


def _check_size(config: TokenizerConfig, backend: Tokenizer, *, is_fitted: bool) -> TokenizerConfig:
    """Returns the config with the size that came to be; raises TokenizerError for another."""
    possible = backend.get_vocab_size(with_added_tokens=True)
    if is_fitted and possible >= _least_size():
        return config.model_copy(update={"vocab_size": possible})
    if possible < settled(config.vocab_size):
        rarer = config.algorithm in _MERGING and config.min_frequency > 1
        smaller = (
            f"lower ⟬vocab_size⟭ to {possible} or less, or " if possible >= _least_size() else ""
        )
        raise TokenizerError(
            f"The text is too small for a vocabulary of {config.vocab_size:,}",
            expected=f"at most {possible:,} tokens, the most that this text supports",
            received=f"⟬vocab_size={config.vocab_size}⟭",
            fix=f"{smaller}train on more text" + (", or lower ⟬min_frequency⟭" if rarer else ""),
            field="vocab_size",
        )
    return config


def _least_size() -> int:
    limits = TokenizerConfig.model_fields["vocab_size"].metadata
    return int(next(limit.ge for limit in limits if hasattr(limit, "ge")))


def _scores(tokenizer: StudioTokenizer, corpus: Corpus, reporter: Reporter) -> dict[str, Any]:
    """Without a validation split, training text is scored."""
    try:
        scores = scorecard(tokenizer, _up_to(_SCORED_CHARACTERS, corpus.documents("validation")))
    except CorpusError as error:
        reporter.warn(
            "The tokenizer is scored on its training text, because there is no "
            f"validation text. {error.problem}."
        )
        scores = scorecard(tokenizer, _up_to(_SCORED_CHARACTERS, corpus.documents("train")))
        return {**scores, "scored_on": "train"}
    return {**scores, "scored_on": "validation"}


def _up_to(characters: int, texts: Iterable[str]) -> Iterator[str]:
    """Yields texts up to a total length; may truncate the last."""
    for text in texts:
        yield text[:characters]
        characters -= len(text)
        if characters <= 0:
            return
