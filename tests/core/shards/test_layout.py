"""Tests of the conversion of lines into sequences."""

from __future__ import annotations

import numpy as np

from core.shards.layout import BestFitSequences, LineSequences, line_sequences

PAD, BOS, EOS = 0, 1, 2
SEPARATOR = 100


def test_each_line_becomes_a_padded_sequence() -> None:
    lines = [[BOS, 11, 12, EOS], [BOS, EOS], [BOS, 21, 22, 23, 24, EOS], [31]]
    tokens = np.concatenate(lines).astype("<u2")
    lengths = np.array([len(line) for line in lines])
    rows, cut = line_sequences(tokens, lengths, 6, PAD, suffix_length=1)
    assert rows.dtype == tokens.dtype and cut == 0
    assert rows.tolist() == [line + [PAD] * (6 - len(line)) for line in lines]


def test_long_line_is_truncated_and_keeps_its_end_token() -> None:
    tokens = np.array([BOS, *range(10, 20), EOS, BOS, 30, EOS], "<u4")
    rows, cut = line_sequences(tokens, np.array([12, 3]), 5, PAD, suffix_length=1)
    assert rows.tolist() == [[BOS, 10, 11, 12, EOS], [BOS, 30, EOS, PAD, PAD]]
    assert cut == 7
    bare, _ = line_sequences(tokens, np.array([12, 3]), 5, PAD)
    assert bare[0].tolist() == [BOS, 10, 11, 12, 13]


def test_every_token_is_kept_or_counted_as_dropped() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 40, 1000)
    tokens = np.arange(1, lengths.sum() + 1, dtype=np.uint32)
    rows, cut = line_sequences(tokens, lengths, 24, PAD, suffix_length=2)
    ends = np.cumsum(lengths)
    for row, start, end in zip(rows, ends - lengths, ends, strict=True):
        line = tokens[start:end].tolist()
        expected = line if len(line) <= 24 else line[:22] + line[-2:]
        assert row[row != PAD].tolist() == expected
    assert np.count_nonzero(rows) + cut == len(tokens)


def test_many_short_lines_are_converted_in_bounded_blocks() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 6, 20_000)
    lengths[[5, 15_000]] = 410
    lines = np.split(generator.integers(3, 90, lengths.sum(), np.uint16), np.cumsum(lengths)[:-1])
    expected, cut = line_sequences(np.concatenate(lines), lengths, 400, PAD, 1)
    cutter = LineSequences(400, SEPARATOR, PAD, 1)
    stream = np.concatenate([np.append(line, SEPARATOR).astype(np.uint16) for line in lines])
    blocks = [rows for part in np.split(stream, [7, 50_003]) for rows in cutter.take(part)]
    assert max(rows.size for rows in blocks) <= 1 << 22 < expected.size
    np.testing.assert_array_equal(np.concatenate(blocks), expected)
    assert cutter.truncated == cut == 20


def test_no_lines_give_no_sequences() -> None:
    rows, cut = line_sequences(np.empty(0, np.uint16), np.empty(0, np.int64), 8, PAD, 1)
    assert rows.shape == (0, 8) and cut == 0


def test_best_fit_keeps_documents_whole_and_pads_few_tokens() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 60, 4000)
    lengths[100] = 100
    documents = [
        np.append(generator.integers(3, 90, length - 1), EOS).astype(np.uint16)
        for length in lengths
    ]
    cutter = BestFitSequences(64, EOS, PAD)
    stream = np.concatenate(documents)
    blocks = [rows for part in np.split(stream, [7, 9_003]) for rows in cutter.take(part)]
    assert len(cutter.rest) + sum(np.count_nonzero(rows) for rows in blocks) == len(stream)
    rows = np.concatenate([*blocks, *cutter.finish()])
    assert len(cutter.rest) == 0
    pieces = sorted(
        piece.tolist()
        for row in rows
        for piece in np.split(row, np.flatnonzero(row == EOS) + 1)
        if len(piece) and piece[0] != PAD
    )
    long = documents.pop(100)
    whole = [document.tolist() for document in documents]
    assert pieces == sorted([*whole, long[:64].tolist(), long[64:].tolist()])
    assert 1 - len(stream) / rows.size < 0.02
