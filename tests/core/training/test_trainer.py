"""Whole training runs in their own processes, on shards built from generated sentences."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.artifacts.checkpoint import Checkpoints, EvalResults, verify
from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.errors import ConfigError, TokenizerError
from core.records.events import Reporter
from core.shards.build import build
from core.tokenizer.training import train as train_tokenizer
from core.training.trainer import train
from core.workspace.manifests import read_manifest
from core.workspace.workspace import Workspace
from tests.core.artifacts.test_checkpoint import Listener
from tests.core.training.scenarios import STEPS
from tests.damage import damages_of, leave, with_a_small_disk
from tests.engines import ENGINES, run_anew
from tests.texts import write_sentences

_ROOT = Path(__file__).parents[3]
_ON_BOTH = ("whole", "stopped", "counted", "weights_taken_over", "left_for_the_other")
_ON_ONE = (
    "aborted",
    "changed",
    "checkpoints_gone",
    "damaged_record",
    "full_disk",
    "diverged",
    "stopped_in_the_last_validation",
    "ended_before_the_first_save",
    "rolled_back",
    "extended",
    "settled",
)
# Compiling takes half as long as with TensorFlow.
_ONE = "jax"
_FIGURES = ("loss", "learning_rate", "epoch", "eval_loss", "eval_accuracy", "eval_perplexity")

Results = dict[str, Any]


def make_inputs(root: Path) -> Workspace:
    """Makes a workspace with two tokenizers and the shards `rows`."""
    workspace = Workspace(root)
    corpus = CorpusConfig(source="files", path=str(write_sentences(root / "text.txt", 900)))
    for name, size in (("words", 64), ("others", 60)):
        train_tokenizer(
            TokenizerConfig(name=name, preset="custom", corpus=corpus, vocab_size=size),
            workspace,
            Reporter(),
        )
    build(
        ShardConfig(
            name="rows", preset="custom", corpus=corpus, tokenizer="words", max_seq_length=16
        ),
        workspace,
        Reporter(),
    )
    return workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_inputs(tmp_path_factory.mktemp("studio"))
    text = write_sentences(workspace.root / "more.txt", 900, seed=1)
    corpus = CorpusConfig(source="files", path=str(text))
    for name, tokenizer in (("more", "words"), ("foreign", "others")):
        shards = ShardConfig(
            name=name, preset="custom", corpus=corpus, tokenizer=tokenizer, max_seq_length=16
        )
        build(shards, workspace, Reporter())
    return workspace


@pytest.fixture(scope="module")
def results(workspace: Workspace) -> dict[str, Results]:
    """The result of every scenario, by backend."""
    tensorflow, jax = ENGINES
    found = {tensorflow: _play(tensorflow, workspace, *_ON_BOTH)}
    found[jax] = _play(jax, workspace, *_ON_BOTH, *_ON_ONE, "taken_from_the_other")
    found[tensorflow].update(_play(tensorflow, workspace, "taken_from_the_other"))
    return found


@pytest.fixture(params=ENGINES)
def one(request: pytest.FixtureRequest, results: dict[str, Results]) -> Results:
    """The scenarios' results on one backend."""
    return results[request.param]


