"""Tests of denoising against its definition."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from math import ceil, exp, factorial

import numpy as np
import pytest
from numpy.typing import NDArray

from core.errors import ConfigError, ShardError
from core.objectives.denoising import Denoising
from core.objectives.objective import ObjectiveSettings
from tests.core.objectives.support import (
    BOS,
    EOS,
    FIRST_ORDINARY,
    LAST_ORDINARY,
    MASK,
    PAD,
    UNK,
    VOCAB_SIZE,
    assert_a_batch_is_a_pure_function,
    assert_seed_step_and_row_matter,
    assert_shapes,
    marked_rows,
    ordinary_rows,
    vocabulary,
)

LENGTH = 128


def task_of(length: int = LENGTH, **settings: float) -> Denoising:
    return Denoising.create(ObjectiveSettings(length, **settings), vocabulary())


def hiding_nothing(task: Denoising) -> Denoising:
    """Copies the objective with all tokens marked special, so that none is masked."""
    return replace(task, special_ids=np.arange(VOCAB_SIZE, dtype=np.int32))


def distinct_rows(count: int, length: int = LENGTH, seed: int = 0) -> NDArray[np.int32]:
    """Builds sequences without repeated tokens, so that each identifies its position."""
    generator = np.random.default_rng(seed)
    tokens = np.arange(FIRST_ORDINARY, LAST_ORDINARY + 1, dtype=np.int32)
    return generator.permuted(np.tile(tokens, (count, 1)), axis=1)[:, :length]


def sentences_by_document(row: NDArray[np.int32]) -> list[list[list[int]]]:
    """Splits a sequence into documents and sentences, without marks and document borders."""
    documents: list[list[list[int]]] = [[[]]]
    for token in row.tolist():
        if token in (BOS, EOS):
            documents.append([[]])
        elif token == PAD:
            documents[-1].append([])
        else:
            documents[-1][-1].append(token)
    return [[s for s in document if s] for document in documents]


def without_padding(row: NDArray[np.int32]) -> list[int]:
    return [token for token in row.tolist() if token != PAD]


def test_batch_arrays_have_the_expected_shapes() -> None:
    names = ("input_ids", "attention_mask", "decoder_input_ids", "labels", "label_weights")
    task = task_of()
    batch = task.batch(marked_rows(3, LENGTH), 0, 0)
    assert_shapes(task, batch, dict.fromkeys(names, (3, LENGTH)))
    empty = task.batch(np.zeros((0, LENGTH), np.int32), 0, 0)
    assert empty["input_ids"].shape == (0, LENGTH)


def test_labels_are_the_text_without_sentence_marks() -> None:
    rows = marked_rows(10_000, LENGTH)
    batch = task_of().batch(rows, seed=0, step=0)
    for row, labels, weights in zip(rows, batch["labels"], batch["label_weights"], strict=True):
        text = without_padding(row)
        assert labels.tolist() == text + [PAD] * (LENGTH - len(text))
        assert weights.tolist() == [1] * len(text) + [0] * (LENGTH - len(text))
    assert (batch["decoder_input_ids"][:, 0] == EOS).all()
    assert np.array_equal(batch["decoder_input_ids"][:, 1:], batch["labels"][:, :-1])


def test_attention_mask_covers_all_tokens_except_padding() -> None:
    batch = task_of().batch(marked_rows(500, LENGTH), seed=0, step=0)
    assert np.array_equal(batch["attention_mask"], batch["input_ids"] != PAD)
    assert (np.diff(batch["attention_mask"], axis=1) <= 0).all(), "padding comes last"


def test_exact_share_of_ordinary_tokens_is_masked_and_all_others_are_kept() -> None:
    rows = marked_rows(10_000, LENGTH)
    batch = task_of().batch(rows, seed=0, step=0)
    for row, shown in zip(rows, batch["input_ids"], strict=True):
        text, left = Counter(without_padding(row)), Counter(without_padding(shown))
        del left[MASK]
        assert not left - text, "nothing is made up"
        missing = text - left
        assert not {BOS, EOS, UNK} & set(missing)
        ordinary = sum(count for token, count in text.items() if token not in (BOS, EOS, UNK))
        assert sum(missing.values()) == ceil(0.3 * ordinary)


def test_each_masked_span_becomes_one_mask_token_in_its_place() -> None:
    rows = distinct_rows(2000)
    batch = task_of(permute_sentence_ratio=0.0).batch(rows, seed=0, step=0)
    for row, shown in zip(rows, batch["input_ids"], strict=True):
        rebuilt, text = [], row.tolist()
        seen = without_padding(shown)
        for place, token in enumerate(seen):
            if token != MASK:
                rebuilt.append(token)
                continue
            following = seen[place + 1] if place + 1 < len(seen) else None
            assert following != MASK, "a token is shown between two spans"
            stop = LENGTH if following is None else text.index(following)
            assert stop > len(rebuilt), "each mask stands for something"
            rebuilt += text[len(rebuilt) : stop]
        assert rebuilt == text


def test_masked_span_across_sentences_becomes_one_mask_token() -> None:
    shown = task_of().batch(marked_rows(2000, LENGTH), seed=0, step=0)["input_ids"]
    assert not ((shown[:, 1:] == MASK) & (shown[:, :-1] == MASK)).any()


def test_span_lengths_follow_a_zero_truncated_poisson_distribution() -> None:
    rows = distinct_rows(10_000)
    batch = task_of(permute_sentence_ratio=0.0).batch(rows, seed=0, step=0)
    lengths, all_lengths = [], []
    for row, shown in zip(rows, batch["input_ids"], strict=True):
        hidden = ~np.isin(row, shown)
        edges = np.flatnonzero(np.diff(np.concatenate(([0], hidden, [0]))))
        spans = edges[1::2] - edges[::2]
        assert spans.sum() == ceil(0.3 * LENGTH)
        # The last span is truncated, and those before it had to fit.
        lengths += spans[:3].tolist()
        all_lengths += spans.tolist()
    counts = np.bincount(lengths, minlength=15)
    share = np.array([exp(-3) * 3.0**n / factorial(n) / (1 - exp(-3)) for n in range(1, 15)])
    expected = share * len(lengths)
    assert (np.abs(counts[1:15] - expected) < 5 * np.sqrt(expected) + 1).all()
    assert np.mean(all_lengths) == pytest.approx(3 / (1 - exp(-3)), rel=0.05)


def test_all_positions_are_masked_equally_often() -> None:
    rows = distinct_rows(10_000)
    batch = task_of(permute_sentence_ratio=0.0).batch(rows, seed=0, step=0)
    shown = np.zeros(LENGTH)
    for row, ids in zip(rows, batch["input_ids"], strict=True):
        shown += np.isin(row, ids)
    share = 1 - shown / len(rows)
    # A span reaches the outermost tokens from one side only, and the last span is truncated.
    assert share[9:-9] == pytest.approx(np.full(LENGTH - 18, ceil(0.3 * LENGTH) / LENGTH), abs=0.03)
    assert (share > 0.1).all()


def test_masked_span_continues_after_a_special_token() -> None:
    rows = distinct_rows(500, 16)
    rows[:, [3, 4, 9]] = EOS, BOS, UNK
    batch = task_of(16, mlm_probability=0.5, poisson_lambda=20.0).batch(rows, seed=0, step=0)
    went_on = 0
    for shown in batch["input_ids"]:
        seen = without_padding(shown)
        assert [token for token in seen if token in (EOS, BOS, UNK)] == [EOS, BOS, UNK]
        went_on += any(
            seen[place - 1] == seen[place + 1] == MASK
            for place in range(1, len(seen) - 1)
            if seen[place] == UNK
        )
    assert went_on


def test_sentences_are_permuted_whole_within_their_document() -> None:
    rows = distinct_rows(2000)
    marks = marked_rows(2000, LENGTH)
    rows[marks < FIRST_ORDINARY] = marks[marks < FIRST_ORDINARY]
    batch = task_of(mlm_probability=1e-6).batch(rows, seed=0, step=0)
    moved = 0
    for row, shown in zip(rows, batch["input_ids"], strict=True):
        text, seen = without_padding(row), without_padding(shown)
        assert len(seen) == len(text) and seen.count(MASK) <= 1
        if MASK in seen:
            (hidden,) = set(text) - set(seen)
            seen[seen.index(MASK)] = hidden
        assert [n for n, token in enumerate(text) if token in (BOS, EOS)] == [
            n for n, token in enumerate(seen) if token in (BOS, EOS)
        ]
        moved += seen != text
        before, start = sentences_by_document(row), 0
        for document in before:
            length = sum(map(len, document))
            part = seen[start : start + length]
            order = sorted(document, key=lambda sentence: part.index(sentence[0]))
            assert [token for sentence in order for token in sentence] == part
            start += length + 1  # one token for the document border
    assert moved > 1900


def test_all_sentence_orders_are_equally_likely() -> None:
    row = np.array([11, 12, PAD, 21, PAD, 31, 32, 33, PAD, EOS, BOS, 41, PAD, 51, 52, 53], np.int32)
    rows = np.repeat(row[None], 12_000, axis=0)
    shown = hiding_nothing(task_of(16)).batch(rows, seed=0, step=0)["input_ids"]
    orders = Counter(
        "".join(dict.fromkeys(str(token // 10) for token in without_padding(ids) if token > EOS))
        for ids in shown
    )
    expected = {"".join(a) + "".join(b) for a in permutations("123") for b in permutations("45")}
    assert set(orders) == expected
    assert all(abs(count - 1000) < 5 * 1000**0.5 for count in orders.values())


@pytest.mark.parametrize(("ratio", "most_moved"), [(0.0, 0), (0.3, 3), (0.5, 4), (1.0, 8)])
def test_permute_ratio_limits_the_number_of_moved_sentences(ratio: float, most_moved: int) -> None:
    row = np.array([token for n in range(1, 9) for token in (10 * n, PAD)], np.int32)
    task = hiding_nothing(task_of(16, permute_sentence_ratio=ratio))
    rows = np.repeat(row[None], 3000, axis=0)
    shown = task.batch(rows, seed=0, step=0)["input_ids"]
    moved = (shown[:, :8] != row[::2]).sum(axis=1)
    assert moved.max() == most_moved


def test_sequence_of_padding_has_no_label_weight() -> None:
    rows = marked_rows(3, LENGTH)
    rows[1] = PAD
    batch = task_of().batch(rows, seed=0, step=0)
    for name in ("attention_mask", "label_weights"):
        assert batch[name].sum(axis=1).astype(bool).tolist() == [True, False, True]


def test_short_padded_document_has_one_masked_token() -> None:
    rows = np.full((200, LENGTH), PAD, np.int32)
    rows[:, :4] = BOS, 50, 60, EOS
    batch = task_of().batch(rows, seed=0, step=0)
    assert {tuple(without_padding(row)) for row in batch["input_ids"]} == {
        (BOS, MASK, 60, EOS),
        (BOS, 50, MASK, EOS),
    }


def test_batch_is_a_pure_function_of_sequences_seed_and_step() -> None:
    rows = marked_rows(8, LENGTH)
    assert_a_batch_is_a_pure_function(task_of(), rows)
    assert_a_batch_is_a_pure_function(task_of(permute_sentence_ratio=0.4), rows)
    assert_seed_step_and_row_matter(task_of(), rows[0])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mlm_probability", 0.0),
        ("mlm_probability", 0.6),
        ("poisson_lambda", 0.0),
        ("poisson_lambda", 51.0),
        ("permute_sentence_ratio", -0.1),
        ("permute_sentence_ratio", 1.1),
    ],
)
def test_settings_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError) as raised:
        task_of(**{field: value})
    assert raised.value.field == field


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.5])
@pytest.mark.parametrize("length", [8, 9, 33])
def test_masked_count_is_exact_for_any_number_of_tokens(ratio: float, length: int) -> None:
    rows = distinct_rows(length + 1, length)
    for tokens in range(length + 1):
        rows[tokens, tokens:] = PAD
    batch = task_of(length, mlm_probability=ratio, poisson_lambda=0.1).batch(rows, 0, 0)
    for tokens, (row, shown) in enumerate(zip(rows, batch["input_ids"], strict=True)):
        missing = set(without_padding(row)) - set(without_padding(shown))
        assert len(missing) == ceil(tokens * ratio)


def test_sequences_of_another_length_or_vocabulary_are_refused() -> None:
    with pytest.raises(ShardError, match=rf"{LENGTH} tokens.*64"):
        task_of().batch(ordinary_rows(2, 64), 0, 0)
    with pytest.raises(ShardError, match=str(VOCAB_SIZE)):
        task_of().batch(np.full((2, LENGTH), VOCAB_SIZE, np.int32), 0, 0)
