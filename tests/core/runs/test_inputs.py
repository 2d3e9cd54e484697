"""A run whose input does not exist is refused before it is queued."""

from __future__ import annotations

import pytest

from core.__main__ import main
from core.errors import StudioError
from core.runs.inputs import check_inputs
from core.stages.registry import STAGES
from core.store import RunRow, Store
from core.workspace.workspace import Workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Has the shards `rows`, and a queued run that will make the tokenizer `soon`."""
    workspace = Workspace(tmp_path_factory.mktemp("inputs") / "home")
    workspace.make_root()
    with workspace.new_artifact("shards", "rows") as draft:
        (draft.folder / "data").write_text("it")
    store = Store.open(workspace)
    run = RunRow(id="queued", stage="tokenizer", state="queued", config={"name": "soon"}, after=[])
    run.created = 1.0
    store.add_run(run)
    store.close()
    return workspace


CASES = [
    ("train", {"shards": "rosw"}, "shards", "did you mean rows?"),
    ("train", {"mixture": "rows=1 nosuch=2"}, "mixture", "'nosuch'"),
    ("train", {}, "shards", "Received: nothing"),
    ("train", {"shards": "rows", "checkpoint": "nosuch"}, "checkpoint", "'nosuch'"),
    ("train", {"shards": "rows", "evaluate_text_path": "no.txt"}, "evaluate_text_path", "no.txt"),
    ("shards", {"tokenizer": "nosuch"}, "tokenizer", "'nosuch'"),
    ("tokenizer", {"corpus": {"path": "no/*.txt"}}, "path", "No file matches"),
    ("tokenizer", {"corpus": {"source": "corpus", "corpus_name": "x"}}, "corpus_name", "'x'"),
    ("evaluate", {"model": "nosuch"}, "model", "'nosuch'"),
    ("finetune", {"model": "me/it", "train_path": "no.csv"}, "train_path", "no.csv"),
    ("push", {"kind": "shards", "shards": "x", "repo_id": "me/x"}, "shards", "'x'"),
]


@pytest.mark.parametrize(("stage", "values", "field", "said"), CASES)
def test_missing_input_is_refused_by_its_field(
    workspace: Workspace, stage: str, values: dict, field: str, said: str
) -> None:
    model = STAGES[stage].config
    if "corpus" in values:
        values = {"corpus": {"source": "files", **values["corpus"]}}
    with pytest.raises(StudioError) as refused:
        check_inputs(workspace, model.parse(values))
    assert refused.value.field == field and said in str(refused.value)


@pytest.mark.parametrize(
    ("stage", "values"),
    [
        ("train", {"shards": "rows"}),
        ("train", {"shards": "gs://bucket/rows", "checkpoint": "owner/model"}),
        ("preflight", {}),
        ("shards", {"tokenizer": "owner/it"}),
        ("push", {"kind": "shards", "shards": "rows", "repo_id": "me/rows"}),
        ("shards", {"tokenizer": "soon"}),
    ],
)
def test_input_that_is_there_or_will_be_is_accepted(
    workspace: Workspace, stage: str, values: dict
) -> None:
    check_inputs(workspace, STAGES[stage].config.parse(values))


def test_command_with_a_missing_input_queues_nothing(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--workspace", str(workspace.root)]
    assert main(["train", "--shards", "nosuch", *place]) == 2
    assert "'nosuch' were not found" in capsys.readouterr().err
    assert [row.id for row in Store.open(workspace).list_runs(limit=10)] == ["queued"]
