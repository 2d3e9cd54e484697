import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from core.config.tokenizer import TokenizerConfig
from core.errors import ConfigError, HubError, TokenizerError
from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.scoring import pieces, scorecard
from core.tokenizer.training import train
from core.tokenizer.vocabulary import check_suits, families_of, missing_for, vocabulary_of
from core.workspace.workspace import Workspace
from tests.hub_server import HubServer
from tests.texts import sentences, split_sentences, write_sentences

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    root = tmp_path_factory.mktemp("tokenizers")
    corpus = {"source": "files", "path": str(write_sentences(root / "a.txt"))}
    workspace = Workspace(root / "workspace")
    for name, algorithm, size in (("uni", "unigram", 100), ("bpe", "byte_level_bpe", 330)):
        values = {"name": name, "corpus": corpus, "algorithm": algorithm, "vocab_size": size}
        train(TokenizerConfig.parse(values), workspace)
    return workspace


@pytest.fixture
def uni(workspace: Workspace) -> StudioTokenizer:
    return load("uni", workspace)


@pytest.fixture
def bpe(workspace: Workspace) -> StudioTokenizer:
    return load("bpe", workspace)


def test_tokenizer_is_loaded_by_name_and_by_folder(workspace: Workspace) -> None:
    named = load("uni", workspace)
    by_folder = load(str(workspace.folder("tokenizer") / "uni"))
    assert named.fingerprint == by_folder.fingerprint == workspace.list("tokenizer")[1].fingerprint
    assert named.reference == "uni"


def test_special_token_ids_and_vocabulary_size_are_known(
    uni: StudioTokenizer, bpe: StudioTokenizer
) -> None:
    assert (uni.cls_id, uni.sep_id, uni.unk_id, uni.pad_id, uni.mask_id) == (0, 1, 2, 3, 4)
    assert (bpe.cls_id, bpe.pad_id, bpe.sep_id, bpe.unk_id, bpe.mask_id) == (0, 1, 2, 3, 4)
    assert (bpe.mask_token, bpe.roles.pad, bpe.roles.cls) == ("<mask>", "<pad>", "<s>")
    for tokenizer in (uni, bpe):
        assert tokenizer.special_ids.tolist() == [0, 1, 2, 3, 4]
        assert tokenizer.special_ids.dtype == np.int32
    assert (uni.vocab_size, bpe.vocab_size) == (100, 330)


def test_text_round_trips_through_ids(uni: StudioTokenizer) -> None:
    ids = uni.encode("The river runs.")
    assert ids.dtype == np.int32
    assert (ids[0], ids[-1]) == (uni.cls_id, uni.sep_id)
    np.testing.assert_array_equal(uni.encode("The river runs.", special=False), ids[1:-1])
    assert uni.decode(ids) == "The river runs."
    assert uni.decode(ids, skip_special=False) == "[CLS] The river runs.[SEP]"
    assert uni.decode(ids.reshape(1, -1)) == uni.decode(ids.tolist()) == "The river runs."
    assert uni.encode("half \ud800 pair").dtype == np.int32


def test_word_starts_match_tokens_with_leading_white_space(
    uni: StudioTokenizer, bpe: StudioTokenizer
) -> None:
    for tokenizer in (uni, bpe):
        starts = tokenizer.word_starts()
        assert starts.shape == (tokenizer.vocab_size,) and starts.dtype == bool
        assert starts[tokenizer.special_ids].all()
        others = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.special_ids)
        texts = [tokenizer.readable(int(n)) for n in others]
        # The first byte of a Han character, which is a word.
        begins = [text[0] in " \t\n\r\v\f" or "\\xe4" <= text[:4] <= "\\xe9" for text in texts]
        assert starts[others].tolist() == begins
        assert 0 < sum(begins) < len(others)


def test_tokens_of_scripts_without_spaces_begin_words(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    words = [
        "[UNK]",
        "[MASK]",
        "[PAD]",
        "▁the",
        "cat",
        "▁我们",
        "天气",
        "カメ",
        "ー",
        "ไทย",
        "한국",
        "é",
    ]
    pieces = [(word, -1.0) for word in words]
    Tokenizer(models.Unigram(pieces, unk_id=0)).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(str(tmp_path))
    starting = [word for word in words[3:] if tokenizer.word_starts()[words.index(word)]]
    assert starting == ["▁the", "▁我们", "天气", "カメ", "ไทย"]


def test_copy_has_the_same_files_and_fingerprint(uni: StudioTokenizer, tmp_path: Path) -> None:
    uni.copy_to(tmp_path / "copy")
    copy = load(str(tmp_path / "copy"))
    assert copy.fingerprint == uni.fingerprint and copy.roles == uni.roles
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}


