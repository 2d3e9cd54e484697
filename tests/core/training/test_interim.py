"""Evaluation during training, and checkpoints by words seen."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from core.artifacts.locating import find_run_checkpoint
from core.config.corpus import CorpusConfig
from core.config.evaluate import EvaluateConfig
from core.config.shards import ShardConfig
from core.config.train import TrainConfig
from core.errors import ConfigError, CorpusError, StudioError
from core.evaluation.stage import run as evaluate
from core.records.events import FolderReporter, Reporter
from core.runs.client import submit
from core.shards.build import build
from core.training.interim import InterimEvaluation
from core.training.interim_options import check_used, evaluation_configs
from core.training.trainer import train
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.engines import run_on
from tests.hub_server import HubServer, run_with_hub
from tests.texts import sentences, write_sentences

STEPS = 12
FIGURES = ("pairs_accuracy", "text_bits_per_byte")
TRAIN_TWICE = """
import json, sys
from pathlib import Path
from core.workspace import Workspace
from tests.core.training.scenarios import config_of, metrics_of, run, weights_of
root, engine, values = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
workspace = Workspace(root / "workspace")
found = {}
plain = {**values, "save_total_limit": 1}
wanted = {**plain, "evaluate_every": 5, "evaluate_pairs_path": str(root / "pairs.jsonl"),
          "evaluate_text_path": str(root / "text.txt"), "checkpoint_words": "300 600 1k 1M"}