def _play(engine: str, workspace: Workspace, *scenarios: str) -> Results:
    command = [sys.executable, "-m", "tests.core.training.scenarios", engine, workspace.root]
    done = subprocess.run(
        [*with_a_small_disk(workspace.runs / f"full-{engine}"), *map(str, command), *scenarios],
        cwd=_ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow(3)
def test_run_reports_its_metrics(one: Results) -> None:
    metrics = one["whole"]["metrics"]
    assert list(metrics["loss"]) == ["3", "6", "9", "12"]
    assert list(metrics["eval_loss"]) == ["0", "5", "10", "12"]
    assert list(metrics["frequency_baseline_loss"]) == ["0"]
    assert metrics["learning_rate"]["3"] == pytest.approx(3e-3 * (1 - 1 / 11))
    assert all(speed > 0 for speed in metrics["tokens_per_second"].values())
    assert all(0 <= share <= 100 for share in metrics["data_wait_percent"].values())
    assert metrics["eval_perplexity"]["12"] == pytest.approx(np.exp(metrics["eval_loss"]["12"]))


@pytest.mark.slow(3)
def test_first_eval_loss_is_that_of_a_uniform_prediction(one: Results) -> None:
    assert one["whole"]["metrics"]["eval_loss"]["0"] == pytest.approx(np.log(64), abs=0.1)


@pytest.mark.slow(3)
def test_first_validation_is_at_the_first_eval_step_by_default(
    results: dict[str, Results],
) -> None:
    metrics = results[_ONE]["ended_before_the_first_save"]["metrics"]
    assert list(metrics["eval_loss"]) == ["5", "10", "12"]
    assert list(metrics["frequency_baseline_loss"]) == ["5"]


@pytest.mark.slow(3)
def test_log_frequency_output_bias_starts_at_the_unigram_baseline(
    results: dict[str, Results],
) -> None:
    metrics = results[_ONE]["aborted"]["metrics"]
    baseline = metrics["frequency_baseline_loss"]["0"]
    assert metrics["eval_loss"]["0"] == pytest.approx(baseline, abs=0.02)
    assert baseline < np.log(64) - 0.1


@pytest.mark.slow(3)
def test_run_can_start_from_cooccurrence_embeddings(results: dict[str, Results]) -> None:
    found = [results[engine]["counted"] for engine in ENGINES]
    tables = [np.array(one["words"]) for one in found]
    np.testing.assert_allclose(*tables, atol=1e-6)
    special = 5
    occurs = np.array(found[0]["counts"][special:]) > 0
    lengths = np.linalg.norm(tables[0], axis=1)
    assert occurs.sum() > 10
    np.testing.assert_allclose(lengths[special:][occurs], 0.8, atol=1e-5)
    # Special tokens keep their random initialisation.
    assert (lengths[:special] < 0.3).all()


@pytest.mark.slow(3)
@pytest.mark.parametrize("engine", ENGINES)
def test_run_can_start_from_local_attention_position_embeddings(
    results: dict[str, Results], engine: str
) -> None:
    table = np.array(results[engine]["counted"]["positions"])
    padding = 3
    # RoBERTa has no position embedding for padding.
    assert not table[padding].any()
    products = table[padding + 1 :] @ table[padding + 1 :].T
    for distance in range(4):
        assert np.ptp(np.diagonal(products, distance)) < 1e-5
    assert products[0, 0] == pytest.approx(1, abs=1e-5)
    assert products[0, 0] > products[0, 1] > products[0, 2] > products[0, 3]


@pytest.mark.slow(3)
def test_best_checkpoint_becomes_the_model(one: Results) -> None:
    whole = one["whole"]
    losses = whole["metrics"]["eval_loss"]
    assert whole["counts"]["eval_loss"] == min(losses[step] for step in ("5", "10", "12"))
    assert losses[str(whole["counts"]["best_step"])] == whole["counts"]["eval_loss"]
    assert whole["counts"]["num_train_steps"] == STEPS
    assert whole["counts"]["tokens"] == STEPS * 8 * 16
    assert whole["run"].startswith("whole-")
    assert set(whole["inputs"]) == {"shards", "tokenizer"}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} < set(
        whole["files"]
    )
    assert {"eval_results.json", "training_config.json", "manifest.json"} < set(whole["files"])
    assert not any("training_state" in name for name in whole["files"])
    assert whole["output"] == whole["files"]


@pytest.mark.slow(3)
def test_eval_results_and_tensorboard_events_are_written_to_the_run_folder(one: Results) -> None:
    whole = one["whole"]
    assert whole["checkpoints"] == ["eval_results.json", "step-00000010", "step-00000012"]
    assert set(whole["eval_results"]) == set(EvalResults(0, 0, 0, 0, 0).to_json())
    assert whole["eval_results"]["eval_loss"] == whole["metrics"]["eval_loss"]["12"]
    assert whole["tensorboard"] == 1


@pytest.mark.slow(3)
def test_resumed_run_has_the_weights_of_an_uninterrupted_run(one: Results) -> None:
    """The run uses dropout, and its newest checkpoint was damaged."""
    assert one["stopped"]["weights"] == one["whole"]["weights"]
    for figure in _FIGURES:
        assert one["stopped"]["metrics"][figure] == one["whole"]["metrics"][figure]


@pytest.mark.slow(3)
def test_stop_saves_a_checkpoint_at_the_current_step(one: Results) -> None:
    assert one["stopped"]["saved"] == ["step-00000005", "step-00000007"]


