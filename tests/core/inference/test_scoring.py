"""Perplexity, compared with the losses of transformers' classes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from core.errors import ConfigError
from core.inference.scoring import _describe, _encode
from core.tokenizer.loading import StudioTokenizer
from core.workspace.workspace import Workspace
from tests.checkpoints import LENGTH, make_tokenizer, write_checkpoint, write_writer
from tests.engines import ENGINES, run_on

TEXTS = ("The small house sleeps in winter.", "Ünïcode 한국어 🙂 <mask> here", "ab")

ASK = """
import contextlib, io, json, sys
from core import Workspace, perplexity
from core.__main__ import main
from core.errors import StudioError
workspace = Workspace(sys.argv[1])

def answer(model, text):
    try:
        return perplexity(model, text, workspace=workspace)
    except StudioError as error:
        return [type(error).__name__, error.field, str(error)]

said = [answer(*call) for call in json.loads(sys.argv[2])]
printed = []
for form in ([], ["--json"]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        words = ["perplexity", "gpt2", "The small house", "--workspace", sys.argv[1], *form]
        assert main(words) == 0
    printed.append(out.getvalue())
print(json.dumps([said, printed]))
"""
REFUSED: list[tuple[str, Any, list[str]]] = [
    ("t5", "a text", ["ConfigError", "model", "can't score a text"]),
    ("bart", "a text", ["ConfigError", "model", "can't score a text"]),
    ("gpt2", " ", ["ConfigError", "text", "text to score is empty"]),
    ("gpt2", 5, ["ConfigError", "text", "int"]),
    ("roberta", "the " * LENGTH, ["ConfigError", "text", f"at most {LENGTH} tokens"]),
    ("roberta", "<pad><mask>", ["ConfigError", "text", "no tokens to score"]),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    for family in ("gpt2", "t5", "bart"):
        with workspace.new_artifact("model", family) as draft:
            write_writer(draft.folder, tokenizer, family)
    with workspace.new_artifact("model", "roberta") as draft:
        write_checkpoint(draft.folder, tokenizer)
    return workspace


def reference_scores(folder: Path, text: str) -> tuple[list[int], list[float]]:
    """A text's ids and PyTorch's loss of each; NaN for the first token of GPT-2."""
    torch = pytest.importorskip("torch", reason="pip install torch==2.13.0 (PyTorch is the judge)")
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor(tokenizer(text).input_ids)
    with torch.no_grad():
        if folder.name == "gpt2":
            ids = ids[ids != tokenizer.eos_token_id]
            model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
            said = model(ids[None], labels=ids[None])
            logs = said.logits[0].log_softmax(-1)[:-1]
            losses = [-one[token].item() for one, token in zip(logs, ids[1:], strict=True)]
            assert sum(losses) / len(losses) == pytest.approx(said.loss.item(), abs=1e-4)
            return ids.tolist(), [math.nan, *losses]
        model = transformers.RobertaForMaskedLM.from_pretrained(folder).eval()
        masked = ids.repeat(len(ids), 1)
        masked.fill_diagonal_(tokenizer.mask_token_id)
        logs = model(masked).logits.log_softmax(-1)
        return ids.tolist(), [-logs[i, i, token].item() for i, token in enumerate(ids)]


@pytest.mark.parametrize("engine", ENGINES)
def test_perplexity_matches_transformers(engine: str, workspace: Workspace) -> None:
    texts = TEXTS[: 3 if engine == "jax" else 1]
    asked = [(family, text) for family in ("gpt2", "roberta") for text in texts]
    calls = [*asked, *((model, text) for model, text, _ in REFUSED)]
    said, (plain, as_json) = run_on(engine, ASK, workspace.root, json.dumps(calls))
    for (family, text), found in zip(asked, said, strict=False):
        ids, theirs = reference_scores(workspace.folder("model") / family, text)
        assert [one["token"] for one in found["tokens"]] == ids
        scored = [
            (one["loss"], loss)
            for one, loss in zip(found["tokens"], theirs, strict=True)
            if one["loss"] is not None
        ]
        assert all(ours == pytest.approx(loss, abs=1e-3) for ours, loss in scored)
        mean = sum(loss for _, loss in scored) / len(scored)
        assert found["num_tokens"] == len(scored) >= 1
        assert found["loss"] == pytest.approx(mean, abs=1e-3)
        assert found["perplexity"] == pytest.approx(math.exp(mean), rel=1e-2)
        assert found["kind"] == {"gpt2": "exact", "roberta": "pseudo"}[family]
        # Special tokens and literal masks are not scored.
        special = {"<s>", "</s>", "<mask>"}
        unscored = {one["token_str"] for one in found["tokens"] if one["loss"] is None}
        assert unscored <= special and "<s>" in unscored
    for (_, _, (kind, field, words)), refusal in zip(REFUSED, said[len(asked) :], strict=True):
        assert refusal[:2] == [kind, field] and words in refusal[2], refusal
    tokens = json.loads(as_json)["tokens"]
    assert len(plain.splitlines()) == len(tokens) + 1
    assert plain.splitlines()[-1].startswith("perplexity ")


def test_text_that_encodes_to_no_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tokens to score") as caught:
        _encode("\u200b", lambda _: np.zeros(0, np.int32), LENGTH)
    assert caught.value.field == "text"


@pytest.mark.parametrize(
    ("kind", "unknown", "scored"),
    [("exact", "<unk>", [2, 3]), ("pseudo", "<unk>", [3]), ("exact", "</s>", [3])],
)
def test_unknown_tokens_are_scored_by_decoders_only(
    tmp_path: Path, kind: str, unknown: str, scored: list[int]
) -> None:
    """Start and end tokens are not scored, although GPT-2's tokenizer calls them unknown."""
    special = ["<s>", "</s>", "<unk>"]
    words = {word: number for number, word in enumerate([*special, "a"])}
    backend = Tokenizer(models.WordLevel(words, "<unk>"))
    backend.add_special_tokens(special)
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"unk_token": unknown}))
    found = _describe(
        np.arange(4, dtype=np.int32),
        iter([math.nan, 1.0, 1.0, 1.0]),
        StudioTokenizer(tmp_path),
        kind,
    )
    assert [one["token"] for one in found["tokens"] if one["loss"] is not None] == scored
    assert found["num_tokens"] == len(scored)


@pytest.mark.parametrize("engine", ENGINES)
def test_openvino_and_backend_have_equal_perplexities(engine: str, workspace: Workspace) -> None:
    code = """
        import json, sys
        from pathlib import Path
        from core import perplexity
        from core.inference import FillMask
        from core.inference.scoring import _describe, _score_one_by_one
        folder, text = Path(sys.argv[1]), sys.argv[2]
        filler = FillMask(folder, on_engine=True)
        ids = filler.tokenizer.encode(text)
        losses = [loss for some in _score_one_by_one(filler, ids) for loss in some]
        found = _describe(ids, losses, filler.tokenizer, "pseudo")
        print(json.dumps([found, perplexity(folder, text), type(filler.model).__name__]))
    """
    ours, graph, model = run_on(engine, code, workspace.folder("model") / "roberta", TEXTS[0])
    assert model == "BackendModel"
    assert ours["num_tokens"] == graph["num_tokens"] > 5
    assert ours["loss"] == pytest.approx(graph["loss"], rel=1e-4)