for name, options, stops in (("plain", plain, []), ("evaluated", wanted, [7])):
    config = config_of(engine, name=name, **options)
    for stop in stops:
        assert run(workspace, name, config, stop_at=stop) is None
    artifact = run(workspace, name, config)
    (workspace.runs / name / "run.json").write_text("{}")
    found[name] = {"weights": weights_of(workspace, name), "counts": artifact.manifest.counts,
                   "metrics": metrics_of(workspace, name)}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workspace, minimal pairs and a held-out text."""
    root = tmp_path_factory.mktemp("interim")
    some = [" ".join(one.split()[:3]) for one in sentences(12, seed=8)]
    rows = [
        {"sentence_good": one, "sentence_bad": one[::-1], "UID": "p", "linguistics_term": "a b/ü"}
        for one in some
    ]
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "text.txt").write_text("\n".join(some[:4]))
    return root


@pytest.fixture(scope="module")
def workspace(root: Path) -> Workspace:
    """A workspace with shards for encoders and for decoders."""
    workspace = Workspace(root / "workspace")
    make_tokenizer(workspace, "byte_level_bpe")
    text = write_sentences(workspace.root / "text.txt", 900)
    corpus = CorpusConfig(source="files", path=str(text), validation_percent=10)
    for objective in ("mlm", "clm"):
        config = ShardConfig(
            name=objective, tokenizer="byte_level_bpe", corpus=corpus, max_seq_length=32,
            preset="custom", objective=objective,
        )  # fmt: skip
        build(config, workspace)
    return workspace


@pytest.mark.slow(30)
@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "family", "shards"), [("tensorflow", "roberta", "mlm"), ("jax", "gpt2", "clm")]
)
def test_training_is_bit_identical_and_the_figures_are_those_of_the_stage(
    root: Path, workspace: Workspace, engine: str, family: str, shards: str
) -> None:
    for name in ("plain", "evaluated"):
        assert not (workspace.runs / name).exists()
    values = json.dumps({"family": family, "shards": shards})
    found: dict[str, Any] = run_on(engine, TRAIN_TWICE, root, engine, values)
    plain, evaluated = found["plain"], found["evaluated"]
    try:
        assert evaluated["weights"] == plain["weights"]
        for name in ("loss", "eval_loss", "learning_rate"):
            assert evaluated["metrics"][name] == plain["metrics"][name]
        check_curves(evaluated["metrics"], evaluated["counts"], workspace, shards)
        check_figures(evaluated["metrics"], root, workspace)
        check_words(workspace, evaluated["metrics"])
    finally:
        for name in ("plain", "evaluated"):
            (workspace.runs / name).rename(workspace.root / f"{name}-{engine}")


def check_curves(
    metrics: dict[str, Any], counts: dict[str, Any], workspace: Workspace, shards: str
) -> None:
    """Checks the axes and the cost of the figures."""
    of_shards = workspace.find("shards", shards).manifest.counts
    for name in (*FIGURES, "pairs_mean_over_phenomena", "pairs_accuracy/a_b/ü", "words_seen"):
        assert list(metrics[name]) == ["5", "10", "12"], name
    for step, tokens in metrics["tokens_seen"].items():
        assert tokens == int(step) * 8 * of_shards["row_length"]
        words = tokens * of_shards["train_words"] / of_shards["train_tokens"]
        assert metrics["words_seen"][step] == round(words)
        assert metrics["evaluation_seconds"][step] > 0
        assert 0 < metrics["evaluation_percent"][step] < 100
    assert counts["evaluation_seconds"] > 0 and 0 < counts["evaluation_percent"] < 100


def check_figures(metrics: dict[str, Any], root: Path, workspace: Workspace) -> None:
    """Evaluates the last checkpoint with the stage."""
    for task, path, name in (
        ("minimal_pairs", "pairs.jsonl", "accuracy"),
        ("text", "text.txt", "bits_per_byte"),
    ):
        config = EvaluateConfig(model=f"evaluated@{STEPS}", task=task, path=str(root / path))
        figures = evaluate(config, workspace).manifest.counts
        prefix = "pairs" if task == "minimal_pairs" else "text"
        measured = metrics[f"{prefix}_{name}"][str(STEPS)]
        assert measured == pytest.approx(figures[name], rel=1e-5)


def check_words(workspace: Workspace, metrics: dict[str, Any]) -> None:
    """Checks that the checkpoints are kept, at the first step that reaches their words."""
    folder = workspace.runs / "evaluated" / "checkpoints"
    assert len(list(folder.glob("step-*"))) <= 2
    per_step = metrics["words_seen"]["10"] / 10
    kept = sorted(int(path.name.removeprefix("words-")) for path in folder.glob("words-*"))
    assert kept == [words for words in (300, 600, 1000) if words <= STEPS * per_step]
    for words in kept:
        found = find_run_checkpoint(f"evaluated@words-{words}", workspace)
        assert found is not None
        assert (found.step - 1) * per_step < words <= found.step * per_step + 1
        assert (found.folder / "tokenizer.json").is_file()
        assert not list(found.folder.glob("training_state*"))


def test_data_of_an_evaluation_are_those_of_the_stage_with_a_prefix() -> None:
    config = TrainConfig(
        evaluate_every=5, evaluate_pairs_path="a.jsonl", evaluate_text_path="b.txt",
        evaluate_good_field="yes", evaluate_limit=7, evaluate_text_unit="paragraph",
    )  # fmt: skip
    pairs, text = evaluation_configs(config)
    assert pairs and text
    assert (pairs.task, pairs.path, pairs.good_field, pairs.limit) == (
        "minimal_pairs", "a.jsonl", "yes", 7,
    )  # fmt: skip
    assert (text.task, text.path, text.text_unit) == ("text", "b.txt", "paragraph")
    assert evaluation_configs(TrainConfig(evaluate_text_path="b.txt"))[0] is None
    pairs, text = evaluation_configs(TrainConfig(evaluate_every=5))
    assert pairs and pairs.dataset == "nyu-mll/blimp" and text is None
    pairs, text = evaluation_configs(
        TrainConfig(
            evaluate_text_dataset_name="a/b", evaluate_text_split="test", evaluate_split="x"
        )
    )
    assert pairs is None and text and (text.dataset, text.split) == ("a/b", "test")


def test_options_of_evaluations_have_their_names_and_places_in_training() -> None:
    names = (
        "every pairs_path text_path dataset_name dataset_config split text_dataset_name "
        "text_dataset_config text_split limit good_field bad_field paradigm_field phenomenon_field "
        "text_unit text_column context_tokens encoding encoding_errors file_format csv_header "
        "delimiter quoting"
    )
    fields = list(TrainConfig.model_fields)
    first = fields.index("evaluate_every")
    options = fields[first : fields.index("sample_predictions")]
    assert options == [f"evaluate_{name}" for name in names.split()]
    assert TrainConfig.fields_outside_identity().issuperset(options)
    with pytest.raises(ConfigError, match="evaluate_limit has an invalid value") as caught:
        TrainConfig(evaluate_limit=0)
    assert caught.value.field == "evaluate_limit"


@pytest.mark.parametrize(
    "name", ["evaluate_pairs_path", "evaluate_text_path", "evaluate_text_dataset_name",
             "evaluate_dataset_name", "evaluate_split", "evaluate_limit"],
)  # fmt: skip
def test_data_without_an_interval_are_refused(name: str, tmp_path: Path) -> None:
    config = TrainConfig.parse({"shards": "rows", name: "7"})
    for start in (train, lambda one, place: submit(place, "train", one)):
        with pytest.raises(ConfigError, match=f"{name} has no effect without evaluate_every") as at:
            start(config, Workspace(tmp_path))
        assert at.value.field == "evaluate_every"


def test_options_of_evaluations_without_effect_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A ship.")
    text = {"evaluate_text_path": str(tmp_path / "a.txt")}
    pairs = {"evaluate_pairs_path": "a.jsonl"}
    check_used(TrainConfig(evaluate_every=5, evaluate_text_split="train"))
    check_used(TrainConfig(evaluate_every=5, **pairs, **text, evaluate_good_field="good"))
    for values, name in (
        ({**text, "evaluate_text_dataset_name": "a/b"}, "evaluate_text_dataset_name"),
        ({**pairs, "evaluate_dataset_name": "a/b"}, "evaluate_dataset_name"),
        ({**text, "evaluate_dataset_name": "a/b"}, "evaluate_dataset_name"),
        ({**pairs, "evaluate_text_split": "test"}, "evaluate_text_split"),
        ({**text, "evaluate_good_field": "good"}, "evaluate_good_field"),
        ({**pairs, "evaluate_context_tokens": 8}, "evaluate_context_tokens"),
        ({**pairs, **text, "evaluate_quoting": "no"}, "evaluate_quoting"),
    ):
        with pytest.raises(ConfigError, match=f"^{name} has no effect") as caught:
            check_used(TrainConfig.parse({"evaluate_every": 5, **values}))
        assert caught.value.field == name


def test_resumed_run_keeps_options_without_effect(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "train-20250102-030405-ab12"
    (run / "checkpoints").mkdir(parents=True)
    config = TrainConfig(shards="nobody", evaluate_text_path="a.txt")
    with pytest.raises(StudioError, match="nobody"):
        train(config, Workspace(tmp_path), FolderReporter(run))


def test_advice_names_options_of_training(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,It runs.\n2,It ran.\n")
    config = TrainConfig(evaluate_every=5, evaluate_text_path=str(tmp_path / "a.csv"))
    with pytest.raises(ConfigError, match="set evaluate_csv_header to yes") as caught:
        InterimEvaluation(config, Reporter())
    assert caught.value.field == "evaluate_csv_header"
    values = {"evaluate_csv_header": "no", "evaluate_text_column": "2"}
    InterimEvaluation(config.model_copy(update=values), Reporter())


class Notes(Reporter):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str, **fields: Any) -> None:
        self.notes.append(message)


def figures_of(config: TrainConfig, folder: Path, reporter: Reporter) -> dict[str, float]:
    """Evaluates a model with random weights once."""
    place = Workspace(Path(mkdtemp(dir=folder)))
    tokenizer = make_tokenizer(place, "byte_level_bpe")
    interim = InterimEvaluation(config, reporter)
    found = interim.run(folder, lambda place: write_checkpoint(place, tokenizer), lambda note: None)
    assert found is not None
    return found


def test_phenomena_and_sources_of_text_have_figures_of_their_own(tmp_path: Path) -> None:
    rows = [
        {"sentence_good": "a ship", "sentence_bad": "ship a", "UID": "p", "linguistics_term": name}
        for name in ("binding", *(f"kind {number}" for number in range(60)))
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("en/news.txt", "no/news.txt"):
        (tmp_path / "texts" / name).parent.mkdir(parents=True)
        (tmp_path / "texts" / name).write_text("A ship runs.\n" * len(name.split("n")))
    reporter = Notes()
    config = TrainConfig(
        evaluate_every=5, evaluate_pairs_path=str(tmp_path / "pairs.jsonl"),
        evaluate_text_path=str(tmp_path / "texts"),
    )  # fmt: skip
    found = figures_of(config, tmp_path, reporter)
    assert sum(name.startswith("pairs_accuracy/") for name in found) == 50
    assert "Of 61 parts of the pairs, the first 50 have curves" in reporter.notes
    for figure in ("loss", "perplexity", "bits_per_byte"):
        values = [found[f"text_{figure}/{source}/news.txt"] for source in ("en", "no")]
        assert values[0] == pytest.approx(values[1]) == pytest.approx(found[f"text_{figure}"])
    assert {"pairs_official_accuracy", "pairs_mean_over_paradigms"} <= found.keys()
    alone = config.model_copy(update={"evaluate_text_path": str(tmp_path / "texts" / "en")})
    assert not any("text_loss/" in name for name in figures_of(alone, tmp_path, reporter))


HUB_TEXT = """
import json, sys
from pathlib import Path
from core.config import TrainConfig
from core.records.events import Reporter
from core.training.interim import InterimEvaluation
from tests.core.training.test_interim import figures_of
values = dict(evaluate_text_dataset_name="me/texts", evaluate_text_split="test")
print(json.dumps(sorted(figures_of(TrainConfig(**values), Path(sys.argv[1]), Reporter()))))
try:
    InterimEvaluation(TrainConfig(**{**values, "evaluate_text_split": "dev"}), Reporter())
