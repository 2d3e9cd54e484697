"""Our folders in transformers 4.57, and weights that its TensorFlow and Flax classes save.

Other tests compare our models with transformers 5; here, 4.57 must give the same results for our
folders. It is installed in a separate folder (see requirements-transformers4.txt), which comes
first on the path of a process that needs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.architecture.architecture import Architecture
from core.config.corpus import CorpusConfig
from core.config.tokenizer import TokenizerConfig
from core.models import hf
from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.pre_tokenizers import PRE_TOKENIZATIONS
from core.tokenizer.training import train
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint, write_model_of, write_writer
from tests.core.models.families import (
    DECODERS,
    ENCODER_DECODERS,
    FAMILIES,
    LENGTH,
    small_architecture,
)
from tests.core.models.transformers4 import ask, cut, reference
from tests.texts import varied_texts

pytestmark = pytest.mark.slow(5)
PACKAGES = Path(sys.prefix) / "transformers4"
TEXT, MASKED, NEW_TOKENS = "The small house sleeps.", "The small <mask> sleeps.", 8
OTHER_TOKENIZERS: dict[str, dict[str, Any]] = {
    **{
        name: {"algorithm": name, "vocab_size": size}
        for name, size in (("unigram", 120), ("sentencepiece_unigram", 190), ("wordpiece", 200))
    },
    **{
        name: {"algorithm": "byte_level_bpe", "vocab_size": 320, "pre_tokenization": name}
        for name in PRE_TOKENIZATIONS
    },
}
TEXTS = (
    "The small house sleeps; don't   wake it — in 1984, Ünïcode 🙂.",
    "Det lille huset sover på øya, og båten leser aldri blå brev. <mask>",
    "작은 집이 겨울에 잠든다. 오래된 배는 편지를 읽지 않는다!\n[MASK]",
    *varied_texts(),
)
FILLS = ("roberta", "bert", "modernbert", "bart")
# Frameworks for which transformers 4.57 has a class, besides PyTorch.
FOREIGN = {
    "roberta": ("TF", "Flax"),
    "bert": ("TF", "Flax"),
    "modernbert": (),
    "gpt2": ("TF", "Flax"),
    "llama": (),
    "qwen3": (),
    "t5": ("TF", "Flax"),
    "bart": ("TF", "Flax"),
}


@dataclass(frozen=True)
class Both:
    """Our folders, and the results of transformers 4.57 by family."""

    folder: Path
    workspace: Workspace
    tokenizer: StudioTokenizer
    said: dict[str, Any]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    pytest.importorskip("torch", reason="pip install torch==2.13.0 (PyTorch is the judge)")
    if not (PACKAGES / "transformers").is_dir():
        pytest.skip(
            "transformers 4.57 isn't there: pip install --target .venv/transformers4 --no-deps "
            "-r requirements-transformers4.txt"
        )
    folder = tmp_path_factory.mktemp("transformers4")
    workspace = Workspace(folder / "workspace")
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    for name, settings in OTHER_TOKENIZERS.items():
        corpus = CorpusConfig(source="files", path=str(workspace.root / "text.txt"))
        train(TokenizerConfig.parse({"name": name, "corpus": corpus, **settings}), workspace)
    for family in FAMILIES:
        write_family(folder / family, family, tokenizer)
    np.savez(folder / "inputs.npz", **inputs(tokenizer))
    task = {
        "fills": FILLS, "decoders": DECODERS, "text": TEXT, "masked": MASKED,
        "new_tokens": NEW_TOKENS,
        "tokenizers": str(workspace.folder("tokenizer")), "texts": TEXTS,
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
    return Both(folder, workspace, tokenizer, run_transformers4(folder))


def write_family(folder: Path, family: str, tokenizer: StudioTokenizer) -> None:
    if family == "roberta":
        write_checkpoint(folder, tokenizer)
    elif family in ("gpt2", *ENCODER_DECODERS):
        # T5 does not scale its attention scores: large weights would amplify rounding errors.
        write_writer(folder, tokenizer, family, size=0.15 if family == "t5" else 0)
    else:
        architecture: Architecture = replace(
            small_architecture(family),
            vocab_size=tokenizer.vocab_size,
            pad_token_id=tokenizer.pad_id or 0,
            bos_token_id=tokenizer.cls_id,
            eos_token_id=tokenizer.sep_id,
        )
        write_model_of(folder, tokenizer, architecture)


def inputs(tokenizer: StudioTokenizer) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    pad = tokenizer.pad_id or 0
    ids = generator.integers(5, tokenizer.vocab_size, (3, LENGTH)).astype(np.int32)
    ids[1, 9:] = pad
    return {
        "input_ids": ids,
        "attention_mask": (ids != pad).astype(np.int32),
        "decoder_input_ids": generator.integers(5, 61, (3, LENGTH)).astype(np.int32),
    }


def run_transformers4(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("transformers4.py"), folder],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_4_classes_match_transformers_5(both: Both, family: str) -> None:
    """Compares logits, pipelines and `generate`."""
    assert both.said["transformers"].startswith("4.57.")
    arrays = dict(np.load(both.folder / "inputs.npz"))
    names = ["input_ids", "attention_mask", "decoder_input_ids"][: 3 if has_halves(family) else 2]
    model, logits = reference(both.folder / family, {name: arrays[name] for name in names})
    said = np.load(both.folder / family / "said4.npz")
    assert set(said.files) == {"torch", *FOREIGN[family]}
    real = (arrays["attention_mask"] == 1) | has_halves(family)
    for kind in said.files:
        assert np.allclose(logits[real], said[kind][real], atol=1e-4, rtol=0), kind
    task = json.loads((both.folder / "task.json").read_text())
    ours = ask(both.folder / family, model, task)
    theirs = both.said[family]
    encode = both.tokenizer.encode_beginning if family in DECODERS else both.tokenizer.encode
    assert theirs["ids"] == ours["ids"] == encode(TEXT).tolist()
    assert theirs.get("written") == ours.get("written")
    assert theirs.get("written_ids") == ours.get("written_ids")
    assert ("filled" in theirs) == (family in FILLS)
    for one, other in zip(ours.get("filled", []), theirs.get("filled", []), strict=True):
        assert {**one, "score": 0} == {**other, "score": 0}
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)


def has_halves(family: str) -> bool:
    return family in ENCODER_DECODERS


@pytest.mark.parametrize("family", [family for family in FAMILIES if FOREIGN[family]])
def test_weights_saved_by_tensorflow_and_flax_are_read_from_one_or_several_files(
    both: Both, family: str
) -> None:
    ours = hf.read_weights(both.folder / family)
    for kind in FOREIGN[family]:
        name = {"TF": "tf_model.h5", "Flax": "flax_model.msgpack"}[kind]
        whole, parts = (both.folder / family / f"{kind}{end}" for end in ("", "-parts"))
        assert (whole / name).is_file() and (parts / f"{name}.index.json").is_file()
        for place in (whole, parts):
            found = hf.read_weights(place)
            assert found.keys() == ours.keys()
            assert all(np.array_equal(found[path], ours[path]) for path in ours), place


def test_tokenizers_give_the_same_ids_in_transformers_4(both: Both) -> None:
    kinds = {"byte_level_bpe", *OTHER_TOKENIZERS}
    now = cut(both.workspace.folder("tokenizer"), list(TEXTS))
    assert both.said["cut"] == now and set(now) == kinds
    for kind, ids in now.items():
        tokenizer = load(kind, both.workspace)
        assert [tokenizer.encode(text).tolist() for text in TEXTS] == ids
