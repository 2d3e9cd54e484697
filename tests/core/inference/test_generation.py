"""Generated texts, compared with transformers' `generate`; sampling, compared with its warpers."""

from __future__ import annotations

import json
import shutil
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.inference.generation import with_sentinels
from core.inference.sampling import Sampler, Sampling, probabilities
from core.workspace.workspace import Workspace
from tests.checkpoints import LENGTH, make_tokenizer, write_checkpoint, write_writer
from tests.engines import ENGINES, run_on

DECODERS = ("gpt2", "llama", "qwen3")
FAMILIES = (*DECODERS, "t5", "bart")
PROMPTS = ("The small house", "t", "The old ship never sleeps", "Ünïcode 한 🙂")
NEW_TOKENS = 12
FIRST_TOKENS = 8
GREEDY = {"max_new_tokens": NEW_TOKENS, "do_sample": False}

# Sends many requests; an answer is the result, the pieces of the stream, or an error.
ASK = """
import json, sys
from core import Workspace, fill_mask, generate, generate_stream
from core.errors import StudioError
workspace = Workspace(sys.argv[1])

def pieces_and_end(stream):
    pieces = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return [pieces, end.value]

def answer(function, arguments, options):
    try:
        if function == "stream":
            return pieces_and_end(generate_stream(*arguments, workspace=workspace, **options))
        asked = {"generate": generate, "fill_mask": fill_mask}[function]
        return asked(*arguments, workspace=workspace, **options)
    except StudioError as error:
        return [type(error).__name__, error.field, str(error)]

print(json.dumps([answer(*call) for call in json.loads(sys.argv[2])]))
"""