@pytest.mark.parametrize("missing", ["tokenizer_config.json", "special_tokens_map.json", "both"])
def test_special_tokens_are_found_without_the_other_files(
    bpe: StudioTokenizer, tmp_path: Path, missing: str
) -> None:
    bpe.copy_to(tmp_path)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if missing in (name, "both"):
            (tmp_path / name).unlink()
    assert load(str(tmp_path)).roles == bpe.roles


def test_tokenizer_without_a_mask_token_is_loaded(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "<eos>": 1, "b": 7}, unk_token="a"))
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<eos>"}, "mask_token": "[MASK]"})
    )
    tokenizer = load(str(tmp_path))
    assert tokenizer.mask_id is None and tokenizer.mask_token is None
    assert tokenizer.sep_id == 1
    assert tokenizer.vocab_size == 8
    assert tokenizer.encode("a b a b").tolist() == [0, 7, 0, 7], "neither cut nor padded"
    assert tokenizer.word_starts().all()


def test_wordpiece_word_starts_are_tokens_without_the_prefix(tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, "run": 1, "##s": 2}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(str(tmp_path))
    assert tokenizer.word_starts().tolist() == [True, True, False]
    assert [tokenizer.readable(number) for number in (1, 2)] == [" run", "s"]


def test_sentinels_are_ordered_and_end_at_a_gap(tmp_path: Path) -> None:
    vocabulary = {"a": 0, "<extra_id_1>": 1, "<extra_id_0>": 2, "<extra_id_3>": 3, "</s>": 4}
    Tokenizer(models.WordLevel(vocabulary, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(str(tmp_path))
    assert tokenizer.sentinel_ids().tolist() == [2, 1], "a gap ends them"
    assert tokenizer.sentinel_ids().dtype == np.int32


def test_vocabulary_of_a_tokenizer_has_its_ids_and_word_starts(uni: StudioTokenizer) -> None:
    known = vocabulary_of(uni)
    assert (known.size, known.pad_id, known.mask_id) == (uni.vocab_size, uni.pad_id, uni.mask_id)
    assert (known.bos_id, known.eos_id) == (uni.cls_id, uni.sep_id)
    assert (
        known.word_starts is not None and known.word_starts.tolist() == uni.word_starts().tolist()
    )
    assert known.sentinel_ids.shape == (0,)


def test_copy_for_text_generation_adds_no_end_token(
    tmp_path: Path, uni: StudioTokenizer, bpe: StudioTokenizer
) -> None:
    for tokenizer in (uni, bpe):
        tokenizer.copy_to(tmp_path / tokenizer.reference, ends=False)
        copy = load(str(tmp_path / tokenizer.reference))
        text = "The small house"
        assert copy.encode(text).tolist() == tokenizer.encode(text).tolist()[:-1]
        assert copy.encode(text).tolist() == tokenizer.encode_beginning(text).tolist()
        assert copy.encode(text)[0] == tokenizer.cls_id and copy.sep_id == tokenizer.sep_id
        spaced, glued = (
            copy.encode(f"a{space}{copy.mask_token}", special=False) for space in (" ", "")
        )
        assert len(spaced) == len(glued) + 1, "the mask token takes no space"
        for file in copy.path.iterdir():
            assert '"lstrip": true' not in file.read_text("utf-8")
    bare = tokenizer_with(tmp_path, "</s>")
    bare.copy_to(tmp_path / "bare", ends=False)
    assert load(str(tmp_path / "bare")).fingerprint == bare.fingerprint


def test_copy_names_a_class_that_every_transformers_version_knows(
    tmp_path: Path, uni: StudioTokenizer
) -> None:
    newer = tmp_path / "newer"
    uni.copy_to(newer)
    config = newer / "tokenizer_config.json"
    known = json.loads(config.read_text())
    config.write_text(json.dumps({**known, "tokenizer_class": "TokenizersBackend"}))
    load(str(newer)).copy_to(tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / config.name).read_text()) == known
    config.write_text(json.dumps({**known, "tokenizer_class": "BertTokenizerFast"}))
    load(str(newer)).copy_to(tmp_path / "other")
    assert (tmp_path / "other" / config.name).read_text() == config.read_text()


def tokenizer_with(folder: Path, *special_tokens: str) -> StudioTokenizer:
    vocabulary = {text: number for number, text in enumerate(("a", *special_tokens))}
    Tokenizer(models.WordLevel(vocabulary, unk_token="a")).save(str(folder / "tokenizer.json"))
    return load(str(folder))


def test_compatible_families_depend_on_the_special_tokens(
    tmp_path: Path, uni: StudioTokenizer, bpe: StudioTokenizer
) -> None:
    decoders = ("llama", "qwen3", "gpt2")
    masked = ("roberta", "bert", "modernbert", *decoders, "bart")
    assert families_of(uni) == families_of(bpe) == masked
    assert families_of(tokenizer_with(tmp_path, "</s>")) == decoders
    assert families_of(tokenizer_with(tmp_path, "[MASK]", "[PAD]")) == masked[:3]
    assert families_of(tokenizer_with(tmp_path, "<pad>", "</s>", "<extra_id_0>")) == (
        *decoders,
        "t5",
    )
    assert families_of(tokenizer_with(tmp_path)) == ()
    assert missing_for(uni, "t5") == "sentinels <extra_id_0>, <extra_id_1> and so on"
    assert missing_for(uni, "bert") == ""


def test_incompatible_family_is_refused_with_the_missing_tokens(
    uni: StudioTokenizer,
) -> None:
    check_suits(uni, "bart")
    with pytest.raises(TokenizerError, match="doesn't suit the family t5") as caught:
        check_suits(uni, "t5")
    assert "sentinels" in caught.value.expected and "roberta" in caught.value.received


def test_sentence_marks_do_not_change_the_other_tokens(
    uni: StudioTokenizer, bpe: StudioTokenizer
) -> None:
    for tokenizer in (uni, bpe):
        assert tokenizer.roles.pad is not None
        for start in range(0, 40, 4):
            text = " ".join(sentences(40)[start : start + 4])
            sentences_marked = "".join(one + tokenizer.roles.pad for one in split_sentences(text))
            marked = tokenizer.encode(sentences_marked)
            is_mark = marked == tokenizer.pad_id
            assert is_mark.sum() == 4 and is_mark[-2]
            np.testing.assert_array_equal(marked[~is_mark], tokenizer.encode(text))


def test_folder_without_a_valid_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a")
    with pytest.raises(TokenizerError, match=r"contains no tokenizer.*tokenizer\.json"):
        load(str(tmp_path))
    for damaged in (b"", b"{}", b"\xff", b'{"version": "1.0", "model": {}}'):
        (tmp_path / "tokenizer.json").write_bytes(damaged)
        with pytest.raises(TokenizerError, match="is damaged"):
            load(str(tmp_path))


def test_missing_tokenizer_is_reported(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError):
        load("", workspace)
    for reference in ("../elsewhere/none", "two words"):
        with pytest.raises(HubError, match="uni") as caught:
            load(reference, workspace)
        assert caught.value.field == "tokenizer"


def load_in_a_process(url: str, folder: Path, *references: str) -> list[dict[str, Any]]:
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(folder / "home")}
    result = subprocess.run(
        [sys.executable, "-m", "tests.core.tokenizer.hub_loader", str(folder), *references],
        cwd=ROOT,
        env=environment | {"HF_HUB_DISABLE_XET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow(6)
def test_tokenizer_is_fetched_from_the_hub_without_weights(
    bpe: StudioTokenizer, tmp_path: Path
) -> None:
    files = {path.name: path.read_bytes() for path in bpe.path.iterdir()}
    server = HubServer()
    server.add("models", "me/bpe", {**files, "model.safetensors": b"large"})
    server.add("models", "me/older", {"vocab.txt": b"a"})
    try:
        found, older, missing = load_in_a_process(
            server.url, tmp_path, "me/bpe", "me/older", "me/missing"
        )
        (again,) = load_in_a_process("http://127.0.0.1:9", tmp_path, "me/bpe")
        (away,) = load_in_a_process("http://127.0.0.1:9", tmp_path / "fresh", "me/bpe")
    finally:
        server.close()
    assert server.unknown_requests == []
    assert (found["fingerprint"], found["mask"]) == (bpe.fingerprint, 4)
    assert found["files"] == sorted(files.keys() - {"manifest.json"})
    assert older["type"] == "TokenizerError" and "contains no tokenizer" in older["message"]
    assert missing["type"] == "HubError" and "no such repository" in missing["message"]
    assert again == found, "from the Hub's own cache"
    assert away["type"] == "HubError" and "can't be reached" in away["message"]


def test_sentence_is_split_into_readable_tokens(uni: StudioTokenizer, bpe: StudioTokenizer) -> None:
    for tokenizer in (uni, bpe):
        cut = pieces(tokenizer, "The river runs.")
        assert "".join(piece for piece, _ in cut).strip() == "The river runs."
        assert [number for _, number in cut] == tokenizer.encode("The river runs.", False).tolist()
    assert [piece for piece, _ in pieces(bpe, "é")] == ["\\xc3", "\\xa9"]
    assert [piece for piece, _ in pieces(uni, "é<pad>")][-2:] == ["<unk>", "<pad>"]


def test_scorecard_counts_documents_words_and_tokens(uni: StudioTokenizer) -> None:
    texts = ["The river é", " runs."]
    scores = scorecard(uni, iter(texts))
    tokens = sum(len(uni.encode(text, special=False)) for text in texts)
    assert (scores["documents"], scores["words"], scores["bytes"]) == (2, 4, 18)
    assert scores["characters"] == 17
    assert scores["tokens"] == tokens
    assert scores["tokens_per_word"] == pytest.approx(tokens / 4)
    assert scores["tokens_per_byte"] == pytest.approx(tokens / 18)
    assert scores["unknown_share"] == pytest.approx(1 / tokens)
    lengths = [len(token) for token in scores["longest_tokens"]]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > 5
    assert {len(token) for token in scores["shortest_tokens"]} == {1}
    assert scorecard(uni, [])["tokens_per_word"] == 0


def test_scorecard_covers_more_than_one_batch(bpe: StudioTokenizer) -> None:
    texts = sentences(1000)
    assert scorecard(bpe, texts)["tokens"] == sum(len(bpe.encode(t, special=False)) for t in texts)


def test_tokenizer_loads_from_another_workspace(uni: StudioTokenizer, tmp_path: Path) -> None:
    shutil.copytree(uni.path, tmp_path / "tokenizers" / "moved")
    assert load("moved", Workspace(tmp_path)).fingerprint == uni.fingerprint


def with_special_tokens(folder: Path, *special: str, plain: str = "", **parts: Any) -> Path:
    """Saves a tokenizer with these special tokens and no other files."""
    vocabulary = {"a": 0, "b": 1, "?": 2} | ({plain: 3} if plain else {})
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    for name, value in parts.items():
        setattr(backend, name, value)
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    return folder


COMMON = {
    "cls": ("[CLS]", "<s>", "<bos>", "<|begin_of_text|>"),
    "sep": ("[SEP]", "</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>"),
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
    "unk": ("[UNK]", "<unk>"),
}


@pytest.mark.parametrize(("role", "name"), [(r, name) for r in COMMON for name in COMMON[r]])
def test_common_special_tokens_are_recognised_by_name(role: str, name: str, tmp_path: Path) -> None:
    tokenizer = load(str(with_special_tokens(tmp_path, name)))
    assert {r for r in COMMON if getattr(tokenizer.roles, r)} == {role}
    assert getattr(tokenizer.roles, role) == name
    assert not tokenizer.undecided


def test_token_that_is_not_marked_special_gets_no_role(tmp_path: Path) -> None:
    assert load(str(with_special_tokens(tmp_path, plain="<|endoftext|>"))).sep_id is None


def test_ambiguous_special_tokens_are_resolved_by_tokenizer_config(tmp_path: Path) -> None:
    with_special_tokens(tmp_path, "<eos>", "<|endoftext|>", "<pad>", "[MASK]", "<mask>")
    tokenizer = load(str(tmp_path))
    assert (tokenizer.sep_id, tokenizer.mask_id) == (None, None)
    assert tokenizer.undecided == {"sep": ("<eos>", "<|endoftext|>"), "mask": ("[MASK]", "<mask>")}
    with pytest.raises(ConfigError) as told:
        vocabulary_of(tokenizer).require("eos_id", "clm")
    assert "<eos> and <|endoftext|>" in told.value.received
    for part in ("eos_token", "tokenizer_config.json"):
        assert part in told.value.fix
    with pytest.raises(
        TokenizerError, match=r"mask_token.*tokenizer_config|tokenizer_config.*mask"
    ):
        check_suits(tokenizer, "bert")
    # Following the advice resolves it.
    settings = {"eos_token": "<|endoftext|>", "mask_token": "<mask>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    again = load(str(tmp_path))
    assert (again.roles.sep, again.mask_token) == ("<|endoftext|>", "<mask>")
    assert vocabulary_of(again).require("eos_id", "clm") == again.sep_id


def test_ambiguous_special_tokens_are_resolved_by_the_post_processor(tmp_path: Path) -> None:
    template = processors.TemplateProcessing(
        single="[CLS] $A <eos>", pair="$A $B", special_tokens=[("[CLS]", 5), ("<eos>", 4)]
    )
    special = ("</s>", "<eos>", "[CLS]", "<s>")
    with_special_tokens(tmp_path, *special, post_processor=template)
    tokenizer = load(str(tmp_path))
    assert (tokenizer.roles.cls, tokenizer.roles.sep) == ("[CLS]", "<eos>")