except Exception as error:
    print(error.field)
"""


@pytest.mark.slow
def test_text_of_the_hub_is_evaluated_during_training(tmp_path: Path) -> None:
    server = HubServer()
    server.add("datasets", "me/texts", {"test.jsonl": b'{"text": "A ship."}\n{"text": "No."}\n'})
    try:
        done = run_with_hub(server.url, tmp_path, "-c", HUB_TEXT, str(tmp_path))
    finally:
        server.close()
    assert done.returncode == 0, done.stderr[-3000:]
    figures, field = done.stdout.splitlines()[-2:]
    assert json.loads(figures) == ["text_bits_per_byte", "text_loss", "text_perplexity"]
    assert field == "evaluate_text_split"


def test_missing_data_are_reported_by_their_option_before_training(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"sentence_good": "a"}\n')
    pairs = TrainConfig(evaluate_every=5, evaluate_pairs_path=str(tmp_path / "pairs.jsonl"))
    with pytest.raises(ConfigError, match="no field 'sentence_bad'") as caught:
        InterimEvaluation(pairs, Reporter())
    assert caught.value.field == "evaluate_bad_field"
    text = TrainConfig(evaluate_every=5, evaluate_text_path=str(tmp_path / "nothing.txt"))
    with pytest.raises(CorpusError) as missing:
        InterimEvaluation(text, Reporter())
    assert missing.value.field == "evaluate_text_path"