Call = tuple[str, list[Any], dict[str, Any]]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with one model per family, named after it, and a RoBERTa model."""
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    for family in FAMILIES:
        with workspace.new_artifact("model", family) as draft:
            write_writer(draft.folder, tokenizer, family)
    with workspace.new_artifact("model", "roberta") as draft:
        write_checkpoint(draft.folder, tokenizer)
    return workspace


def ask(engine: str, workspace: Workspace, calls: list[Call]) -> list[Any]:
    found: list[Any] = run_on(engine, ASK, workspace.root, json.dumps(calls))
    assert len(found) == len(calls)
    return found


def reference(folder: Path, family: str, prompt: str, new_tokens: int = NEW_TOKENS) -> list[int]:
    """The ids that transformers generates greedily."""
    torch = pytest.importorskip("torch", reason="pip install torch==2.13.0 (PyTorch is the judge)")
    import transformers

    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    kind = getattr(transformers, name)
    ids = transformers.AutoTokenizer.from_pretrained(folder)(prompt).input_ids
    given = torch.tensor([ids])
    settings = {"max_new_tokens": new_tokens, "do_sample": False, "num_beams": 1}
    model = kind.from_pretrained(folder).eval()
    written = model.generate(given, attention_mask=torch.ones_like(given), **settings)[0]
    return written[len(ids) if family in DECODERS else 1 :].tolist()


@cache
def greedy_texts(engine: str, workspace: Workspace) -> dict[tuple[str, str], dict[str, Any]]:
    """Greedy generations by family and prompt."""
    asked = [(family, prompt) for family in FAMILIES for prompt in PROMPTS]
    calls: list[Call] = [("generate", list(one), GREEDY) for one in asked]
    return dict(zip(asked, ask(engine, workspace, calls), strict=True))


@pytest.mark.slow(25)
@pytest.mark.parametrize("engine", ENGINES)
def test_greedy_generation_matches_transformers(engine: str, workspace: Workspace) -> None:
    for (family, prompt), said in greedy_texts(engine, workspace).items():
        theirs = reference(workspace.folder("model") / family, family, prompt)
        assert len(set(theirs)) > 1
        assert said["token_ids"] == theirs, (family, prompt)
        assert said["num_new_tokens"] == len(theirs)
        assert said["generated_text"] == (prompt if family in DECODERS else "") + said["text"]


def test_model_folders_work_in_transformers_pipelines_and_generate(
    workspace: Workspace,
) -> None:
    """The folders declare all special tokens: no arguments set them."""
    pytest.importorskip("torch", reason="pip install torch==2.13.0 (PyTorch is the judge)")
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

    ours = greedy_texts("jax", workspace)
    t5, bart = (ours[family, PROMPTS[0]] for family in ("t5", "bart"))
    for family in DECODERS:
        writer = pipeline("text-generation", model=str(workspace.folder("model") / family))
        written = writer(PROMPTS[0], **GREEDY)[0]["generated_text"]
        assert written == ours[family, PROMPTS[0]]["generated_text"]
    for family, said in (("t5", t5), ("bart", bart)):
        folder = workspace.folder("model") / family
        given = AutoTokenizer.from_pretrained(folder)(PROMPTS[0], return_tensors="pt")
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        written = model.generate(**given, **GREEDY)[0].tolist()
        assert written[1:] == said["token_ids"]


# Odd ones are written into config.json.
SETTINGS: list[dict[str, Any]] = [
    {"suppress_tokens": ["first"], "begin_suppress_tokens": ["second"]},
    {"forced_bos_token_id": 7, "forced_eos_token_id": [9], "begin_suppress_tokens": ["first"],
     "decoder_start_token_id": 11},
    {"eos_token_id": ["first", "fourth"], "min_new_tokens": 2},
    {"eos_token_id": ["fourth"], "min_length": 3, "num_beams": 4, "pad_token_id": None},
    {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2,
     "encoder_repetition_penalty": 1.5},
    {"bad_words_ids": [["first"], ["second", "third"]], "sequence_bias": [[["fourth"], 2.5]]},
    {"bos_token_id": 13, "decoder_start_token_id": None, "forced_eos_token_id": 5},
]  # fmt: skip
# For texts with fewer different tokens.
SPARE = (50, 60, 70, 80)


def with_tokens(value: Any, tokens: dict[str, int]) -> Any:
    """Replaces names of tokens by their ids."""
    if isinstance(value, dict):
        return {name: with_tokens(one, tokens) for name, one in value.items()}
    if isinstance(value, list):
        return [with_tokens(one, tokens) for one in value]
    return tokens[value] if isinstance(value, str) else value


@pytest.mark.slow(40)
def test_generation_follows_the_files_as_transformers_does(
    workspace: Workspace, tmp_path: Path
) -> None:
    """In `generation_config.json`, which replaces what `config.json` says, or in that alone."""
    calls: list[Call] = []
    wanted = []
    for family, (number, changes) in product(FAMILIES, enumerate(SETTINGS)):
        source = workspace.folder("model") / family
        ids = reference(source, family, PROMPTS[0])
        names = ("first", "second", "third", "fourth")
        given = with_tokens(changes, dict(zip(names, dict.fromkeys([*ids, *SPARE]), strict=False)))
        folder = tmp_path / f"{family}-{number}"
        shutil.copytree(source, folder)
        name = "config.json" if number % 2 else "generation_config.json"
        values = json.loads((folder / name).read_text("utf-8"))
        if name == "config.json":
            (folder / "generation_config.json").unlink()
        else:
            starts = ("bos_token_id", "decoder_start_token_id")
            values = {one: value for one, value in values.items() if one in starts}
        (folder / name).write_text(json.dumps({**values, **given}), "utf-8")
        calls.append(("generate", [str(folder), PROMPTS[0]], GREEDY))
        wanted.append(reference(folder, family, PROMPTS[0]))
    found = [one["token_ids"] for one in ask("jax", workspace, calls)]
    assert found == wanted
    assert len(set(map(tuple, wanted))) > len(wanted) // 2


@pytest.mark.parametrize("engine", ENGINES)
def test_generation_stops_at_the_end_of_text_token(
    engine: str, workspace: Workspace, tmp_path: Path
) -> None:
    folder = workspace.folder("model") / "gpt2"
    wanted = reference(folder, "gpt2", PROMPTS[0])
    place = next(at for at in range(3, NEW_TOKENS) if wanted[at] not in wanted[:at])
    ending = write_writer(tmp_path / "ending", load_tokenizer(workspace), "gpt2")
    for name in ("config.json", "generation_config.json"):
        config = json.loads((ending / name).read_text("utf-8"))
        (ending / name).write_text(json.dumps({**config, "eos_token_id": wanted[place]}), "utf-8")
    greedy = {"max_new_tokens": NEW_TOKENS, "temperature": 0}
    (said,) = ask(engine, workspace, [("generate", [str(ending), PROMPTS[0]], greedy)])
    assert said["token_ids"] == wanted[: place + 1] == reference(ending, "gpt2", PROMPTS[0])
    assert said["finish_reason"] == "eos"
    assert said["text"] == load_tokenizer(workspace).decode(wanted[:place])


@pytest.mark.slow(4)
@pytest.mark.parametrize("engine", ENGINES)
def test_gpt2_with_an_eos_id_outside_its_vocabulary_generates(
    engine: str, workspace: Workspace, tmp_path: Path
) -> None:
    """transformers' default config has this id for a model with fewer tokens than GPT-2."""
    folder = write_writer(tmp_path / "small", load_tokenizer(workspace), "gpt2")
    for name in ("config.json", "generation_config.json"):
        config = json.loads((folder / name).read_text("utf-8"))
        config.pop("pad_token_id", None)
        (folder / name).write_text(json.dumps({**config, "eos_token_id": 50_256}), "utf-8")
    greedy = {"max_new_tokens": NEW_TOKENS, "temperature": 0}
    (said,) = ask(engine, workspace, [("generate", [str(folder), PROMPTS[0]], greedy)])
    assert said["token_ids"] == reference(folder, "gpt2", PROMPTS[0])


