"""Fill-mask inference, compared with transformers' pipeline."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import CheckpointError, StudioError
from core.inference.dynamic_batching import DynamicBatcher
from core.inference.masks import FillMask
from core.inference.packing import BatchPlan, Planner, Shape, Size
from core.models import hf
from core.workspace.workspace import Workspace
from tests.checkpoints import LENGTH, make_tokenizer, write_checkpoint, write_writer
from tests.engines import ENGINES, run_on

ALGORITHMS = {"unigram": "[MASK]", "byte_level_bpe": "<mask>"}
TEXTS = (
    "The small {mask} runs.",
    "{mask} horse, reads a golden book .",
    "the {mask} river {mask} slowly",
    "a new{mask}",
    "  don't {mask} , ``quoted'' \n{mask}{mask}",
    "Ünïcode 한국어 {mask} 🙂",
    "<pad> the <unk> {mask} [PAD]",
    "the old ship " + "never " * 10 + "{mask}",
    "{mask}",
)

FILL = """
import json, sys
from pathlib import Path
from core.inference import FillMask
found = {}
for folder, texts in json.loads(sys.argv[1]).items():
    exact, *rough = (
        FillMask(Path(folder), dtype, on_engine=True) for dtype in ("float32", "bfloat16", "auto")
    )
    found[folder] = [
        [exact([text], 6)[0] for text in texts],
        exact(texts, 6),
        *(filler(texts[:1], 6)[0] for filler in rough),
    ]
print(json.dumps(found))
"""

REFUSALS = """
import json, sys
from core import Workspace, fill_mask
from core.errors import StudioError
workspace = Workspace(sys.argv[1])

def refusal(*arguments, **options):
    try:
        fill_mask(*arguments, workspace=workspace, **options)
    except StudioError as error:
        return [type(error).__name__, error.field, str(error)]