@pytest.mark.slow(3)
def test_damaged_checkpoint_is_reported_and_the_previous_one_is_used(one: Results) -> None:
    assert one["stopped"]["newest"] == "step-00000009"
    (warning,) = one["stopped"]["warnings"]
    assert "step 9 is damaged" in warning and "model.safetensors" in warning
    assert "step 7" in warning
    assert one["stopped"]["notes"].count("Resuming from step 7") == 2


@pytest.mark.slow(3)
def test_damaged_record_stops_the_run_or_is_skipped_and_counted(
    results: dict[str, Results],
) -> None:
    found = results[_ONE]["damaged_record"]
    assert found["record"] in found["stopped"]
    (warning,) = found["warnings"]
    assert warning.startswith(f"Skipped a record, 1 so far: {found['record']}")
    (warning,) = found["measured_warnings"]
    assert warning.startswith(f"Skipped a record, 1 so far: {found['validation_record']}")


@pytest.mark.slow(3)
def test_auto_precision_is_measured_once_and_recorded(results: dict[str, Results]) -> None:
    found = results[_ONE]["settled"]
    assert found["chosen"] in ("float32", "mixed_bfloat16")
    said = [note for note in found["notes"] if note.startswith("Computing in")]
    assert len(said) == 1 and "times as fast" in said[0]


@pytest.mark.slow(3)
def test_resumed_run_keeps_its_resolved_learning_rate(
    results: dict[str, Results],
) -> None:
    found = results[_ONE]["settled"]
    assert found["rate"] == found["rate_by_width"]


@pytest.mark.slow(3)
def test_run_stopped_during_the_last_validation_resumes_with_the_same_results(
    results: dict[str, Results],
) -> None:
    late, whole = (results[_ONE][name] for name in ("stopped_in_the_last_validation", "whole"))
    assert "12" not in late["before"]
    assert {**late["counts"], "seconds": 0} == {**whole["counts"], "seconds": 0}


@pytest.mark.slow(3)
def test_run_that_restarts_from_scratch_reports_it(results: dict[str, Results]) -> None:
    early, whole = (results[_ONE][name] for name in ("ended_before_the_first_save", "whole"))
    assert early["resumed"] == [-1]
    assert {**early["counts"], "seconds": 0} == {**whole["counts"], "seconds": 0}


@pytest.mark.slow(3)
def test_aborted_run_saves_no_further_checkpoint(results: dict[str, Results]) -> None:
    one = results[_ONE]
    assert one["aborted"]["checkpoints"] == ["step-00000005"]


@pytest.mark.slow(3)
def test_resume_with_other_settings_is_refused(results: dict[str, Results]) -> None:
    refused = results[_ONE]["changed"]
    for field, received in (("learning_rate", "0.5"), ("seed", "9"), ("weight_decay", "0.7")):
        assert "other settings" in refused[field]
        assert f"Received: {field}={received}." in refused[field]


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    ("changed", "name", "differ"),
    [("shards", "more", ["shards"]), ("tokenizer", "foreign", ["shards", "tokenizer"])],
)
def test_resume_with_other_data_is_refused(
    workspace: Workspace, results: dict[str, Results], changed: str, name: str, differ: list[str]
) -> None:
    message = results[_ONE]["changed"][changed]
    before, now = (workspace.find("shards", one).manifest for one in ("rows", name))
    prints = [
        {"shards": shards.fingerprint, "tokenizer": shards.inputs["tokenizer"]}
        for shards in (before, now)
    ]
    expected, received = (", ".join(f"{d}={one[d]!r}" for d in differ) for one in prints)
    assert f"Expected: {expected}. Received: {received}." in message


@pytest.mark.slow(3)
def test_run_without_its_checkpoints_is_not_restarted(results: dict[str, Results]) -> None:
    refused = results[_ONE]["checkpoints_gone"]["refused"]
    assert "are missing" in refused and "step 1 " in refused