def load_tokenizer(workspace: Workspace) -> Any:
    from core.tokenizer.loading import load

    return load("byte_level_bpe", workspace)


@pytest.mark.slow(7)
@pytest.mark.parametrize("engine", ENGINES)
def test_sampling_follows_the_settings_and_the_seed(engine: str, workspace: Workspace) -> None:
    prompt, drawn = PROMPTS[0], {"max_new_tokens": 20, "seed": 5, "top_k": 40, "top_p": 0.9}
    calls: list[Call] = [
        ("generate", ["gpt2", prompt], drawn),
        ("stream", ["gpt2", prompt], drawn),
        ("generate", ["gpt2", prompt], {**drawn, "seed": 6}),
        ("generate", ["gpt2", prompt], {"max_new_tokens": 20, "top_k": 1, "seed": 7}),
        ("generate", ["gpt2", prompt], {"max_new_tokens": 20, "top_p": 1e-9, "seed": 8}),
        ("generate", ["gpt2", prompt], {"max_new_tokens": 20, "temperature": 0, "seed": 9}),
        ("generate", ["gpt2", prompt], {"max_new_tokens": 20, "top_k": None, "dtype": "bfloat16"}),
        ("stream", ["t5", prompt], {"max_new_tokens": 20}),
        ("generate", ["gpt2", prompt], {"max_new_tokens": LENGTH, "temperature": 0}),
        ("generate", ["gpt2", "the\ud83d"], {"max_new_tokens": 2}),
    ]
    one, (pieces, end), other, *greedy, rough, (t5_pieces, t5_end), full, torn = ask(
        engine, workspace, calls
    )
    assert torn["generated_text"].startswith("the?")
    assert one == end
    assert other["text"] != one["text"]
    assert len(pieces) > 3
    assert "".join(pieces) == one["text"]
    assert "".join(t5_pieces) == t5_end["text"] == t5_end["generated_text"]
    assert greedy[0] == greedy[1] == greedy[2]
    assert rough["num_new_tokens"] == 20 or rough["finish_reason"] == "eos"
    assert one["text"] == load_tokenizer(workspace).decode(one["token_ids"])
    # No position is left: the last generated token is never fed back.
    assert full["finish_reason"] == "positions"
    assert full["num_prompt_tokens"] + full["num_new_tokens"] == LENGTH
    assert full["token_ids"][:20] == greedy[0]["token_ids"]


