"""The Home tab: from a text to a model, and the last models.

Its state is that of the runs, so it survives a reload and the end of the page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import gradio as gr

from core.config.corpus import CorpusConfig
from core.config.options import AUTOMATIC, title_of
from core.config.pretrain import PretrainConfig
from core.errors import ConfigError, CorpusError
from core.families import title_of_family
from core.inference.models import read_out
from core.pretraining import ANY_ENCODING, plan_pretraining, submit_pretraining
from core.runs.chain import submit_quickstart
from core.stages.registry import STAGES, title_of_stage
from core.store import ACTIVE_STATES, RunRow, Store
from core.sweeps.view import list_surpassed_runs
from core.workspace.workspace import Workspace
from ui.assets import script
from ui.parts import markup
from ui.parts.examples import examples, fills, tokenizer_of
from ui.parts.labels import relabel
from ui.parts.playing import shared_client
from ui.parts.run_answers import events_function, points_function
from ui.parts.run_rows import error_of, model_of, summarize
from ui.parts.upload_zone import keep_uploads
from ui.parts.verdicts import describe_verdict
from ui.present import answering

_TRAINS = "train"
_ACTIVE = ("queued", *ACTIVE_STATES)
_PARTS = ("problem", "expected", "received", "fix")
_LOOKED_AT = 200
_MOST_MODELS = 6
_MOST_CHARACTERS = 2000
_NEW_TOKENS = 40
_TEMPLATE = """
<div class="ps-home">
  <section class="ps-home-main" aria-label="Your text and your model"></section>
  <section class="ps-home-others" aria-label="Running" hidden></section>
  <section class="ps-home-models" aria-label="Models" hidden></section>
  <section class="ps-home-begin" aria-label="Begin"></section>