@pytest.mark.slow(3)
def test_damage_to_any_file_of_the_newest_checkpoint_selects_the_previous_one(
    workspace: Workspace, results: dict[str, Results], tmp_path: Path
) -> None:
    shutil.copytree(workspace.runs / "whole-tensorflow" / "checkpoints", tmp_path / "saved")
    newest = Checkpoints(tmp_path / "saved").path(STEPS)
    names = {path.name for path in newest.iterdir()}
    assert names > {"model.safetensors", "training_state.safetensors", "tokenizer_config.json"}
    for name in sorted(names):
        content = (newest / name).read_bytes()
        for damage, damaged in damages_of(content):
            leave(newest / name, damaged)
            listener = Listener()
            found = Checkpoints(newest.parent).newest_valid(listener)
            assert found is not None and found.name == "step-00000010", (name, damage)
            (warning,) = listener.warnings
            assert "step 12 is damaged" in warning and name in warning, (name, damage)
            (newest.parent / f"damaged-{newest.name}").rename(newest)
            (newest / name).write_bytes(content)
    verify(newest)


@pytest.mark.slow(3)
def test_evaluate_only_reproduces_the_runs_eval_loss(one: Results) -> None:
    measured, whole = one["weights_taken_over"], one["whole"]
    assert measured["measured_path"] == whole["path"]
    assert measured["measured"]["eval_loss"] == pytest.approx(whole["counts"]["eval_loss"])
    assert "tokens" not in measured["measured"], "these are the figures of another run"
    assert read_manifest(Path(whole["path"])).counts == whole["counts"]


@pytest.mark.slow(3)
def test_training_continues_from_the_weights_of_another_run(one: Results) -> None:
    further = one["weights_taken_over"]["further"]["eval_loss"]
    assert further["0"] == pytest.approx(one["whole"]["counts"]["eval_loss"])
    assert further["12"] < further["0"]
    assert one["weights_taken_over"]["name"].startswith("roberta-1x16-rows")


@pytest.mark.slow(3)
def test_full_disk_costs_a_checkpoint_and_not_the_run(results: dict[str, Results]) -> None:
    found = results[_ONE]["full_disk"]
    assert found["num_train_steps"] == STEPS
    assert found["steps_then"] == [3]
    assert found["steps"] == [12, 9, 3]
    (warning,) = found["warnings"]
    assert "Step 6: the checkpoint could not be saved" in warning
    assert found["numbers"] == list(range(1, len(found["numbers"]) + 1))


@pytest.mark.slow(3)
def test_non_finite_loss_ends_the_run_with_that_reason(
    results: dict[str, Results],
) -> None:
    one = results[_ONE]
    assert "NaN or infinite" in one["diverged"]["error"]
    assert "3 rollbacks" in one["diverged"]["error"]


@pytest.mark.slow(3)
def test_batches_that_break_the_loss_are_skipped(results: dict[str, Results]) -> None:
    found = results[_ONE]["rolled_back"]
    assert found["steps"] == STEPS
    assert found["resumed_at"] == [5]
    (warning,) = found["warnings"]
    assert "rolling back to step 5" in warning
    assert "batches 5 to 8" in warning
    assert found["skipped"] == 4


@pytest.mark.slow(3)
def test_run_killed_after_a_rollback_skips_the_same_batches(
    results: dict[str, Results],
) -> None:
    found = results[_ONE]["rolled_back"]
    assert found["weights"] == found["weights_again"]
    assert len(found["warnings_again"]) == 1


@pytest.mark.slow(3)
def test_finished_run_can_be_extended_but_not_shortened(results: dict[str, Results]) -> None:
    found = results[_ONE]["extended"]
    assert found["steps"] == STEPS + 6
    assert found["names"][0] != found["names"][1]
    rates = list(found["rates"].values())
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0
    assert "extended, but not shortened" in found["refused"]


@pytest.mark.slow(3)
@pytest.mark.parametrize(("first", "second"), [ENGINES, ENGINES[::-1]])
def test_run_can_be_resumed_on_the_other_backend(
    results: dict[str, Results], first: str, second: str
) -> None:
    alone = results[first]["left_for_the_other"]["metrics"]
    passed = results[second]["taken_from_the_other"]["metrics"]
    for figure in ("loss", "eval_loss"):
        for step, value in alone[figure].items():
            assert passed[figure][step] == pytest.approx(value, abs=1e-3)