def test_invalid_input_is_refused_with_an_error_naming_the_field(workspace: Workspace) -> None:
    text = PROMPTS[0]
    wrong: list[tuple[str, list[Any], dict[str, Any], list[str]]] = [
        ("generate", ["roberta", text], {}, ["ConfigError", "model", "fill_mask"]),
        ("fill_mask", ["gpt2", "a <mask>"], {}, ["ConfigError", "model", "generate"]),
        ("fill_mask", ["t5", "a <mask>"], {}, ["ConfigError", "model", "generate"]),
        ("generate", ["nowhere", text], {}, ["ConfigError", "model", "nowhere"]),
        ("generate", ["gpt2", ""], {}, ["ConfigError", "prompt", "The prompt is empty"]),
        ("generate", ["gpt2", " \n"], {}, ["ConfigError", "prompt", "The prompt is empty"]),
        ("generate", ["gpt2", 5], {}, ["ConfigError", "prompt", "int"]),
        ("stream", ["gpt2", "x" * 99], {}, ["ConfigError", "prompt", f"to {LENGTH - 1} tokens"]),
        ("generate", ["bart", "x" * 99], {}, ["ConfigError", "prompt", f"to {LENGTH} tokens"]),
    ]
    numbers: list[tuple[str, list[Any]]] = [
        ("max_new_tokens", [0, -1, 2.0, True, 4097, None]),
        ("temperature", [-0.1, 101, float("nan"), float("inf"), "1", None, True]),
        ("top_k", [-1, 1.5, "5", True]),
        ("top_p", [0, -1, 1.01, float("nan"), None]),
        ("seed", [-1, 1.5, 1 << 63, None]),
    ]
    for name, values in numbers:
        for value in values:
            options = {"max_new_tokens": 5, name: value}
            wrong.append(("generate", ["gpt2", text], options, ["ConfigError", name, repr(value)]))
    found = ask("jax", workspace, [call[:3] for call in wrong])
    for (*call, (kind, field, words)), refusal in zip(wrong, found, strict=True):
        assert refusal[:2] == [kind, field], (call, refusal)
        assert words in refusal[2], (call, refusal)


def test_sampled_tokens_are_within_top_k_and_top_p() -> None:
    generator = np.random.default_rng(0)
    for trial in range(200):
        logits = generator.normal(0, generator.uniform(0.1, 5), 50).astype(np.float32)
        top_k, top_p = int(generator.integers(0, 60)), float(generator.uniform(0.01, 1))
        temperature = float(generator.uniform(0.1, 3))
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=trial)
        shares = np.exp((logits - logits.max()).astype(np.float64) / temperature)
        order = np.argsort(-shares)[: top_k or None]
        mass = np.cumsum(shares[order]) / shares[order].sum()
        allowed = order[: int(np.searchsorted(mass, top_p)) + 1]
        sampler = Sampler(sampling)
        drawn = {sampler.choose(logits) for _ in range(50)}
        assert drawn <= set(allowed.tolist())
        assert set(np.flatnonzero(probabilities(logits, sampling))) == set(allowed.tolist())


def test_probabilities_match_transformers_logits_warpers() -> None:
    torch = pytest.importorskip("torch", reason="pip install torch==2.13.0 (PyTorch is the judge)")
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    generator = np.random.default_rng(1)
    for _ in range(100):
        logits = generator.normal(0, 2, 64).astype(np.float32)
        sampling = Sampling(
            temperature=float(generator.uniform(0.2, 2)),
            top_k=int(generator.integers(1, 70)),
            top_p=float(generator.uniform(0.05, 0.99)),
        )
        scores = torch.tensor(logits)[None].double()
        for warper in (
            TemperatureLogitsWarper(sampling.temperature),
            TopKLogitsWarper(sampling.top_k),
            TopPLogitsWarper(sampling.top_p),
        ):
            scores = warper(None, scores)
        theirs = scores.softmax(-1)[0].numpy()
        assert np.abs(probabilities(logits, sampling) - theirs).max() < 1e-9


def test_tokens_are_sampled_with_their_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(Sampling(seed=3))
    counts = np.bincount([sampler.choose(logits) for _ in range(20_000)], minlength=4)
    assert np.abs(counts / 20_000 - [0.5, 0.3, 0.15, 0.05]).max() < 0.015


def test_masks_become_sentinels_in_order() -> None:
    assert with_sentinels("The <mask> is <mask>.") == "The <extra_id_0> is <extra_id_1>."
    assert with_sentinels("no mask") == "no mask"
