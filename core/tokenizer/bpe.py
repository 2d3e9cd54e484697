"""Trains a byte-level BPE tokenizer like RoBERTa's.

Source: https://github.com/huggingface/transformers/tree/v4.57.0/examples/flax/language-modeling;
pre-tokenizer: https://github.com/openai/gpt-2/blob/master/src/encoder.py
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from core.errors import TokenizerError
from core.events import Reporter
from core.tokenizer.native import run_native
from core.tokenizer.roles import Roles, parts_between

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = Roles(cls="<s>", sep="</s>", unk="<unk>", pad="<pad>", mask="<mask>")
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SMALLEST_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

_TEXTS_AT_ONCE = 500
# Counting pairs is quadratic in a word's length.
_LONGEST_WORD = 1000
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_byte_level_bpe(
    texts: Iterable[str],
    vocab_size: int,
    min_frequency: int,
    reporter: Reporter,
    total: int | None = None,
) -> Tokenizer:
    """Trains a byte-level BPE tokenizer.

    Args:
        vocab_size: With special tokens and bytes.

    Raises:
        TokenizerError: The vocabulary has no room for the bytes.
        RunStopped: The reporter asked for it.
    """
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
    )
    from tokenizers.trainers import BpeTrainer

    _check_room(vocab_size)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS.replace("+", f"{{1,{_LONGEST_WORD}}}")), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[
            AddedToken(token, lstrip=token == ROLES.mask, normalized=False, special=True)
            for token in SPECIAL_TOKENS
        ],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    all_read = threading.Event()
    batches = _batches(texts, total, reporter, all_read)
    run = partial(backend.train_from_iterator, batches, trainer=trainer)
    run_native(run, reporter, f"merging up to {vocab_size:,} tokens", begun=all_read.is_set)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    sep, cls = (("</s>", SPECIAL_TOKENS.index("</s>")), ("<s>", SPECIAL_TOKENS.index("<s>")))
    backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=False)
    return backend


def _batches(
    texts: Iterable[str], total: int | None, reporter: Reporter, all_read: threading.Event
) -> Iterator[list[str]]:
    iterator = iter(texts)
    done = 0
    while batch := list(islice(iterator, _TEXTS_AT_ONCE)):
        reporter.raise_if_stopped()
        yield [part for text in batch for part in parts_between(SPECIAL_TOKENS, text)]
        done += len(batch)
        reporter.progress(done, total, "documents", "counting words")
    all_read.set()


def _check_room(vocab_size: int) -> None:
    if vocab_size < SMALLEST_VOCAB_SIZE:
        raise TokenizerError(
            "vocab_size is too small for the 256 byte tokens",
            expected=f"at least {SMALLEST_VOCAB_SIZE}: 256 byte tokens and {len(SPECIAL_TOKENS)} "
            "special tokens",
            received=f"vocab_size={vocab_size}",
            fix=f"raise vocab_size above {SMALLEST_VOCAB_SIZE}",
            field="vocab_size",
        )