print(json.dumps([refusal(*call[0], **call[1]) for call in json.loads(sys.argv[2])]))
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with one model per kind of tokenizer, named after the tokenizer."""
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    for algorithm in ALGORITHMS:
        tokenizer = make_tokenizer(workspace, algorithm)  # type: ignore[arg-type]
        with workspace.new_artifact("model", algorithm) as draft:
            write_checkpoint(draft.folder, tokenizer)
    with workspace.new_artifact("model", "bart") as draft:
        write_writer(draft.folder, tokenizer, "bart")
    return workspace


def flat(predictions: list[Any]) -> list[dict[str, Any]]:
    return [
        one for item in predictions for one in (flat(item) if isinstance(item, list) else [item])
    ]


def assert_equal(ours: list[Any], theirs: list[Any], tolerance: float = 1e-4) -> None:
    """Compares everything but the scores exactly, including how the lists are nested."""
    without_scores = [
        json.loads(json.dumps(one), object_hook=lambda found: {**found, "score": 0})
        for one in (ours, theirs)
    ]
    assert without_scores[0] == without_scores[1]
    for one, other in zip(flat(ours), flat(theirs), strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=tolerance)


@pytest.mark.parametrize("engine", ENGINES)
def test_predictions_match_the_transformers_pipeline(engine: str, workspace: Workspace) -> None:
    pytest.importorskip("torch", reason="pip install torch==2.13.0 (PyTorch is the judge)")
    from transformers import pipeline

    questions = {
        str(workspace.folder("model") / name): [text.replace("{mask}", mask) for text in texts]
        for name, mask, texts in (
            *((algorithm, mask, TEXTS) for algorithm, mask in ALGORITHMS.items()),
            ("bart", "<mask>", TEXTS[:3]),  # BART uses the byte-level BPE tokenizer.
        )
    }
    answers = run_on(engine, FILL, json.dumps(questions))
    for folder, texts in questions.items():
        one_by_one, together, *rough = answers[folder]
        judge = pipeline("fill-mask", model=folder, tokenizer=folder)
        for text, alone, among in zip(texts, one_by_one, together, strict=True):
            assert_equal(alone, judge(text, top_k=6))
            assert_equal(among, alone, tolerance=1e-5)
        # Rounding may swap near-equal predictions, so compare only the best score.
        for found in rough:
            best = one_by_one[0][0]["score"]
            assert found[0]["score"] == pytest.approx(best, rel=0.2, abs=0.01)


def test_predictions_are_json_serialisable_and_sorted_by_score(workspace: Workspace) -> None:
    code = """
        import json, sys
        from core import Workspace, fill_mask
        predictions = fill_mask("unigram", "the [MASK] runs", 200, workspace=Workspace(sys.argv[1]))
        print(json.dumps(predictions))
    """
    code = code.replace("200", str(vocabulary_of(workspace)))
    predictions = run_on("jax", code, workspace.root)
    scores = [one["score"] for one in predictions]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-5)
    assert sorted(one["token"] for one in predictions) == list(range(len(predictions)))


def test_fill_mask_reuses_the_model_that_prepare_warmed_up(workspace: Workspace) -> None:
    code = """
        import json, sys
        from core import Workspace, fill_mask
        from core.serving.demo import _DTYPE
        from core.inference import models, prepare
        workspace = Workspace(sys.argv[1])
        ready = list(prepare("unigram", workspace, _DTYPE))
        fill_mask("unigram", "the [MASK] runs", workspace=workspace, dtype=_DTYPE)
        print(json.dumps([_DTYPE, len(ready), len(models._kept)]))
    """
    dtype, ready, kept = run_on("jax", code, workspace.root)
    assert (dtype, kept) == ("auto", 1)
    assert ready > 0


def vocabulary_of(workspace: Workspace) -> int:
    return hf.read_architecture(workspace.folder("model") / "unigram").vocab_size


def test_invalid_input_is_refused_with_an_error_naming_the_field(
    workspace: Workspace, tmp_path: Path
) -> None:
    write_maskless_checkpoint(tmp_path / "maskless")
    (tmp_path / "empty").mkdir()
    text = "the [MASK] runs"
    vocabulary = vocabulary_of(workspace)
    calls: list[tuple[list[Any], dict[str, Any], list[str]]] = [
        (["unigram", "no mask"], {}, ["ConfigError", "text", "at least one [MASK]"]),
        (["byte_level_bpe", text], {}, ["ConfigError", "text", "at least one <mask>"]),
        (["unigram", ""], {}, ["ConfigError", "text", "has no mask"]),
        (["unigram", [text, "none"]], {}, ["ConfigError", "text", "'none'"]),
        (["unigram", [text, 5]], {}, ["ConfigError", "text", "int"]),
        (["unigram", text + " the" * LENGTH], {}, ["ConfigError", "text", f"at most {LENGTH} "]),
        (["unigram", text, 0], {}, ["ConfigError", "top_k", f"from 1 to {vocabulary}"]),
        (["unigram", text, vocabulary + 1], {}, ["ConfigError", "top_k", str(vocabulary + 1)]),
        (["unigram", text, 2.0], {}, ["ConfigError", "top_k", "2.0"]),
        (["nowhere", text], {}, ["ConfigError", "model", "nowhere"]),
        (
            ["unigram", text],
            {"dtype": "half"},
            ["ConfigError", "dtype", "Received: 'half'"],
        ),
        (["", text], {}, ["ConfigError", "model", "unigram"]),
        (["/no/such/folder", text], {}, ["ConfigError", "model", "/no/such/folder"]),
        ([str(tmp_path / "empty"), text], {}, ["CheckpointError", "", "There is no checkpoint"]),
        (
            [str(tmp_path / "maskless" / "checkpoint"), text],
            {},
            ["TokenizerError", "", "no mask token"],
        ),
    ]
    found = run_on("jax", REFUSALS, workspace.root, json.dumps([call[:2] for call in calls]))
    for (_, _, (kind, field, words)), refusal in zip(calls, found, strict=True):
        assert refusal is not None, words
        assert refusal[:2] == [kind, field], refusal
        assert words in refusal[2]


def write_maskless_checkpoint(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    from core.tokenizer.loading import load

    folder.mkdir()
    vocabulary = {"<unk>": 0, "<pad>": 1, "the": 2}
    Tokenizer(models.WordLevel(vocabulary, "<unk>")).save(str(folder / "tokenizer.json"))
    write_checkpoint(folder / "checkpoint", load(str(folder)))


def test_model_name_is_not_resolved_to_a_folder_of_that_name(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core.artifacts.finding import find_model
    from core.inference.masks import FillMask
    from core.tokenizer.loading import load

    write_checkpoint(tmp_path / "byte_level_bpe", load("unigram", workspace))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUDIO_HOME", str(workspace.root))
    elsewhere = Workspace(tmp_path / "elsewhere")
    assert FillMask(find_model("byte_level_bpe", elsewhere)).tokenizer.mask_token == "[MASK]"


def test_rewritten_checkpoint_is_reloaded(workspace: Workspace, tmp_path: Path) -> None:
    code = """
        import json, sys
        from pathlib import Path
        from core import Workspace, fill_mask
        from core.tokenizer import load
        from tests.checkpoints import write_checkpoint
        folder, tokenizer = Path(sys.argv[2]), load("unigram", Workspace(sys.argv[1]))
        scores = []
        for seed in (1, 1, 2):
            if len(scores) != 1:
                write_checkpoint(folder, tokenizer, seed)
            scores.append(fill_mask(folder, "the [MASK] runs")[0]["score"])
        print(json.dumps(scores))
    """
    first, again, other = run_on("jax", code, workspace.root, tmp_path / "model")
    assert first == again
    assert first != other


def test_tokenizer_larger_than_the_model_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    from core.inference.masks import FillMask
    from core.tokenizer.loading import load

    write_checkpoint(tmp_path / "model", load("unigram", workspace))
    load("byte_level_bpe", workspace).copy_to(tmp_path / "model")
    with pytest.raises(StudioError, match="doesn't fit the model"):
        FillMask(tmp_path / "model")


@pytest.mark.parametrize("order", ["engine named", "none named"])
def test_inference_uses_the_same_backend_as_training(order: str, workspace: Workspace) -> None:
    code = """
        import os, sys
        os.environ.pop("KERAS_BACKEND")
        if sys.argv[2] == "engine named":
            os.environ["KERAS_BACKEND"] = "jax"
        from core import Workspace, fill_mask
        fill_mask("bart", "the <mask> runs", workspace=Workspace(sys.argv[1]))
        import json, keras
        print(json.dumps(keras.backend.backend()))
    """
    found = run_on("jax", code, workspace.root, order)
    assert found == "jax" if order == "engine named" else found in ENGINES


def test_requests_use_a_compiled_shape_while_a_better_one_compiles(workspace: Workspace) -> None:
    code = """
        import json, sys, threading
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path
        from core.inference.masks import FillMask
        filler = FillMask(Path(sys.argv[1]), on_engine=True)
        model = filler.model
        prepare, asked, are_answered = model.warm_up, [], threading.Event()
        model.warm_up = lambda one: (asked.append(one), are_answered.wait(60), prepare(one))
        text = "[MASK]" + " the" * 16
        first = filler([text])
        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(lambda _: filler([text]), range(64)))
        found = [answer[0][0]["token"] for answer in (first, *answers)]
        ready = sorted(model.ready)
        are_answered.set()
        model.wait_until_warm()
        print(json.dumps([ready, asked, sorted(model.ready), len(set(found))]))
    """
    ready, asked, later, found = run_on("jax", code, workspace.folder("model") / "unigram")
    assert ready == [[1, 24, 1]]
    ((rows, *_),) = asked
    assert rows > 1
    assert later == [*ready, *asked]
    assert found == 1


PLAN = Planner(longest=128, mask_cost=0.1, shares_rows=True).plan
SMALL = Size(12, 1)


def test_waiting_requests_are_computed_in_one_batch() -> None:
    batches: list[list[list[str]]] = []
    first_is_computing, others_wait = threading.Event(), threading.Event()

    def compute(shape: Shape, rows: list[list[str]]) -> list[list[str]]:
        batches.append(rows)
        first_is_computing.set()
        assert others_wait.wait(20)
        return [[text.upper() for text in row] for row in rows]

    together = DynamicBatcher(compute, PLAN)
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(together, [(SMALL, "a")])]
        assert first_is_computing.wait(20)
        answers += [threads.submit(together, [(SMALL, text)]) for text in "bcd"]
        answers += [threads.submit(together, [(Size(30, 1), "e")])]
        while len(together._waiting) < 4:
            time.sleep(0.01)
        others_wait.set()
        assert [answer.result(20) for answer in answers] == [[text] for text in "ABCDE"]
    assert not together._leader
    # The first request that takes over the batch computes the others, too.
    assert batches[0] == [["a"]]
    assert len(batches) == 2
    assert sorted("".join(map("".join, batches[1]))) == list("bcde")


def test_failure_reaches_every_waiting_request() -> None:
    def compute(shape: Shape, rows: list[list[str]]) -> list[list[str]]:
        raise CheckpointError("The weights are damaged")

    together = DynamicBatcher(compute, PLAN)
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(together, [(SMALL, "a")]) for _ in range(2)]
        for answer in answers:
            with pytest.raises(CheckpointError, match="damaged"):
                answer.result(20)
    assert together._waiting == []


def test_answered_request_does_not_wait_for_other_requests() -> None:
    others_wait, last_may_end = threading.Event(), threading.Event()

    def compute(shape: Shape, rows: list[list[str]]) -> list[list[str]]:
        if rows == [["a"]]:
            assert others_wait.wait(20)
        if rows == [["c"]]:
            assert last_may_end.wait(20)
        return rows

    # With three waiting requests, the first and the last form a batch.
    together = DynamicBatcher(
        compute, lambda sizes: BatchPlan(Shape(1, 16, 1), [[0, 2] if len(sizes) == 3 else [0]])
    )
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(together, [(SMALL, "a")])]
        while together._leader is None or together._waiting:
            time.sleep(0.01)
        for number, text in enumerate("bcd", 1):
            answers.append(threads.submit(together, [(SMALL, text)]))
            while len(together._waiting) < number:
                time.sleep(0.01)
        others_wait.set()
        assert [answers[number].result(20) for number in (0, 1, 3)] == [["a"], ["b"], ["d"]]
        assert not answers[2].done()
        last_may_end.set()
        assert answers[2].result(20) == ["c"]


def test_requests_of_other_callers_interleave_with_a_long_list() -> None:
    computed: list[str] = []
    others_wait = threading.Event()

    def compute(shape: Shape, rows: list[list[str]]) -> list[list[str]]:
        ((text,),) = rows
        computed.append(text)
        if len(computed) == 1:
            assert others_wait.wait(20)
        return rows

    together = DynamicBatcher(compute, lambda sizes: BatchPlan(Shape(1, 16, 1), [[0]]))
    with ThreadPoolExecutor(3) as threads:
        many = threads.submit(together, [(SMALL, text) for text in "abcdefgh"])
        while not computed:
            time.sleep(0.01)
        others = []
        for number, text in enumerate("xy", 1):
            others.append(threads.submit(together, [(SMALL, text)]))
            while len(together._waiting) < 7 + number:
                time.sleep(0.01)
        others_wait.set()
        assert many.result(20) == list("abcdefgh")
        assert [one.result(20) for one in others] == [["x"], ["y"]]
    # Each further text of a call queues as if it had come one call later.
    assert "".join(computed) == "abxcydefgh"


@pytest.mark.parametrize("where", ["plan", "compute", "told"])
def test_interrupt_costs_no_other_request_its_answer(where: str) -> None:
    interrupts = iter([True])

    def interrupt(place: str) -> None:
        if place == where and next(interrupts, False):
            raise KeyboardInterrupt

    class Interrupted(DynamicBatcher):
        def _take(self, every: list[Any]) -> Any:
            taken = super()._take(every)
            interrupt("plan")
            return taken

        def _pass_on(self) -> None:
            interrupt("told")
            super()._pass_on()

    others_wait = threading.Event()

    def compute(shape: Shape, rows: list[list[str]]) -> list[list[str]]:
        assert others_wait.wait(20)
        interrupt("compute")
        return rows

    together = Interrupted(compute, PLAN)
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(together, [(SMALL, text)]) for text in "abcd"]
        while together._calls < 4:
            time.sleep(0.01)
        others_wait.set()
        ended = [answer.exception(20) for answer in answers]
    assert sum(type(one) is KeyboardInterrupt for one in ended) == 1
    assert sum(one is None for one in ended) == 3
    assert together._leader is None and together._waiting == []


def test_interrupted_leader_hands_over_to_another_waiting_request() -> None:
    others_wait = threading.Event()
    batches: list[list[list[str]]] = []

    def compute(shape: Shape, rows: list[list[str]]) -> list[list[str]]:
        batches.append(rows)
        if len(batches) == 1:
            assert others_wait.wait(20)
        if len(batches) == 2:
            raise KeyboardInterrupt
        return rows

    together = DynamicBatcher(compute, PLAN)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(together, [(SMALL, "a")])
        while not batches:
            time.sleep(0.01)
        others = [threads.submit(together, [(SMALL, text)]) for text in "bc"]
        while len(together._waiting) < 2:
            time.sleep(0.01)
        others_wait.set()
        assert first.result(20) == ["a"]
        ended = [other.exception(20) for other in others]
    assert sorted(map(type, ended), key=str) == [KeyboardInterrupt, type(None)]
    assert len(batches) == 3
    assert not together._leader and together._waiting == []


def test_aborted_request_leaves_nothing_queued() -> None:
    seen: list[str] = []

    def compute(shape: Shape, rows: list[list[str]]) -> list[list[str]]:
        ((text,),) = rows
        seen.append(text)
        if text == "b":
            raise KeyboardInterrupt
        if text == "c":
            raise CheckpointError("The weights are damaged")
        return rows

    together = DynamicBatcher(compute, lambda sizes: BatchPlan(Shape(1, 16, 1), [[0]]))
    for first, error in (("b", KeyboardInterrupt), ("c", CheckpointError)):
        with pytest.raises(error):
            together([(SMALL, text) for text in (first, "x", "x")])
        assert together._waiting == []
    assert seen == ["b", "c"]
    assert together([(SMALL, "a")]) == ["a"]


def test_long_list_is_computed_in_chunks(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler = FillMask(workspace.folder("model") / "unigram")
    asked: list[int] = []

    def score(encoded: list[Any]) -> list[Any]:
        asked.append(len(encoded))
        rows = np.zeros((1, vocabulary_of(workspace)), np.float32)
        rows[0, len(asked)] = 1.0
        return [rows] * len(encoded)

    monkeypatch.setattr(filler, "_probabilities", score)
    found = filler(["the [MASK] runs"] * 600, 1)
    assert asked == [256, 256, 88]
    assert [one[0]["token"] for one in found] == [1] * 256 + [2] * 256 + [3] * 88


def test_fill_mask_and_generation_share_a_models_weights(
    workspace: Workspace, tmp_path: Path
) -> None:
    code = """
        import json, sys
        from pathlib import Path
        import numpy as np
        from core.inference.generation import TextGenerator
        from core.inference.masks import FillMask
        from core.inference.models import _kept, keep, load_model
        from core.models import hf
        from core.tokenizer import load
        from core.workspace import Workspace
        from tests.checkpoints import write_writer
        folder, tokenizer = Path(sys.argv[2]), load("byte_level_bpe", Workspace(sys.argv[1]))
        write_writer(folder, tokenizer, "bart")
        writer, filler = TextGenerator(folder), FillMask(folder)
        model = writer._model
        filler(["a <mask>"])
        shared = load_model(folder, "float32") is model
        rough = load_model(folder, "bfloat16") is not model
        before = keep(folder, "float32", TextGenerator)
        write_writer(folder, tokenizer, "bart")
        after = keep(folder, "float32", TextGenerator)
        print(json.dumps([shared, rough, after is not before, len(_kept)]))
    """
    assert run_on("jax", code, workspace.root, tmp_path / "bart") == [True, True, True, 1]


def test_non_finite_weights_are_reported(workspace: Workspace, tmp_path: Path) -> None:
    for name, family in (("roberta", ""), ("gpt2", "gpt2")):
        code = """
            import json, sys
            from pathlib import Path
            import numpy as np
            from safetensors.numpy import load_file, save_file
            from core import fill_mask, perplexity
            from core.errors import StudioError
            from core.tokenizer import load
            from core.workspace import Workspace
            from tests.checkpoints import write_checkpoint, write_writer
            folder, family = Path(sys.argv[2]), sys.argv[3]
            tokenizer = load("byte_level_bpe", Workspace(sys.argv[1]))
            if family:
                write_writer(folder, tokenizer, family)
            else:
                write_checkpoint(folder, tokenizer)
            (folder / "manifest.json").unlink(missing_ok=True)
            weights = load_file(folder / "model.safetensors")
            weights = {name: np.full_like(values, np.nan) for name, values in weights.items()}
            save_file(weights, folder / "model.safetensors", {"format": "pt"})
            said = []
            for ask in [perplexity] + [fill_mask] * (not family):
                try:
                    ask(folder, "The small <mask> runs.")
                except StudioError as error:
                    said.append([type(error).__name__, str(error)])
            print(json.dumps(said))
        """
        said = run_on("jax", code, workspace.root, tmp_path / name, family)
        assert len(said) == (1 if family else 2)
        for kind, text in said:
            assert kind == "CheckpointError" and "NaN or infinite" in text
