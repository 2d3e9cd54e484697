"""Texts with one of several masks filled in, for each kind of tokenizer."""

from __future__ import annotations

import pytest

from core.config.corpus import CorpusConfig
from core.config.tokenizer import TokenizerConfig
from core.inference.filled import filled_texts
from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.training import train
from core.workspace.workspace import Workspace
from tests.texts import write_sentences

ALGORITHMS = {"wordpiece": 150, "byte_level_bpe": 320, "unigram": 150}
TEXTS = (
    "The old {} walks slowly near the {}.",
    "{} never reads the {} letter.",
    "Behind the river {} {} reads.",
)


@pytest.fixture(scope="module", params=ALGORITHMS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> StudioTokenizer:
    place = tmp_path_factory.mktemp("words")
    corpus = CorpusConfig(source="files", path=str(write_sentences(place / "text.txt")))
    size = ALGORITHMS[request.param]
    config = TokenizerConfig(algorithm=request.param, vocab_size=size, corpus=corpus)
    return load(str(train(config, Workspace(place / "workspace")).path))


def filled(tokenizer: StudioTokenizer, text: str, tokens: list[int]) -> list[list[str]]:
    """The text with each token predicted for each mask."""
    found = [
        {"token": token, "token_str": tokenizer.decode([token], skip_special=False)}
        for token in tokens
    ]
    return filled_texts(tokenizer, text, [found, found])


@pytest.mark.parametrize("text", TEXTS)
def test_filled_token_is_decoded_as_if_it_were_the_only_mask(
    tokenizer: StudioTokenizer, text: str
) -> None:
    mask, other = str(tokenizer.mask_token), "bridge"
    special = set(tokenizer.special_ids.tolist())
    tokens = [token for token in range(tokenizer.vocab_size) if token not in special]
    # Incomplete UTF-8 bytes decode differently depending on their neighbours.
    tokens = [token for token in tokens if "�" not in tokenizer.decode([token])]
    shown = filled(tokenizer, text.format(mask, mask), tokens)
    for number, words in enumerate(((mask, other), (other, mask))):
        ids = tokenizer.encode(text.format(*words))
        (place,) = (ids == tokenizer.mask_id).nonzero()[0]
        for token, one in zip(tokens, shown[number], strict=True):
            ids[place] = token
            assert "[CLS]" not in one and "<s>" not in one and one.count(mask) == 1
            assert one.replace(mask, other).strip() == tokenizer.decode(ids).strip()


def test_unexpected_number_of_masks_gives_no_filled_texts(
    tokenizer: StudioTokenizer,
) -> None:
    text = f"The {tokenizer.mask_token} walks."
    assert filled(tokenizer, text, [5]) == []


def test_special_token_is_omitted(tokenizer: StudioTokenizer) -> None:
    mask = str(tokenizer.mask_token)
    special = [token for token in (tokenizer.sep_id, tokenizer.cls_id) if token is not None]
    shown = filled(tokenizer, f"The old {mask} reads {mask}.", special)
    assert set(shown[0]) == {f"The old reads {mask}."} and set(shown[1]) == {
        f"The old {mask} reads."
    }
