"""Forms generated from config models: fields, defaults, validation and presets."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar, Literal

import gradio as gr
import pytest

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import field_extra, option, title_of
from core.config.presets import Preset
from core.config.push import PushConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.errors import ConfigError, TokenizerError
from core.stages.registry import STAGES
from core.workspace.workspace import Workspace
from ui.forms import Form, to_raw

ALL_CONFIGS = [CorpusConfig, *(stage.config for stage in STAGES.values())]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "workspace").mkdir()
    return Workspace(tmp_path / "workspace")


def rendered(model: type[StageConfig], workspace: Workspace, **options: Any) -> Form:
    with gr.Blocks():
        nested = {}
        if "corpus" in model.model_fields:
            nested = {"corpus": rendered(CorpusConfig, workspace)}
        form = Form(model, model.__name__.lower(), workspace, nested=nested, **options)
        form.render()
    return form


def values_of(form: Form, **typed: Any) -> list[Any]:
    """Returns the values sent by a form with typed fields; nested forms are empty."""
    return [typed, *({} for _ in form.inputs[1:])]


def problems(updates: dict[Any, Any], form: Form) -> dict[str, str]:
    return updates[form.problems]["problems"]


@pytest.mark.parametrize("model", ALL_CONFIGS)
def test_an_untouched_form_gives_the_defaults(
    model: type[StageConfig], workspace: Workspace
) -> None:
    form = rendered(model, workspace)
    assert form.parse(*values_of(form)) == model()


@pytest.mark.parametrize("model", ALL_CONFIGS)
def test_every_field_has_its_title_and_help(model: type[StageConfig], workspace: Workspace) -> None:
    form = rendered(model, workspace)
    for name, field in model.model_fields.items():
        if name in form.nested:
            continue
        component = form.components[name]
        assert component.label == title_of(name, field)
        assert component.info == field.description
        assert ("ps-advanced" in component.elem_classes) is not field_extra(field)["basic"]


def test_new_option_appears_in_the_form(workspace: Workspace) -> None:
    class WithMore(TokenizerConfig):
        dropout: float | None = option(None, "Skips merges now and then.", group="New", gt=0, lt=1)
        flavour: str = option("plain", "Suggested, not fixed.", choices=("plain", "odd"))

    form = rendered(WithMore, workspace)
    assert form.components["dropout"].info == "Skips merges now and then."
    assert form.parse(*values_of(form, dropout="0.25", flavour="mine")).dropout == 0.25


def test_numbers_are_shown_in_short_notation(workspace: Workspace) -> None:
    class Numbers(StageConfig):
        rate: float = option(1e-4, "")
        tiny: float = option(1e-8, "")
        epochs: float = option(1.0, "")
        size: int = option(50_265, "")

    form = rendered(Numbers, workspace)
    assert [one.value for one in form.components.values()] == ["0.0001", "1e-8", "1", "50265"]
    assert form.parse(*values_of(form)) == Numbers()


def test_empty_number_field_means_none(workspace: Workspace) -> None:
    form = rendered(TrainConfig, workspace)
    assert form.components["num_train_steps"].value == ""
    assert form.parse(*values_of(form)).num_train_steps is None


@pytest.mark.parametrize("typed", ["30,000", "30 000", "30_000", "30.000", " 30000 "])
def test_digits_may_be_grouped(workspace: Workspace, typed: str) -> None:
    form = rendered(TokenizerConfig, workspace)
    assert form.parse(*values_of(form, vocab_size=typed)).vocab_size == 30_000


@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("vocab_size", "3", "greater than or equal to 16"),
        ("vocab_size", "many", "Enter a whole number, such as 1000."),
        ("vocab_size", "100.5", "a whole number"),
        ("vocab_size", "100.0", "a whole number"),
        ("vocab_size", "1,000.000", "a whole number"),
        ("vocab_size", "0.100", "a whole number"),
        ("min_frequency", "0", "greater than or equal to 1"),
    ],
)
def test_invalid_value_is_explained_beside_its_field(
    workspace: Workspace, field: str, typed: str, said: str
) -> None:
    form = rendered(TokenizerConfig, workspace)
    handler = form.guarded(lambda *raw: {"parsed": form.parse(*raw)})
    updates = handler(*values_of(form, **{field: typed}))
    assert "parsed" not in updates
    assert said in problems(updates, form)[field]


@pytest.mark.parametrize(
    ("model", "field", "typed", "said"),
    [
        (TrainConfig, "learning_rate", "fast", "Enter a number, such as 0.1."),
        (TrainConfig, "max_grad_norm", "nan", "Enter a number, such as 0.1."),
        (TrainConfig, "mlm_probability", "2", "This should be less than or equal to 0.9."),
        (PushConfig, "repo_id", "my model", "Enter a name like my-model or owner/my-model"),
        (PushConfig, "revision", "feature/x", "Enter a name like trial-2"),
        (PushConfig, "language", "de;fr", "Enter comma-separated language codes"),
    ],
)
def test_validation_message_says_what_to_enter(
    workspace: Workspace, model: type[StageConfig], field: str, typed: str, said: str
) -> None:
    form = rendered(model, workspace)
    handler = form.guarded(lambda *raw: {"parsed": form.parse(*raw)})
    shown = problems(handler(*values_of(form, **{field: typed})), form)[field]
    assert said in shown and "^" not in shown


def test_all_invalid_fields_are_marked_at_once(workspace: Workspace) -> None:
    form = rendered(TrainConfig, workspace)
    handler = form.guarded(lambda *raw: {"parsed": form.parse(*raw)})
    updates = handler(*values_of(form, learning_rate="fast", seed="-1", mlm_probability="2"))
    assert set(problems(updates, form)) == {"learning_rate", "seed", "mlm_probability"}


def test_valid_form_has_no_problems(workspace: Workspace) -> None:
    form = rendered(TokenizerConfig, workspace)
    handler = form.guarded(lambda *raw: {"parsed": form.parse(*raw)})
    assert problems(handler(*values_of(form)), form) == {}


def test_library_error_is_shown_beside_the_field_it_names(workspace: Workspace) -> None:
    form = rendered(TokenizerConfig, workspace)

    def fail(*raw: Any) -> dict[Any, Any]:
        raise TokenizerError("The text is too small", fix="ask for less", field="vocab_size")

    shown = problems(form.guarded(fail)(*values_of(form)), form)
    assert shown == {"vocab_size": "The text is too small. What to do: ask for less."}


def test_an_error_without_a_field_becomes_a_notice(workspace: Workspace) -> None:
    form = rendered(TokenizerConfig, workspace)

    def fail(*raw: Any) -> dict[Any, Any]:
        raise TokenizerError("The <b>disk</b> is full", fix="make room")

    with pytest.raises(gr.Error) as error:
        form.guarded(fail)(*values_of(form))
    assert "make room" in error.value.message
    assert "<b>disk" not in error.value.message


def test_errors_while_typing_raise_no_notices(workspace: Workspace) -> None:
    form = rendered(TokenizerConfig, workspace)

    def fail(*raw: Any) -> dict[Any, Any]:
        raise TokenizerError("No")

    updates = form.guarded(fail, live=True, otherwise={"facts": ""})(*values_of(form))
    assert updates["facts"] == ""


def test_corpus_problem_is_marked_in_the_corpus_form(workspace: Workspace) -> None:
    form = rendered(ShardConfig, workspace)
    text = form.nested["corpus"]
    updates = form.guarded(lambda *raw: {"parsed": form.parse(*raw)}, live=True)(
        {}, {"limit": "-5"}
    )
    assert problems(updates, form) == {}
    assert "greater than or equal to 1" in problems(updates, text)["limit"]


@pytest.mark.parametrize(
    "sent",
    [None, 7, "text", ["name"], {"no_such_field": "x"}, {"name": {"a": 1}}, {"vocab_size": 300}],
    ids=repr,
)
def test_malformed_form_data_is_refused(workspace: Workspace, sent: Any) -> None:
    form = rendered(TokenizerConfig, workspace)
    with pytest.raises(ConfigError, match="can't be read"):
        form.parse(sent, {})
    with pytest.raises(gr.Error, match="load the page again"):
        form.guarded(lambda *raw: {"parsed": form.parse(*raw)})(sent, {})


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (CorpusConfig, "path"),
        (CorpusConfig, "validation_path"),
        (ShardConfig, "output_dir"),
        (ShardConfig, "tokenizer"),
        (TrainConfig, "shards"),
        (TrainConfig, "checkpoint"),
        (TrainConfig, "model_config_path"),
        (TrainConfig, "output"),
    ],
)
def test_paths_outside_the_workspace_are_refused(
    workspace: Workspace, model: type[StageConfig], field: str
) -> None:
    form = rendered(model, workspace)
    for path in ("/etc/passwd", str(workspace.root / ".." / ".." / ".."), "~"):
        with pytest.raises(ConfigError, match="has no access to") as error:
            form.parse(*values_of(form, **{field: path}))
        assert error.value.field == field


@pytest.mark.parametrize("field", ["shards", "checkpoint"])
def test_artifact_name_cannot_leave_its_folder(workspace: Workspace, field: str) -> None:
    form = rendered(TrainConfig, workspace)
    for name in ("../../../elsewhere", "x/../../../../elsewhere", "file:///etc", "a::b"):
        with pytest.raises(ConfigError, match="has no access to") as error:
            form.parse(*values_of(form, **{field: name}))
        assert error.value.field == field


def test_artifact_name_takes_precedence_over_a_folder_in_the_working_directory(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    form = rendered(TrainConfig, workspace)
    with pytest.raises(ConfigError, match="has no access to"):
        form.parse(*values_of(form, shards="docs"))
    shelf = workspace.folder("shards") / "docs"
    shelf.mkdir(parents=True)
    (shelf / "manifest.json").write_text("{}")
    assert form.parse(*values_of(form, shards="docs")).shards == "docs"


def test_paths_inside_the_workspace_are_allowed(workspace: Workspace) -> None:
    form = rendered(CorpusConfig, workspace)
    path = str(workspace.root / "uploads" / "*.txt")
    assert form.parse(*values_of(form, source="files", path=path)).path == path


def test_hub_id_is_not_treated_as_a_path(workspace: Workspace) -> None:
    form = rendered(ShardConfig, workspace)
    assert form.parse(*values_of(form, tokenizer="some/repo")).tokenizer == "some/repo"


def test_config_survives_a_round_trip_through_a_form(workspace: Workspace) -> None:
    form = rendered(TrainConfig, workspace)
    config = TrainConfig(preset="flax", shards="rows", size="base", num_train_steps=7, seed=3)
    updates = form.updates(config)
    shown = {name: updates[component]["value"] for name, component in form.components.items()}
    assert form.parse(shown) == config


def test_a_preset_fills_its_fields(workspace: Workspace) -> None:
    with gr.Blocks() as page:
        form = Form(TrainConfig, "train", workspace)
        form.render()
    fill, follow = [fn.fn for fn in page.fns.values() if fn.targets[0][1] == "input"]
    names = TrainConfig.preset_fields()
    filled = dict(zip(names, fill("flax", "roberta"), strict=True))
    assert filled["learning_rate"] == "0.0003"
    assert filled["warmup_steps"] == "1000"
    custom = dict(zip(names, fill("custom", "roberta"), strict=True))
    plain = TrainConfig(preset="custom")
    assert custom["per_replica_batch_size"] == ui_raw("per_replica_batch_size", plain)
    assert custom["num_train_epochs"] == ui_raw("num_train_epochs", plain)
    # Another family replaces the preset's values, but no typed ones.
    shown = {**filled, "per_replica_batch_size": "7"}
    assert all(value == gr.skip() for value in follow("flax", "t5", shown, False))
    followed = dict(zip(names, follow("flax", "t5", shown, True), strict=True))
    assert followed["learning_rate"] == "0.005"
    assert followed["optimizer"] == "adafactor"
    assert followed["per_replica_batch_size"] == gr.skip()


def ui_raw(name: str, config: TrainConfig) -> Any:
    return to_raw(TrainConfig.model_fields[name], getattr(config, name))


@pytest.mark.parametrize("fields", [1, 2, 3])
@pytest.mark.parametrize("event", ["preset", "variant"])
def test_a_preset_fills_any_number_of_fields(workspace: Workspace, fields: int, event: str) -> None:
    filled: dict[str, Any] = {f"size_{number}": number for number in range(fields)}

    class Sized(StageConfig):
        presets: ClassVar[dict[str, Preset]] = {name: Preset(filled) for name in ("large", "small")}
        variant: ClassVar[str] = "kind"
        preset: Literal["large", "small"] = option("large", "")
        kind: Literal["a", "b"] = option("a", "")
        size_0: int = option(7, "")
        size_1: int = option(7, "")
        size_2: int = option(7, "")

    with gr.Blocks() as page:
        form = Form(Sized, "sized", workspace)
        form.render()
    fill, follow = [fn for fn in page.fns.values() if fn.targets[0][1] == "input"]
    if event == "preset":
        answer = asyncio.run(page.process_api(fill, ["small", "a"]))["data"]
    else:
        answer = asyncio.run(page.process_api(follow, ["small", "b", filled_in(filled), True]))
        answer = answer["data"]
    assert answer == [str(number) for number in range(fields)]


def filled_in(values: dict[str, int]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}
