"""Preflight: a run's needs on a TPU, from the TPU's compiler, without a TPU."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.config.preflight import PreflightConfig
from core.config.topologies import TOPOLOGIES, UTILISATION, find_topology
from core.errors import ConfigError
from core.training.preflight.report import SPREAD, step_seconds
from core.training.preflight.stage import next_guess, settled_for
from core.workspace.workspace import Workspace
from tests.core.training.test_trainer import make_inputs
from tests.engines import run_on

needs_libtpu = pytest.mark.skipif(
    not find_spec("libtpu"),
    reason="libtpu is not installed: pip install -r requirements-preflight.txt",
)

# Runs each preflight in this process; the first argument is the workspace.
_SCRIPT = """
import json, os, sys
from core import PreflightConfig, Workspace, preflight
from core.errors import StudioError

os.environ.pop("XLA_FLAGS", None)  # The TPU's compiler doesn't know the processors' flags.
workspace = Workspace(sys.argv[1])
common = dict(
    preset="custom", hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_train_steps=100, topology="v5e-4", largest_batch=False, dtype_policy="mixed_bfloat16",
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
said = []
for values in json.loads(sys.argv[2]):
    artifact = preflight(PreflightConfig(**{**common, **values}), workspace)
    said.append({**artifact.manifest.counts, "path": str(artifact.path)})
print(json.dumps(said))
"""
_WITHOUT_LIBTPU = """
from importlib import metadata
version = metadata.version
def hide(name):
    if name == "libtpu":
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = hide
"""
_WITHOUT_TIMING = """
from core.training.preflight import stage
stage._INPUT_SECONDS = 0.0
"""
_IN_FOUR_PIECES = """
from core.backends import constants
constants.MAX_LOGITS_PER_CHUNK = 8 * 64 * 4096 // 4
"""
_NUMBERS = {"vocab_size": 512, "max_seq_length": 64}


def say(folder: Path, *settings: dict[str, Any], before: str = "") -> list[dict[str, Any]]:
    return run_on("jax", before + _SCRIPT, folder, json.dumps(settings))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Four reports: on real shards; the same again; sharded; with a batch that cannot fit."""
    folder = tmp_path_factory.mktemp("preflight")
    make_inputs(folder)
    on_shards = {"shards": "rows", "price_per_chip_hour": 2.0}
    wide = {
        **_NUMBERS, "hidden_size": 256, "num_hidden_layers": 1, "trial": False,
        "per_replica_batch_size": 8,
    }  # fmt: skip
    return say(
        folder,
        on_shards,
        {**on_shards, "trial": False},
        {**wide, "sharding": "fsdp", "remat": True, "gradient_accumulation_steps": 2},
        {**wide, "vocab_size": 400_000, "hidden_size": 4096, "per_replica_batch_size": 1},
    )


@needs_libtpu
@pytest.mark.slow
def test_compiler_reports_memory_flops_time_and_cost_of_a_step(
    compiled: list[dict[str, Any]],
) -> None:
    report = compiled[0]
    assert report["fits"] and not report["estimated"] and not report["cached"]
    assert (report["chips"], report["cores"], report["global_batch_size"]) == (4, 4, 4 * 32)
    # Weights and two optimizer slots are the minimum per device.
    assert report["parameters"] * 12 < report["bytes_per_core"] < report["parameters"] * 400
    assert report["bytes_available_per_core"] == pytest.approx(15.75 * 2**30)
    assert report["bytes_missing_per_core"] == 0
    assert report["flops_per_step_per_core"] > 6 * report["tokens_per_step"] / 4
    best, worst = report["step_seconds"]
    assert best * SPREAD == pytest.approx(report["expected_step_seconds"])
    assert worst == pytest.approx(report["expected_step_seconds"] * SPREAD)
    assert 0 < report["utilisation"][0] < report["utilisation"][1] < 1
    assert report["hours"] == pytest.approx([best * 100 / 3600, worst * 100 / 3600])
    assert report["cost"] == pytest.approx([one * 4 * 2.0 for one in report["hours"]])
    assert report["num_train_epochs"] > 0
    assert report["checkpoint_disk_bytes"] > report["parameters"] * 12


@needs_libtpu
@pytest.mark.slow
def test_input_speed_and_five_training_steps_are_measured_locally(
    compiled: list[dict[str, Any]],
) -> None:
    report = compiled[0]
    assert report["input"]["measured_on_shards"]
    assert report["input"]["rows_per_second"] > 0
    assert report["input"]["keeps_up"] == (
        report["input"]["rows_per_second"] >= report["input"]["needed_rows_per_second_per_host"][1]
    )
    trial = report["trial"]
    assert trial["layers"] == trial["of_layers"] == 2
    assert len(set(trial["losses"])) == 5
    assert np.isfinite(trial["losses"]).all()


@needs_libtpu
@pytest.mark.slow
def test_equal_program_is_not_compiled_again(compiled: list[dict[str, Any]]) -> None:
    first, again = compiled[:2]
    assert again["cached"]
    assert again["compile_seconds"] == first["compile_seconds"]
    assert again["bytes_per_core"] == first["bytes_per_core"]
    assert again["path"] != first["path"]
    assert json.loads(Path(again["path"], "preflight.json").read_text())["cached"]


@needs_libtpu
@pytest.mark.slow
def test_sharded_weights_with_accumulation_compile(compiled: list[dict[str, Any]]) -> None:
    spread = compiled[2]
    assert spread["fits"]
    # Each device holds about a quarter of the weights and slots.
    assert spread["bytes_per_core"] < spread["parameters"] * 12
    assert spread["global_batch_size"] == 8 * 4 * 2
    assert not spread["input"]["measured_on_shards"]


@needs_libtpu
@pytest.mark.slow
def test_optimizer_cost_counts_once_with_gradient_accumulation(tmp_path: Path) -> None:
    # With so few tokens, most memory traffic is the optimizer's.
    few = {**_NUMBERS, "hidden_size": 128, "num_hidden_layers": 1, "per_replica_batch_size": 1}
    values = {**few, "trial": False}
    one, two = say(
        tmp_path, values, {**values, "gradient_accumulation_steps": 2}, before=_WITHOUT_TIMING
    )
    counted, twice = (
        (report["flops_per_step_per_core"], report["bytes_accessed_per_step_per_core"])
        for report in (one, two)
    )
    assert 1.5 * counted[0] < twice[0] < 2 * counted[0]
    twice_seconds = two["expected_step_seconds"]
    assert counted[1] < twice[1] < 1.5 * counted[1]
    assert 1.5 < twice_seconds / one["expected_step_seconds"] < 2.1


@needs_libtpu
@pytest.mark.slow
@pytest.mark.thorough
def test_flops_and_bytes_include_all_chunks_of_the_logits(tmp_path: Path) -> None:
    many = {"vocab_size": 4096, "max_seq_length": 64, "hidden_size": 128, "family": "gpt2"}
    values = {**many, "per_replica_batch_size": 8, "trial": False}
    (whole,) = say(tmp_path / "whole", values, before=_WITHOUT_TIMING)
    (pieces,) = say(tmp_path / "pieces", values, before=_WITHOUT_TIMING + _IN_FOUR_PIECES)
    for figure in ("flops_per_step_per_core", "bytes_accessed_per_step_per_core"):
        assert pieces[figure] == pytest.approx(whole[figure], rel=0.2), figure


@needs_libtpu
@pytest.mark.slow
def test_batch_that_does_not_fit_is_reported_with_the_compilers_figure(
    compiled: list[dict[str, Any]],
) -> None:
    refused = compiled[3]
    assert not refused["fits"]
    assert refused["bytes_per_core"] > refused["bytes_available_per_core"]
    assert refused["bytes_missing_per_core"] > 0
    assert "15.75G" in refused["compiler_message"]
    assert refused["step_seconds"] is None
    assert refused["advice"]


@pytest.mark.slow(12)
def test_needs_are_estimated_and_marked_as_such_without_the_compiler(tmp_path: Path) -> None:
    (report,) = say(tmp_path, {**_NUMBERS, "topology": "v3-8"}, before=_WITHOUT_LIBTPU)
    assert report["estimated"]
    assert "requirements-preflight.txt" in report["advice"]
    assert report["fits"] and report["bytes_per_core"] > report["parameters"] * 12
    assert report["step_seconds"] and report["trial"]["losses"]
    assert report["expected_step_seconds"] is None
    assert report["utilisation"] == list(UTILISATION)
    assert report["largest_per_replica_batch_size"] is None


@pytest.mark.slow(7)
def test_estimate_reports_a_batch_that_does_not_fit(tmp_path: Path) -> None:
    large = {"vocab_size": 400_000, "hidden_size": 4096, "num_hidden_layers": 1}
    values = {**_NUMBERS, **large, "per_replica_batch_size": 1, "trial": False}
    (report,) = say(tmp_path, values, before=_WITHOUT_LIBTPU)
    assert not report["fits"]
    assert report["bytes_missing_per_core"] > 0


@pytest.mark.slow(12)
def test_needs_on_gpus_are_estimated_by_formulas(tmp_path: Path) -> None:
    values = {**_NUMBERS, "topology": "h100x8", "trial": False, "price_per_chip_hour": 2.0}
    (report,) = say(tmp_path, values, before=_WITHOUT_TIMING)
    assert report["estimated"] and report["fits"] and not report["advice"]
    assert (report["chips"], report["cores"]) == (8, 8)
    assert report["utilisation"] == list(UTILISATION)
    assert report["cost"] == pytest.approx([16.0 * hours for hours in report["hours"]])


def test_missing_shards_and_dimensions_are_an_error(tmp_path: Path) -> None:
    from core.records.events import Reporter
    from core.training.preflight.subject import open_subject

    with pytest.raises(ConfigError, match="needs shards, or a vocabulary size") as raised:
        open_subject(PreflightConfig(vocab_size=100), Workspace(tmp_path), Reporter())
    assert raised.value.field in ("shards", "max_seq_length")


def test_model_config_of_another_family_is_refused_without_shards(tmp_path: Path) -> None:
    from core.records.events import Reporter
    from core.training.preflight.subject import open_subject

    t5 = {"model_type": "t5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**t5, "d_model": 16, "num_layers": 1}))
    values = {"preset": "custom", "model_config_path": str(path), **_NUMBERS}
    with pytest.raises(ConfigError, match="belongs to another family") as caught:
        open_subject(PreflightConfig(**values), Workspace(tmp_path), Reporter())
    assert caught.value.field == "family"
    found = open_subject(PreflightConfig(family="t5", **values), Workspace(tmp_path), Reporter())
    assert "decoder_input_ids" in found.example(2)


def test_too_few_sequences_for_a_step_are_refused_before_compilation(
    tmp_path: Path,
) -> None:
    from core.training.preflight import check

    workspace = make_inputs(tmp_path)
    values = {"preset": "custom", "shards": "rows", "topology": "v5e-4"}
    check(PreflightConfig(**values, per_replica_batch_size=2), workspace)
    with pytest.raises(ConfigError, match="fewer training sequences") as raised:
        check(PreflightConfig(**values, per_replica_batch_size=100_000), workspace)
    assert raised.value.field == "per_replica_batch_size"


def test_topologies_are_found_by_both_names() -> None:
    assert find_topology("v5e-8") is find_topology("v5litepod-8")
    assert [find_topology(name).cores for name in ("v3-8", "v4-8", "v5p-8")] == [8, 4, 4]
    with pytest.raises(ConfigError, match="v9-8") as raised:
        find_topology("v9-8")
    assert raised.value.field == "topology"


@needs_libtpu
@pytest.mark.slow
def test_topology_table_has_the_compilers_device_counts() -> None:
    code = """
        import json, os, sys
        import jax
        os.environ.pop("XLA_FLAGS", None)
        jax.config.update("jax_platforms", "cpu")
        from core.backends.jax.tpu_compiler import describe_devices
        from core.config.topologies import find_topology
        topology = find_topology(sys.argv[1])
        named = (topology.accelerator_type, topology.shape, topology.options)
        print(json.dumps([len(describe_devices(*named)), topology.cores]))
    """
    for generation in ("v3-8", "v4-8", "v5e-16", "v5p-8", "v6e-4"):
        found, tabulated = run_on("jax", code, generation)
        assert found == tabulated


@needs_libtpu
@pytest.mark.slow(60)
@pytest.mark.parametrize("topology", ["v3-8", "v5p-8"])
def test_decoder_with_long_sequences_compiles_with_and_without_the_attention_kernel(
    tmp_path: Path, topology: str
) -> None:
    numbers = {"vocab_size": 512, "max_seq_length": 1024, "num_hidden_layers": 1}
    values = {**numbers, "family": "gpt2", "topology": topology, "sharding": "fsdp"}
    (report,) = say(
        tmp_path,
        {**values, "per_replica_batch_size": 2, "trial": False},
        before=_WITHOUT_TIMING,
    )
    assert report["fits"] and report["expected_step_seconds"] > 0


def test_every_topology_of_the_form_is_in_the_table() -> None:
    for name in TOPOLOGIES:
        assert PreflightConfig(topology=name).topology == name


def test_step_time_is_bounded_by_flops_and_by_memory_bandwidth() -> None:
    chip = find_topology("v5e-1").chip
    flops = chip.flops_per_second
    best, worst = step_seconds(find_topology("v5e-1"), flops, None) or []
    assert (best, worst) == pytest.approx((1 / UTILISATION[1], 1 / UTILISATION[0]))
    best, worst = step_seconds(find_topology("v5e-1"), 1.0, chip.memory_bytes_per_second) or []
    assert best == pytest.approx(1.0)
    assert worst > best
    assert step_seconds(find_topology("v5e-1"), None, 1.0) is None


@pytest.mark.parametrize("per_row", [1.0, 7.3, 40.0])
@pytest.mark.parametrize("start", [1, 8, 1000])
def test_largest_batch_is_found_in_few_attempts(per_row: float, start: int) -> None:
    fixed, available = 100.0, 1000.0
    tried: dict[int, tuple[float, bool]] = {}
    guess: int | None = start
    while guess is not None:
        needed = fixed + per_row * guess
        tried[guess] = (needed, needed <= available)
        guess = next_guess(tried, fixed, available)
        assert len(tried) < 10
    largest = max(size for size, (_, fits) in tried.items() if fits)
    assert largest >= 0.85 * (available - fixed) / per_row - 8


def test_search_ends_if_a_batch_of_one_does_not_fit() -> None:
    assert next_guess({1: (2000.0, False)}, 1500.0, 1000.0) is None


def test_batch_size_is_the_one_that_a_training_on_the_tpu_derives(tmp_path: Path) -> None:
    workspace = make_inputs(tmp_path)
    sizes = {}
    for topology in ("v5e-4", "v5e-16"):
        config = PreflightConfig(
            preset="custom", shards="rows", num_train_steps=500, topology=topology
        )
        sizes[topology] = settled_for(config, workspace).per_replica_batch_size
    assert sizes["v5e-4"] > sizes["v5e-16"]