</div>
"""


def render(workspace: Workspace, store: Store) -> gr.HTML:
    """Renders the tab."""
    return gr.HTML(
        html_template=_TEMPLATE,
        js_on_load=script("home.js"),
        server_functions=[
            state_function(workspace, store),
            _look_function(workspace),
            _start_function(workspace),
            _try_function(workspace),
            points_function(workspace, store),
            events_function(workspace, store),
        ],
        elem_classes=["ps-home-host"],
    )


def state_function(workspace: Workspace, store: Store) -> Callable[..., dict[str, Any]]:
    """Returns a function that describes the newest model, what runs, and earlier models.

    Of a sweep's models, the best one counts.
    """

    @answering
    def home_state(_: dict[str, Any]) -> dict[str, Any]:
        rows = store.list_runs(limit=_LOOKED_AT)
        active = [row for row in rows if row.state in _ACTIVE]
        surpassed = list_surpassed_runs(workspace)
        trained = [
            row
            for row in rows
            if _is_training(row) and (row.state in _ACTIVE or row.id not in surpassed)
        ]
        newest = next((row for row in trained if row.state in _ACTIVE), None) or next(
            iter(trained), None
        )
        chain = _chain(newest, store) if newest else []
        known = {row.id for row in chain}
        others = [row for row in active if row.id not in known]
        return {
            "is_empty": not rows,
            "newest": _newest(chain, workspace, store) if chain else None,
            "others": [summarize(row, workspace) for row in others],
            "models": [
                _model(row)
                for row in trained
                if row.id not in known and row.state not in _ACTIVE and model_of(row)
            ][:_MOST_MODELS],
        }

    return home_state


def _is_training(row: RunRow) -> bool:
    return row.stage == _TRAINS and not row.config.get("evaluate_only")


def _chain(row: RunRow, store: Store) -> list[RunRow]:
    """Returns a run after those that it waited for."""
    chain, waiting = [row], list(row.after)
    while waiting:
        earlier = store.get_run(waiting.pop())
        if earlier and earlier.id not in {row.id for row in chain}:
            chain.insert(0, earlier)
            waiting += earlier.after
    return chain


def _newest(chain: Sequence[RunRow], workspace: Workspace, store: Store) -> dict[str, Any]:
    *_, last = chain
    broken = next((row for row in chain if row.state in ("failed", "lost", "stopped")), None)
    ended = broken or (last if last.has_ended else None)
    model = model_of(last) if last.state == "done" else ""
    return {
        "run": last.id,
        "steps": [_step(row, workspace) for row in chain],
        "is_active": ended is None,
        "shows": ended.id if ended else last.id,
        "verdict": describe_verdict(ended) if ended else None,
        "error": error_of(broken) if broken else None,
        "model": model,
        "about": _about(last),
        "play": _play(model, workspace) if model else None,
    }


def _step(row: RunRow, workspace: Workspace) -> dict[str, Any]:
    summary = summarize(row, workspace)
    names = (
        "id", "stage", "state", "label", "progress", "done", "total", "eta_seconds", "tab",
        "remote",
    )  # fmt: skip
    return {name: summary[name] for name in names}


def _about(row: RunRow) -> dict[str, str]:
    config = row.config
    size = str(config.get("size", "")).removeprefix(AUTOMATIC)
    return {
        "name": row.name or str(config.get("name", "")) or str(config.get("shards", "")),
        "kind": f"{title_of_family(str(config.get('family', '')))} {size}".strip(),
    }


@lru_cache(maxsize=8)
def _proposals(model: str, workspace: Workspace) -> tuple[bool, tuple[str, ...]]:
    return fills(model, workspace), tuple(examples(model, workspace))


def _play(model: str, workspace: Workspace) -> dict[str, Any]:
    does_fill, texts = _proposals(model, workspace)
    tokenizer = tokenizer_of(model, workspace) if does_fill else None
    return {"fills": does_fill, "texts": texts, "mask": tokenizer.mask_token if tokenizer else ""}


def _model(row: RunRow) -> dict[str, Any]:
    return {
        **_about(row), "run": row.id, "model": model_of(row), "created": row.created,
        "verdict": describe_verdict(row),
    }  # fmt: skip


def _look_function(workspace: Workspace) -> Callable[..., dict[str, Any]]:
    @answering
    def look_at_text(question: dict[str, Any]) -> dict[str, Any]:
        """Describes an uploaded text and the model that it is good for.

        Takes the `uploads`, or the `path` of kept ones, and `changes` of derived settings.
        """
        path, files = str(question.get("path", "")), []
        try:
            if not path:
                corpus = CorpusConfig.parse({"source": "files", **ANY_ENCODING})
                uploads = keep_uploads(_uploads(question.get("uploads")), corpus, workspace)
                path = uploads.path
                files = [
                    [name, markup.byte_count(size), uploads.problems.get(name, "")]
                    for name, size in uploads.sizes.items()
                ]
            return {"path": path, "files": files, **_plan(path, question.get("changes"), workspace)}
        except CorpusError as error:
            raise _by_names(error, workspace) from error

    return look_at_text


def _by_names(error: CorpusError, workspace: Workspace) -> CorpusError:
    """Names uploads as the visitor does, without the folder in which they are kept."""
    folder = re.compile(rf"{re.escape(str(workspace.uploads))}/[^/\s]+/")
    problem, *others = (folder.sub("", error.texts[part]) for part in _PARTS)
    expected, received, fix = others
    return CorpusError(
        problem, expected=expected, received=received, fix=fix, field=error.field, knows_cause=True
    )


def _uploads(paths: Any) -> list[str]:
    """Checks that paths are uploads; raises ConfigError."""
    folder = Path(os.environ.get("GRADIO_TEMP_DIR") or "/nonexistent").resolve()
    given = [Path(str(path)).resolve() for path in paths] if isinstance(paths, list) else []
    if not given or not all(path.is_relative_to(folder) and path.is_file() for path in given):
        raise ConfigError(
            "The upload has not arrived",
            expected="one or more uploaded files",
            received=f"{len(given)} files",
            fix="choose the files again",
        )
    return [str(path) for path in given]


def _config(path: str, changes: Any, workspace: Workspace) -> PretrainConfig:
    workspace.confine(path, field="path")
    given = changes if isinstance(changes, dict) else {}
    return PretrainConfig.parse({"corpus": {"source": "files", "path": path}, **given})


def _plan(path: str, changes: Any, workspace: Workspace) -> dict[str, Any]:
    plan = plan_pretraining(_config(path, changes, workspace), workspace)
    look = plan.look
    amount, unit = look.amount or (0, "")
    figures = [
        (amount and markup.short_count(amount), unit),
        (look.language, ""),
        (look.documents and markup.short_count(look.documents), _documents(look.documents)),
        (look.total_bytes and markup.byte_count(look.total_bytes), "of text"),
    ]
    return {
        "title": Path(path).name if Path(path).is_file() else "Your files",
        "figures": [[value, unit] for value, unit in figures if value],
        "remarks": list(look.remarks),
        "good": f"{plan.judge(markup.rough_duration(plan.seconds))}.",
        "warnings": [
            {
                "sentence": relabel(warning.text),
                "changes": dict(warning.changes),
                "words": _words_of(warning.changes),
            }
            for warning in plan.warnings
        ],
        "settings": [
            [
                title_of_stage(setting.stage),
                _title(setting.stage, setting.field),
                str(setting.value),
                setting.reason,
            ]
            for setting in plan.settings
        ],
    }


def _title(stage: str, name: str) -> str:
    fields = STAGES[stage].config.model_fields if stage in STAGES else {}
    field = fields.get(name) or CorpusConfig.model_fields.get(name)
    return title_of(name, field) if field else name


def _documents(count: int | None) -> str:
    return "document" if count == 1 else "documents"


def _words_of(changes: Mapping[str, Any]) -> str:
    return "Use " + ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in changes.items()
    )


def _start_function(workspace: Workspace) -> Callable[..., dict[str, Any]]:
    @answering
    def start_training(question: dict[str, Any]) -> dict[str, Any]:
        """Queues the example's runs, or those of a text at `path`."""
        if question.get("example"):
            return {"runs": submit_quickstart(workspace)}
        config = _config(str(question["path"]), question.get("changes"), workspace)
        return {"runs": submit_pretraining(workspace, config)}

    return start_training


def _try_function(workspace: Workspace) -> Callable[..., dict[str, Any]]:
    @answering
    def try_model(question: dict[str, Any]) -> dict[str, Any]:
        """Fills the masks of a text, or continues it."""
        model, text = str(question["model"]), str(question.get("text", ""))[:_MOST_CHARACTERS]
        workspace.find_own("model", model)
        client = shared_client(workspace)
        if not fills(model, workspace):
            stream = client.generate(model, text, max_new_tokens=_NEW_TOKENS)
            return {"text": read_out(stream)["text"]}
        mask = question.get("mask") or ""
        if mask and mask not in text:
            raise ConfigError(
                "The sentence has nothing to fill in",
                expected=f"a sentence with {mask} in place of a word",
                received=text or "nothing",
                fix=f"put {mask} where the model shall find the word",
            )
        predictions = client.fill_mask(model, text)
        masks = predictions if predictions and isinstance(predictions[0], list) else [predictions]
        return {
            "masks": [
                [[prediction["token_str"], prediction["score"]] for prediction in of_mask]
                for of_mask in masks
            ]
        }

    return try_model