@pytest.mark.slow(3)
def test_trained_model_loads_in_transformers(
    workspace: Workspace, results: dict[str, Results]
) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    from transformers import AutoTokenizer, RobertaForMaskedLM

    folder = results[_ONE]["whole"]["path"]
    model, info = RobertaForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.pad_token_id == tokenizer.pad_token_id
    # Truncation uses the tokenizer's own model_max_length.
    ids = tokenizer("The river runs. " * 99, truncation=True, return_tensors="pt")["input_ids"]
    assert ids.shape[1] == tokenizer.model_max_length
    assert ids.shape[1] == model.config.max_position_embeddings - model.config.pad_token_id - 1
    with torch.no_grad():
        assert torch.isfinite(model(ids).logits).all()


def _refused(workspace: Workspace, **values: Any) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        train(TrainConfig(**{"shards": "rows", **values}), workspace, Reporter())
    return raised.value


@pytest.mark.parametrize(
    ("values", "words", "field"),
    [
        ({"shards": "nowhere"}, "nowhere", "shards"),
        ({"tokenizer": "others"}, "built with another tokenizer", "tokenizer"),
        (
            {"max_position_embeddings": 8},
            "max_position_embeddings allows",
            "max_position_embeddings",
        ),
        ({"per_replica_batch_size": 100_000}, "at least 100000", "per_replica_batch_size"),
        ({"hidden_size": 30, "num_attention_heads": 4}, "heads", "num_attention_heads"),
        ({"evaluate_only": True}, "evaluate_only needs a checkpoint", "checkpoint"),
        ({"checkpoint": "nowhere"}, "model 'nowhere' was not found", "checkpoint"),
        ({"name": "../up"}, "name", "name"),
    ],
)
def test_invalid_settings_are_refused_with_the_field_name(
    workspace: Workspace, values: dict[str, Any], words: str, field: str
) -> None:
    error = _refused(workspace, **values)
    assert words in str(error)
    assert error.field == field


def test_refusal_imports_no_backend(workspace: Workspace) -> None:
    loaded = run_anew(
        "tensorflow",
        """
        import json, sys
        from core.config import TrainConfig
        from core.errors import ConfigError, TokenizerError
        from core.training.trainer import train
        from core.workspace import Workspace, read_manifest
        try:
            train(TrainConfig(shards="rows", tokenizer="others"), Workspace(sys.argv[1]))
        except ConfigError:
            print(json.dumps([name for name in sys.modules if name in sys.argv[2:]]))
        """,
        workspace.root,
        *ENGINES,
        "keras",
    )
    assert loaded == []


def test_tokenizer_mismatch_names_both_tokenizers(workspace: Workspace) -> None:
    made_with = workspace.find("shards", "rows").manifest.inputs["tokenizer"]
    message = str(_refused(workspace, tokenizer="others"))
    assert made_with in message and "others" in message


def test_non_empty_output_folder_is_refused_and_left_alone(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    error = _refused(workspace, output=str(tmp_path))
    assert error.field == "output"
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_output_folder_that_cannot_be_created_is_refused_before_training(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    error = _refused(workspace, output=str(tmp_path / "file" / "model"))
    assert error.field == "output" and "is a file" in str(error)


def _without_mask(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        path = folder / name
        if path.is_file():
            path.write_text(path.read_text().replace("[MASK]", "[HIDE]").replace("mask", "hide"))


def _without_validation(folder: Path) -> None:
    for path in (folder / "validation").iterdir():
        path.unlink()


@pytest.fixture
def altered(workspace: Workspace, tmp_path: Path) -> Iterator[Callable[..., Workspace]]:
    """Copies the shards without their manifest, and alters the copy."""

    def alter(change: Callable[[Path], None]) -> Workspace:
        folder = tmp_path / "altered"
        shutil.copytree(workspace.folder("shards") / "rows", folder)
        (folder / "manifest.json").unlink()
        change(folder)
        return workspace

    return alter


def test_tokenizer_without_a_mask_token_is_refused(
    altered: Callable[..., Workspace], tmp_path: Path
) -> None:
    workspace = altered(lambda folder: _without_mask(folder / "tokenizer"))
    with pytest.raises(TokenizerError, match="a mask token") as raised:
        train(TrainConfig(shards=str(tmp_path / "altered")), workspace, Reporter())
    assert raised.value.field == "family"


def test_shards_without_validation_sequences_are_refused(
    altered: Callable[..., Workspace], tmp_path: Path
) -> None:
    error = _refused(altered(_without_validation), shards=str(tmp_path / "altered"))
    assert "no validation sequences" in str(error)
