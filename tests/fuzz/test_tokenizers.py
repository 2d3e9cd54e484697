"""Fuzzing of tokenizer files: each yields a tokenizer or a StudioError."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.fuzz.harness import Input, Worker, explore
from tests.fuzz.mutations import (
    Raw,
    any_bytes,
    changed_json_file,
    json_text,
    mutated,
    text_of,
)
from tests.fuzz.sandbox import Entry, Fifo, Folder, Link
from tests.fuzz.valid import Artifacts

_PATTERNS = st.sampled_from((
    {"Regex": "("}, {"Regex": ""}, {"Regex": "(a+)+$"}, {"Regex": "(?:(?:a|a)*)*b"}, {"String": ""},
    {"Regex": "."}, {"Regex": "x*"}, {"String": " "}, {"Regex": "(?<=a)b"}, {"Regex": "\\p{L}+"},
    {"Regex": "(?P<a>.)(?P=a)"}, {"Regex": "[" + "a-z" * 3000 + "]"}, {"Regex": "a{1,100000}"},
    {"Regex": "(" * 2000 + ")" * 2000}, {"String": "e"}, {"Regex": "\\X"}, 7, None, {},
))  # fmt: skip
_TEXTS = st.sampled_from(("", " ", "▁", "a", "\0", "é", "\U0001f600", "x" * 100_000, "##", "<s>"))
_SMALL = st.sampled_from((0, 1, 2, -1, 100, 1 << 31, 1 << 40, 0.5, None, True))
_BEHAVIOURS = st.sampled_from((
    "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous", "x",
))  # fmt: skip


def _part(kind: str, **fields: SearchStrategy[Any]) -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


_BOOL = st.booleans()
_NORMALIZERS = st.one_of(
    *(_part(kind) for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "StripAccents")),
    _part("Replace", pattern=_PATTERNS, content=_TEXTS), _part("Prepend", prepend=_TEXTS),
    _part("Strip", strip_left=_BOOL, strip_right=_BOOL), _part("ByteLevel"),
    _part("BertNormalizer", clean_text=_BOOL, handle_chinese_chars=_BOOL, lowercase=_BOOL,
          strip_accents=st.sampled_from((None, True, False))),
    _part("Precompiled", precompiled_charsmap=st.sampled_from(("", "AAAA", "x", "/////wAAAA==",
    None))),
)  # fmt: skip
_PRETOKENIZERS = st.one_of(
    *(_part(kind) for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer",
    "UnicodeScripts")),
    _part("Split", pattern=_PATTERNS, behavior=_BEHAVIOURS, invert=_BOOL),
    _part("ByteLevel", add_prefix_space=_BOOL, trim_offsets=_BOOL, use_regex=_BOOL),
    _part("Metaspace", replacement=_TEXTS, prepend_scheme=st.sampled_from(("always", "never",
    "first", "x")),
          split=_BOOL),
    _part("Punctuation", behavior=_BEHAVIOURS), _part("Digits", individual_digits=_BOOL),
    _part("CharDelimiterSplit", delimiter=_TEXTS), _part("FixedLength", length=_SMALL),
)  # fmt: skip
_PIECE = st.sampled_from((
    {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}},
    {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": -1}},
    {"SpecialToken": {"id": "<s>", "type_id": 0}}, {}, 1,
))  # fmt: skip
_SPECIALS = st.sampled_from((
    {}, {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
    {"[CLS]": {"id": "[CLS]", "ids": [99999999], "tokens": ["[CLS]"]}},
    {"<s>": {"id": "<s>", "ids": [], "tokens": []}},
    {"<s>": {"id": "<s>", "ids": list(range(50_000)), "tokens": ["x"] * 50_000}},
))  # fmt: skip
_PAIR = st.sampled_from((["[SEP]", 3], ["<s>", 0], ["", -1], ["x", 1 << 40], [], None, "x"))
_POSTPROCESSORS = st.one_of(
    _part("TemplateProcessing", single=st.lists(_PIECE, max_size=4), pair=st.lists(_PIECE,
    max_size=4),
          special_tokens=_SPECIALS),
    _part("BertProcessing", sep=_PAIR, cls=_PAIR),
    _part("RobertaProcessing", sep=_PAIR, cls=_PAIR, trim_offsets=_BOOL, add_prefix_space=_BOOL),
    _part("ByteLevel", add_prefix_space=_BOOL, trim_offsets=_BOOL, use_regex=_BOOL),
)  # fmt: skip
_DECODERS = st.one_of(
    *(_part(kind) for kind in ("ByteFallback", "Fuse", "ByteLevel")),
    _part("WordPiece", prefix=_TEXTS, cleanup=_BOOL), _part("BPEDecoder", suffix=_TEXTS),
    _part("Metaspace", replacement=_TEXTS, prepend_scheme=st.just("always"), split=_BOOL),
    _part("CTC", pad_token=_TEXTS, word_delimiter_token=_TEXTS, cleanup=_BOOL),
    _part("Strip", content=_TEXTS, start=_SMALL, stop=_SMALL),
    _part("Replace", pattern=_PATTERNS, content=_TEXTS),
)  # fmt: skip


def _or_several(one: SearchStrategy[Any], kind: str, name: str) -> SearchStrategy[Any]:
    several = st.lists(one, max_size=4).map(lambda parts: {"type": kind, name: parts})
    nested = several.map(lambda part: {"type": kind, name: [part, part]})
    return st.one_of(one, one, several, nested, st.none())


def _grown(levels: int) -> dict[str, Any]:
    """Builds a normaliser that lengthens a text tenfold with each step."""
    steps = [
        {"type": "Replace", "pattern": {"Regex": "."}, "content": "aaaaaaaaaa"}
        for _ in range(levels)
    ]
    return {"type": "Sequence", "normalizers": steps}


def _deep(levels: int) -> Raw:
    return Raw('{"type": "Sequence", "normalizers": [' * levels + '{"type": "NFC"}' + "]}" * levels)


_PARTS: dict[str, SearchStrategy[Any]] = {
    "normalizer": st.one_of(
        _or_several(_NORMALIZERS, "Sequence", "normalizers"), st.integers(1, 7).map(_grown),
        st.sampled_from((10, 120, 3000)).map(_deep),
    ),
    "pre_tokenizer": _or_several(_PRETOKENIZERS, "Sequence", "pretokenizers"),
    "post_processor": _or_several(_POSTPROCESSORS, "Sequence", "processors"),
    "decoder": _or_several(_DECODERS, "Sequence", "decoders"),
    "added_tokens": st.lists(
        st.fixed_dictionaries({
            "id": st.sampled_from((0, 5, 1 << 20, 1 << 31, 1 << 40, -1)), "content": _TEXTS,
            "single_word": _BOOL, "lstrip": _BOOL, "rstrip": _BOOL, "normalized": _BOOL,
            "special": _BOOL,
        }), max_size=3,
    ),
    "truncation": st.sampled_from((None, {}, {
        "direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5,
    })),
    "padding": st.sampled_from((None, {}, {
        "strategy": {"Fixed": 1 << 34}, "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "x",
    })),
}  # fmt: skip
_MODELS = st.sampled_from((
    {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "x"},
    {"type": "WordLevel", "vocab": {"a": 4_294_967_295, "<unk>": 0}, "unk_token": "<unk>"},
    {"type": "WordLevel", "vocab": {}, "unk_token": ""},
    {"type": "Unigram", "unk_id": 5, "vocab": [["a", 0.0]], "byte_fallback": False},
    {"type": "Unigram", "unk_id": 0, "vocab": [["a", 1e308], ["b", -1e308]], "byte_fallback": True},
    {"type": "Unigram", "unk_id": None, "vocab": [], "byte_fallback": False},
    {"type": "Unigram", "unk_id": 0, "vocab": [["", 0.0], ["a" * 100_000, -1.0]]},
    {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]},
    {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b", "a b c"]},
    {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 1.0, "unk_token": "no"},
    {"type": "BPE", "vocab": {}, "merges": [], "byte_fallback": True, "fuse_unk": True},
    {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "", "vocab": {},
     "max_input_chars_per_word": 0},
    {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "#" * 5000,
     "vocab": {"[UNK]": 0}, "max_input_chars_per_word": 1 << 62},
    {"type": "WordPiece", "vocab": {"[UNK]": 3}, "unk_token": "[UNK]"}, {}, None,
))  # fmt: skip


@st.composite
def specifications(draw: DrawFn, valid: bytes) -> bytes:
    """Draws a `tokenizer.json` with parts replaced by others of the format, or mutated."""
    form = draw(st.integers(0, 9))
    if form < 2:
        return draw(changed_json_file(valid))
    values = json.loads(valid)
    for name in draw(st.lists(st.sampled_from(sorted(_PARTS)), min_size=1, max_size=2)):
        values[name] = draw(_PARTS[name])
    if form == 2:
        values["model"] = draw(_MODELS)
    if form == 3:
        values["model"] = {**values["model"], **draw(st.dictionaries(
            st.sampled_from(("unk_token", "unk_id", "dropout", "continuing_subword_prefix", "type",
                             "end_of_word_suffix", "max_input_chars_per_word", "ignore_merges")),
            st.one_of(_TEXTS, _SMALL), max_size=2,
        ))}  # fmt: skip
    if form == 4:
        head = {name: value for name, value in values.items() if name != "model"}
        text = draw(json_text(head, most=2))
        if text.endswith(b"}") and text.startswith(b"{"):
            return text[:-1] + b', "model": ' + text_of(values["model"]).encode() + b"}"
    return text_of(values).encode()


def test_arbitrary_tokenizer_file_is_loaded_or_refused(
    worker: Worker, artifacts: Artifacts, share: float
) -> None:
    @st.composite
    def inputs(draw: DrawFn) -> Input:
        files = artifacts.tokenizers[draw(st.sampled_from(sorted(artifacts.tokenizers)))]
        content: Entry = draw(specifications(files["tokenizer.json"]))
        special = (Fifo(), Folder(), Link("/dev/zero"), Link("nowhere"), b"")
        form = draw(st.integers(0, 99))
        return Input({**files, "tokenizer.json": special[form] if form < len(special) else content})

    explore(worker, "tokenizer.json", "tokenizer", inputs(), share)


_ROLES = ("bos_token", "cls_token", "pad_token", "mask_token", "additional_special_tokens", "x")


def test_arbitrary_special_tokens_are_loaded_or_refused(
    worker: Worker, artifacts: Artifacts, share: float
) -> None:
    names = ("tokenizer_config.json", "special_tokens_map.json")

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        valid = artifacts.tokenizers[
            draw(st.sampled_from(("unigram", "byte_level_bpe", "wordpiece")))
        ]
        files: dict[str, Entry] = dict(valid)
        for name in names[: draw(st.integers(1, 2))] if draw(st.booleans()) else names[1:]:
            contents = st.one_of(
                changed_json_file(valid[name], names=_ROLES), changed_json_file(valid[name],
                names=_ROLES),
                mutated(valid[name]), any_bytes(),
                st.sampled_from((Fifo(), Folder(), Link("/dev/zero"), Link("nowhere"))),
            )  # fmt: skip
            files[name] = draw(contents)
        return Input(files)

    explore(worker, "tokenizer roles", "tokenizer", inputs(), share)
