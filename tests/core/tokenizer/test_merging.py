import json
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

from core.tokenizer import bpe
from core.tokenizer.merging import Merges, learn_merges
from tests.texts import sentences

CODE = [
    "def main(path: str) -> None:\n    for line in open(path):\n        print(line, end='')\n",
    "if __name__ == '__main__':\n\tmain(sys.argv[1])  # TODO: 3.14 < 4 != []\n\n\n",
]
KOREAN = ["안녕하세요 저는 오늘 학교에 갑니다", "학교에서 친구를 만나서 반갑습니다 정말 반갑습니다"]


def awkward() -> list[str]:
    draw = random.Random(0)
    runs = ["a" * length + " " + "ab" * length for length in range(1, 60)]
    genes = ["".join(draw.choices("ACGT", k=draw.randint(1, 400))) for _ in range(30)]
    letters = ["".join(draw.choices("abc", k=draw.randint(1, 8))) for _ in range(300)]
    spaces = ["x\x1c y", "x \x85y \u3000z  w", " \r\n a", "\u2028 b \u200b c", "it's they'll", "  "]
    return [*runs, *genes, " ".join(letters), *spaces, "x" * 1000]


def texts_of(kind: str) -> list[str]:
    texts = {"english": sentences(400), "code": CODE, "korean": KOREAN, "awkward": awkward()}
    return texts[kind] + texts[kind][::3]


@pytest.mark.parametrize("kind", ["english", "code", "korean", "awkward"])
@pytest.mark.parametrize(("vocab_size", "min_frequency"), [(320, 2), (900, 2), (600, 1)])
def test_byte_level_merges_equal_those_of_the_trainer_of_tokenizers(
    kind: str, vocab_size: int, min_frequency: int
) -> None:
    texts = texts_of(kind)
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, show_progress=False,
        special_tokens=list(bpe.SPECIAL_TOKENS), initial_alphabet=alphabet,
    )  # fmt: skip
    plain.train_from_iterator(texts, trainer)
    expected = json.loads(plain.to_str())["model"]
    words = Counter[str]()
    counter = bpe.BytePairCounter()
    for text in texts:
        words.update(counter.words_of(Counter(counter.runs(text))))
    found = learn_merges(words, [*bpe.SPECIAL_TOKENS, *alphabet], vocab_size, min_frequency)
    assert {token: number for number, token in enumerate(found.tokens)} == expected["vocab"]
    assert [list(pair) for pair in found.pairs] == expected["merges"]


def test_merges_with_a_prefix_equal_those_of_the_trainer_of_tokenizers() -> None:
    words = Counter(" ".join([*sentences(300), *KOREAN]).split())
    tokens = [*sorted(set("".join(words))), *sorted({"##" + x for word in words for x in word[1:]})]
    plain = Tokenizer(models.WordPiece())
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = WordPieceTrainer(
        vocab_size=400, min_frequency=2, special_tokens=tokens, show_progress=False
    )
    plain.train_from_iterator((f"{word} " * count for word, count in words.items()), trainer)
    found = learn_merges(words, tokens, 400, 2, prefix="##")
    expected = plain.get_vocab(with_added_tokens=False)
    assert {token: number for number, token in enumerate(found.tokens)} == expected


def slowly_merged(words: dict[str, int], tokens: list[str], vocab_size: int) -> Merges:
    """Counts all pairs anew for each merge."""
    tokens, pairs = list(tokens), []
    split = {word: list(word) for word in words}
    while len(tokens) < vocab_size:
        counts = Counter[tuple[str, str]]()
        for word, symbols in split.items():
            for pair in pairwise(symbols):
                counts[pair] += words[word]
        ids = {token: number for number, token in enumerate(tokens)}
        best = min(counts, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]))
        pairs.append(best)
        if "".join(best) not in ids:
            tokens.append("".join(best))
        for symbols in split.values():
            place = 0
            while place < len(symbols) - 1:
                if (symbols[place], symbols[place + 1]) == best:
                    symbols[place : place + 2] = ["".join(best)]
                place += 1
    return Merges(tokens, pairs)


@pytest.mark.parametrize("seed", range(8))
def test_merges_equal_those_of_a_plain_implementation(seed: int) -> None:
    generator = np.random.default_rng(seed)
    words = {
        "".join(generator.choice([*"abcd"], int(length))): int(count)
        # Large counts leave rare pairs waiting until more frequent ones are merged.
        for length, count in zip(
            generator.integers(1, 9, 200), generator.zipf(1.3, 200) % 10**12, strict=True
        )
        if count
    }
    found = learn_merges(words, [*"abcd"], 60, 1)
    expected = slowly_merged(words, [*"abcd"], 60)
    assert found.tokens == expected.tokens


def test_counts_beyond_32_bits_are_exact() -> None:
    words = {"ab": 2**40, "bc": 2**40 + 1, "cd": 2**40 - 1}
    assert learn_merges(words, [*"abcd"], 7, 2).tokens[4:] == ["bc", "ab", "cd"]
    assert learn_merges({"ab": 1}, [*"ab"], 7, 2).tokens == [*"ab"]
    assert learn_merges({}, [*"ab"], 7, 2).tokens == [*"ab"]
