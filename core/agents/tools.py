"""The tools with which an agent trains and examines models.

Whatever an agent gives is a value of a config model, a name in the workspace, or a path that is
confined to the allowed folders. Machines elsewhere are named, never addressed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver import Context, Image
from pydantic import Field

from core.agents import documentation
from core.agents.answers import answering
from core.agents.limits import Limits, Reservation
from core.artifacts.locating import find_checkpoint
from core.config.base import StageConfig
from core.config.confining import confine
from core.config.corpus import CorpusConfig
from core.config.evaluate import EvaluateConfig
from core.config.metrics import is_share
from core.config.options import choices_of, field_extra, plain_type
from core.config.pretrain import PretrainConfig
from core.config.quickstart import QuickstartConfig
from core.config.sweep import SweepConfig
from core.config.train import TrainConfig
from core.corpus.finding import find_files
from core.corpus.previewing import preview_apart
from core.errors import ConfigError
from core.inference.masks import fills_masks
from core.inference.models import read_out
from core.models.hf import read_architecture
from core.network.hub_ids import check_hub_id
from core.pretraining.look import look_at
from core.pretraining.plan import plan_pretraining
from core.pretraining.reading import readable
from core.pretraining.start import corpus_values, stages_to_start
from core.records.folder import RunFolder
from core.report.curves import Curve, draw_curves
from core.report.verdicts import verdict_of
from core.runs import client
from core.runs.chain import Stages, reserved_names, submit_chain
from core.runs.comparison import compare_runs
from core.runs.inputs import check_inputs
from core.runs.resolved import UsedSettings
from core.runs.search import HELP, find_runs
from core.runs.summary import run_summary
from core.serving.playground import PlaygroundClient
from core.stages.quickstart import quickstart_stages
from core.stages.registry import find_stage
from core.store import RunRow, Store
from core.sweeps.client import create_sweep, start_sweep, stop_sweep
from core.sweeps.folder import SweepFolder
from core.sweeps.view import describe_sweep, list_sweeps
from core.targets.saved import SavedMachine, find_machine, read_machines
from core.targets.target import open_targets
from core.workspace.confinement import is_address
from core.workspace.kinds import artifact_kinds
from core.workspace.names import is_run_id
from core.workspace.workspace import Workspace

MOST_WAIT_SECONDS = 600
_POLL_SECONDS = 0.5
_REFRESH_SECONDS = 5.0
_LONGEST_SAMPLE = 500
_LONGEST_LOG = 20_000
_MOST_POINTS = 1000
_MOST_CURVES = 6
# Without the same text for other readers.
_PARTS_OF_ERROR = ("problem", "expected", "received", "fix")
# Dropped from lists of runs; `show_run` has them.
_DETAILS = ("pid", "exit_code", "signal", "checkpoints", "mirror", "incarnation", "phase", "notes")

Text = Annotated[
    str,
    Field(
        description="A file, a folder or a pattern such as data/*.txt in the folders that the user "
        "has allowed, or a dataset on the Hugging Face Hub (owner/name). Empty: the documentation "
        "of installed Python packages."
    ),
]
Run = Annotated[str, Field(description="The run's id, or a unique beginning of it.")]
Model = Annotated[
    str,
    Field(
        description="Name of a model in the workspace, or a run's checkpoint: RUN, RUN@best, "
        "RUN@500."
    ),
]
Machine = Annotated[
    str,
    Field(description="Name of a saved machine (list_machines); empty: this machine, at no cost."),
]
MaxCost = Annotated[
    float | None,
    Field(
        description="US dollars after which the machine saves and ends; empty: all that is left of "
        "the user's limit.",
        gt=0,
        allow_inf_nan=False,
    ),
]
Minutes = Annotated[
    float,
    Field(description="Time budget of training.", gt=0, le=1_000_000, allow_inf_nan=False),
]
Settings = Annotated[
    dict[str, Any],
    Field(
        description="Options of the train command by name, such as family, size, learning_rate or "
        "num_train_steps; what isn't set follows from the text."
    ),
]


class StudioTools:
    """The functions that agents call; each docstring is what an agent reads."""

    def __init__(self, workspace: Workspace, limits: Limits) -> None:
        self._workspace = workspace
        self._limits = limits
        self._playground = PlaygroundClient(workspace)

    def close(self) -> None:
        self._playground.close()

    @answering
    def look_at_corpus(
        self,
        text: Text,
        samples: Annotated[int, Field(description="Documents to show.", ge=0, le=10)] = 3,
    ) -> dict[str, Any]:
        """Looks at a text: size, documents, language, script, oddities and a few documents.

        Figures of a large text are estimates from a sample.
        """
        corpus, _ = readable(self._corpus(text), self._workspace)
        seen = preview_apart(corpus, self._workspace, samples) if samples else None
        shown = [document[:_LONGEST_SAMPLE] for document in seen.samples[:samples]] if seen else []
        return {**asdict(look_at(corpus, self._workspace)), "samples": shown}

    @answering
    def suggest(
        self, text: Text, minutes: Minutes = 10.0, family: str = "roberta", size: str = "auto"
    ) -> dict[str, Any]:
        """Plans pretraining on a text, with reasons, and starts nothing.

        Returns the settings that follow from text and time, the size and steps of the model, the
        estimated seconds, and warnings with the changes that help.
        """
        config = self._pretraining(text, minutes=minutes, family=family, size=size)
        return plan_pretraining(config, self._workspace).to_dict()

    @answering
    def start_quickstart(
        self,
        num_train_steps: Annotated[
            int | None, Field(description="Training steps; empty: a few minutes on two cores.")
        ] = None,
        size: Literal["tiny", "mini"] = "tiny",
        limit: Annotated[
            int | None, Field(description="Read at most this many documents; empty: all.")
        ] = None,
    ) -> dict[str, Any]:
        """Trains a first small RoBERTa model on the documentation of installed Python packages.

        Starts three runs on this machine: tokenizer, shards, train. Wait for the last one.
        """
        config = QuickstartConfig(num_train_steps=num_train_steps, size=size, limit=limit)
        stages = quickstart_stages(config, self._workspace, reserved_names(self._workspace))
        return self._submit(stages)

    @answering
    def start_pretraining(
        self,
        text: Text,
        minutes: Minutes = 10.0,
        family: Annotated[
            str, Field(description="roberta and bert fill masks; gpt2, llama, qwen3 write text.")
        ] = "roberta",
        size: Annotated[str, Field(description="Size; auto: text and time decide.")] = "auto",
        name: Annotated[str, Field(description="Name of the model; empty: from the text.")] = "",
        machine: Machine = "",
        max_cost: MaxCost = None,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Makes a model of a text: cleans it, trains a tokenizer, builds shards, trains.

        Starts four runs and returns their ids at once; wait for the last one. Only a machine with
        a price costs money, never more than max_cost.
        """
        place = self._machine(machine)
        config = self._pretraining(
            text, minutes=minutes, family=family, size=size, name=name, seed=seed
        )
        return self._submit(stages_to_start(self._workspace, config), place, max_cost)

    @answering
    def start_training(
        self,
        shards: Annotated[str, Field(description="Name of shards in the workspace.")],
        settings: Settings = {},  # noqa: B006 -- never changed
        minutes: Minutes = 10.0,
        machine: Machine = "",
        max_cost: MaxCost = None,
    ) -> dict[str, Any]:
        """Trains a model on shards of the workspace with chosen settings, to compare with others.

        Starts one run and returns its id at once. Only a machine with a price costs money, never
        more than max_cost.
        """
        config = TrainConfig.parse({**self._base(shards, settings), "minutes": minutes})
        return self._submit_alone("train", config, self._machine(machine), max_cost)

    @answering
    def start_sweep(
        self,
        shards: Annotated[str, Field(description="Name of shards in the workspace.")],
        options: Annotated[
            dict[str, Any],
            Field(
                description="Options of the train command to vary: a list of values, or an object "
                'such as {"min": 1e-4, "max": 1e-2, "log": true}.'
            ),
        ],
        max_runs: Annotated[int, Field(description="Trials at most.", ge=1, le=1000)],
        settings: Settings = {},  # noqa: B006 -- never changed
        minutes: Minutes = 10.0,
        method: Annotated[
            str, Field(description="grid, random, qmc, tpe, gp or cmaes.")
        ] = "random",
        metric: str = "eval_loss",
        machine: Machine = "",
        max_cost: MaxCost = None,
    ) -> dict[str, Any]:
        """Trains with varied settings and finds the best ones; each trial counts as a run.

        `minutes` is the time of each trial, `max_cost` the dollars of all together. Returns the
        sweep's name at once; show_sweep has its trials.
        """
        place = self._machine(machine)
        base = {**self._base(shards, settings), "minutes": minutes}
        _check_settings(options)
        values = {
            "stage": "train",
            "name": self._free_sweep_name(),
            "method": method,
            "metric": metric,
            "max_runs": max_runs,
            "base": base,
            "options": options,
        }
        SweepConfig.parse(values)
        with self._reserving(max_runs, place, max_cost) as reservation:
            if place:
                base |= {"target": place.target, "price_per_hour": place.price_per_hour}
                values["max_cost"] = reservation.dollars or None
            folder = create_sweep(self._workspace, SweepConfig.parse(values))
            reservation.final_cost = partial(self._cost_of_sweep, folder.name)
            start_sweep(self._workspace, folder)
        return {"sweep": folder.name, "limits": self._limits.describe()}

    @answering
    def show_sweep(
        self, sweep: Annotated[str, Field(description="Name; empty: list all sweeps.")] = ""
    ) -> dict[str, Any]:
        """Shows a sweep's state, budget, trials and best settings, or lists the sweeps."""
        if not sweep:
            return {"sweeps": list_sweeps(self._workspace)}
        client.refresh(self._workspace)
        with closing(Store.open(self._workspace)) as store:
            return describe_sweep(self._workspace, store, sweep)

    @answering
    def stop_sweep(self, sweep: str) -> dict[str, Any]:
        """Has a sweep save and stop its trials; the user can go on with it."""
        return {"sweep": stop_sweep(self._workspace, sweep).name, "state": "stopping"}

    @answering
    def list_runs(
        self,
        query: Annotated[str, Field(description=f"{HELP}. Empty: all.")] = "",
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> dict[str, Any]:
        """Lists runs, the newest first, with state, step, seconds and artifact."""
        client.refresh(self._workspace)
        with closing(Store.open(self._workspace)) as store:
            if query:
                rows = list(find_runs(self._workspace, store, query, limit=limit))
            else:
                rows = store.list_runs(limit=limit)
            summaries = [self._summary(row) for row in rows]
        shown = [
            {name: value for name, value in summary.items() if name not in _DETAILS}
            for summary in summaries
        ]
        return {"runs": shown, "limits": self._limits.describe()}

    @answering
    def show_run(self, run: Run) -> dict[str, Any]:
        """Shows a run: state, verdict, figures, settings, checkpoints, warnings and error."""
        client.refresh(self._workspace)
        with closing(Store.open(self._workspace)) as store:
            row = store.find_run(run)
            metrics = store.latest_metrics(row.id)
        settings = UsedSettings(self._workspace, row).to_dict()
        return {**self._describe(row), "metrics": metrics, "settings": _given(settings)}

    @answering
    async def wait_for_run(
        self,
        run: Run,
        context: Context,
        seconds: Annotated[
            int, Field(description="Longest wait; call again after it.", ge=1, le=MOST_WAIT_SECONDS)
        ] = 60,
    ) -> dict[str, Any]:
        """Waits until a run has ended, with progress; returns its state, verdict and figures.

        A run waits for those that it needs: wait for the last one of a start.
        """
        deadline = anyio.current_time() + seconds
        look_around = 0.0
        while True:
            if anyio.current_time() >= look_around:
                await anyio.to_thread.run_sync(client.refresh, self._workspace)
                look_around = anyio.current_time() + _REFRESH_SECONDS
            row = await anyio.to_thread.run_sync(self._find_row, run)
            if row.has_ended or anyio.current_time() >= deadline:
                return await anyio.to_thread.run_sync(self._describe, row)
            message = f"{row.stage} is {row.state}: {row.done:,.0f} {row.unit}".rstrip(" :")
            await context.report_progress(row.done, row.total, message)
            await anyio.sleep(min(_POLL_SECONDS, max(0.0, deadline - anyio.current_time())))

    @answering
    def stop_run(
        self,
        run: Run,
        abort: Annotated[
            bool, Field(description="End at once, without saving a checkpoint.")
        ] = False,
    ) -> dict[str, Any]:
        """Stops a queued or running run; a training saves first, and the user can resume it."""
        stopped = client.request_stop(self._workspace, run, "abort" if abort else "save")
        return {"run": stopped, "state": "stopping"}

    @answering
    def read_log(
        self,
        run: Run,
        lines: Annotated[int, Field(ge=1, le=500)] = 50,
        search: Annotated[str, Field(description="Only lines with this text.")] = "",
    ) -> str:
        """Reads the end of a run's log."""
        row = self._find_row(run)
        if search:
            matching, _ = RunFolder.of(self._workspace, row.id).find_in_log(search)
            return "\n".join(matching[-lines:])[-_LONGEST_LOG:]
        return client.read_log_tail(self._workspace, row.id, lines)[-_LONGEST_LOG:]

    @answering
    def draw_curves(
        self,
        runs: Annotated[list[str], Field(min_length=1, max_length=_MOST_CURVES)],
        metric: Annotated[
            str, Field(description="Such as loss, eval_loss, eval_accuracy or learning_rate.")
        ] = "eval_loss",
    ) -> list[str | Image]:
        """Draws a metric of one or several runs over their steps, as a picture.

        The loss of one run is drawn with its training loss and the unigram baseline.
        """
        client.refresh(self._workspace)
        with closing(Store.open(self._workspace)) as store:
            rows = [store.find_run(run) for run in dict.fromkeys(runs)]
            curves, baseline = _curves(store, rows, metric)
        lines = [
            f"{curve.name}: {len(curve.steps)} points, {curve.values[-1]:.6g} at step "
            f"{curve.steps[-1]:g}, lowest {min(curve.values):.6g}"
            for curve in curves
        ]
        unit = f"{metric} (nats)" if metric.endswith("loss") else metric
        picture = draw_curves(curves, baseline=baseline, y_label=unit, share=is_share(metric))
        return ["\n".join(lines), Image(data=picture, format="png")]

    @answering
    def compare_runs(
        self, runs: Annotated[list[str], Field(min_length=2, max_length=20)]
    ) -> dict[str, Any]:
        """Compares runs: the settings in which they differ, and all their figures."""
        client.refresh(self._workspace)
        with closing(Store.open(self._workspace)) as store:
            return compare_runs(self._workspace, store, runs).to_dict()

    @answering
    def evaluate_model(
        self,
        model: Model,
        task: Annotated[
            Literal["minimal_pairs", "text"],
            Field(description="Preference for acceptable sentences, or loss on held-out text."),
        ] = "minimal_pairs",
        data: Annotated[
            str,
            Field(
                description="Pairs as JSON lines, or text: a path in the allowed folders, or a "
                "dataset on the Hub. Empty: BLiMP from the Hub, for minimal pairs."
            ),
        ] = "",
        limit: Annotated[
            int | None, Field(description="Pairs per paradigm, or documents per file.", ge=1)
        ] = None,
    ) -> dict[str, Any]:
        """Evaluates a model on this machine; returns the run's id at once, to wait for.

        Its figures are the run's metrics; for minimal pairs the accuracy, for text the loss,
        perplexity and bits per byte.
        """
        self._model_folder(model)
        corpus = self._corpus(data)
        source = {"files": {"path": corpus.path}, "hub": {"dataset_name": corpus.dataset_name}}
        values = {"model": model, "task": task, "limit": limit, **source.get(corpus.source, {})}
        return self._submit_alone("evaluate", EvaluateConfig.parse(values))

    @answering
    def complete_text(
        self,
        model: Model,
        text: Annotated[
            str,
            Field(
                description="For a model that fills masks, a text with [MASK]; for others its "
                "beginning.",
                max_length=20_000,
            ),
        ],
        max_new_tokens: Annotated[int, Field(ge=1, le=500)] = 50,
        temperature: Annotated[float, Field(ge=0, le=10)] = 1.0,
        top_k: Annotated[int, Field(description="Predictions per mask.", ge=1, le=50)] = 5,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Completes a text with a model of the workspace: fills its masks, or continues it."""
        folder = self._model_folder(model)
        if fills_masks(read_architecture(folder)):
            return {"predictions": self._playground.fill_mask(str(folder), text, top_k)}
        pieces = self._playground.generate(
            str(folder), text, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
        )
        with closing(pieces):
            return read_out(pieces)

    @answering
    def list_artifacts(
        self, kind: Annotated[str, Field(description="Such as model or shards; empty: all.")] = ""
    ) -> dict[str, Any]:
        """Lists corpora, tokenizers, shards, models and evaluations with their figures."""
        kinds = artifact_kinds()
        if kind and kind not in kinds:
            raise ConfigError(
                "The kind of artifact is unknown",
                expected=", ".join(kinds),
                received=kind,
                fix="choose one of them, or leave it empty",
                field="kind",
            )
        return {
            each: [
                {"name": artifact.name, "figures": _short(artifact.manifest.counts)}
                for artifact in self._workspace.list(each)
            ]
            for each in ([kind] if kind else kinds)
        }

    @answering
    def list_machines(self) -> dict[str, Any]:
        """Lists the saved machines with their prices, and what is left of the user's limits."""
        machines = [
            {
                "name": machine.name,
                "price_per_hour": machine.price_per_hour,
                "state": machine.state,
            }
            for machine in read_machines(self._workspace)
        ]
        return {"machines": machines, "limits": self._limits.describe()}

    @answering
    def read_docs(
        self,
        page: Annotated[
            str, Field(description="Name of a page, such as pretrain or sweeps; empty: list them.")
        ] = "",
        search: Annotated[str, Field(description="Lines with this text, of all pages.")] = "",
    ) -> str:
        """Reads the documentation: a page, the list of pages, or a search."""
        if search:
            return documentation.search_pages(search)
        return documentation.read_page(page) if page else documentation.list_pages()

    def _corpus(self, text: str) -> CorpusConfig:
        """Returns the config of a text that agents may read."""
        if not text:
            return CorpusConfig()
        values = corpus_values(text)
        if values["source"] == "hub":
            check_hub_id(text, field="text")
            return CorpusConfig.parse(dict(values))
        if is_address(text):
            raise ConfigError(
                "Agents read no addresses",
                expected="a path in the allowed folders, or a dataset on the Hub (owner/name)",
                received=text[:200],
                fix="ask the user to download it",
                field="text",
            )
        corpus = CorpusConfig.parse(dict(values))
        confine(corpus, self._workspace)
        # A folder may hold links that lead elsewhere.
        for file in find_files(text, field="text", keep_unreadable=True).files:
            self._workspace.confine(str(file.path), field="text")
        return corpus

    def _pretraining(self, text: str, **settings: Any) -> PretrainConfig:
        return PretrainConfig.parse({"corpus": self._corpus(text), **settings})

    def _base(self, shards: str, settings: dict[str, Any]) -> dict[str, Any]:
        self._workspace.find_own("shards", shards)
        self._workspace.confine_artifact("shards", shards, field="shards")
        _check_settings(settings)
        return {**settings, "shards": shards}

    def _model_folder(self, model: str) -> Path:
        """Returns the folder of a model of the workspace, or of a run's checkpoint."""
        run = model.partition("@")[0]
        is_run = is_run_id(run) and RunFolder.of(self._workspace, run).is_there()
        checkpoint = find_checkpoint(model, self._workspace) if is_run else None
        if checkpoint is None:
            checkpoint = self._workspace.find_own("model", model).path
            self._workspace.confine_artifact("model", model, field="model")
        self._workspace.confine(str(checkpoint.absolute()), field="model")
        return checkpoint.absolute()

    def _machine(self, name: str) -> SavedMachine | None:
        """Returns a saved machine with its price; raises ConfigError if it is unknown."""
        if not name:
            return None
        machine = find_machine(self._workspace, name)
        if machine.price_per_hour is not None:
            return machine
        prices = [target.price_per_hour() for target in open_targets(machine.target)]
        known_prices = [price for price in prices if price is not None]
        if len(known_prices) < len(prices):
            raise ConfigError(
                f"The price of {name} is unknown",
                expected="a machine with a price, so that the limit of money can be kept",
                received="none",
                fix=f"ask the user to save it with its price: studio machines remove {name}, then "
                f"studio machines add {name} ADDRESS --price-per-hour 0",
                field="machine",
            )
        return machine.model_copy(update={"price_per_hour": max(known_prices)})

    def _reserving(
        self, runs: int, machine: SavedMachine | None, max_cost: float | None
    ) -> AbstractContextManager[Reservation]:
        is_paid = bool(machine and machine.price_per_hour)
        return self._limits.reserving(runs, is_paid=is_paid, dollars=max_cost)

    def _submit(
        self,
        stages: Stages,
        machine: SavedMachine | None = None,
        max_cost: float | None = None,
    ) -> dict[str, Any]:
        with self._reserving(len(stages), machine, max_cost) as reservation:
            placed = [(stage, _placed(config, machine, reservation)) for stage, config in stages]
            runs = submit_chain(self._workspace, placed)
            reservation.final_cost = partial(self._cost_of_run, runs[-1])
        return {"run": runs[-1], "runs": runs, "limits": self._limits.describe()}

    def _submit_alone(
        self,
        stage: str,
        config: StageConfig,
        machine: SavedMachine | None = None,
        max_cost: float | None = None,
    ) -> dict[str, Any]:
        check_inputs(self._workspace, config)
        find_stage(stage).check_config(config)
        return self._submit([(stage, config)], machine, max_cost)

    def _cost_of_run(self, run: str) -> float | None:
        with closing(Store.open(self._workspace)) as store:
            row = store.get_run(run)
        # The user may have deleted the run.
        if row is None or not row.has_ended:
            return None
        cost = row.remote.get("cost") if row.remote.get("launch") else 0.0
        return float(cost) if isinstance(cost, int | float) else None

    def _cost_of_sweep(self, sweep: str) -> float | None:
        folder = SweepFolder.of(self._workspace, sweep)
        if not folder.exists() or folder.is_driven():
            return None
        with closing(Store.open(self._workspace)) as store:
            described = describe_sweep(self._workspace, store, sweep)
        is_open = any(trial["state"] in ("queued", "running") for trial in described["trials"])
        cost = described["spent"]["cost"]
        return None if is_open or cost is None else float(cost)

    def _free_sweep_name(self) -> str:
        stem = time.strftime("agent-%Y%m%d-%H%M%S")
        names = [stem, *(f"{stem}-{number}" for number in range(2, 100))]
        return next(name for name in names if not SweepFolder.of(self._workspace, name).exists())

    def _find_row(self, run: str) -> RunRow:
        with closing(Store.open(self._workspace)) as store:
            return store.find_run(run)

    def _summary(self, row: RunRow) -> dict[str, Any]:
        error = {name: (row.error or {}).get(name) for name in _PARTS_OF_ERROR}
        return _given({**run_summary(row, self._workspace), "error": _given(error)})

    def _describe(self, row: RunRow) -> dict[str, Any]:
        verdict = verdict_of(row.stage, row.state, row.results, row.error, row.reason)
        described = {
            **self._summary(row),
            "progress": {"done": row.done, "total": row.total, "unit": row.unit},
            "note": row.note,
            "eta_seconds": row.eta_seconds,
            "verdict": {"level": verdict.level, "sentence": verdict.sentence},
            "warnings": row.warnings,
            "results": row.results,
        }
        return _given(described)


def _check_settings(settings: dict[str, Any]) -> None:
    """Raises ConfigError for a setting other than a number, a switch or a choice.

    Others name files, addresses, machines or places to publish at.
    """
    fields = TrainConfig.model_fields
    allowed = [
        name
        for name, field in fields.items()
        if field_extra(field)["identity"]
        and (plain_type(field)[0] in (int, float, bool) or choices_of(field))
    ]
    if unknown := sorted(settings.keys() - set(allowed)):
        raise ConfigError(
            f"{unknown[0][:100]} is no setting that agents choose",
            expected=", ".join(allowed),
            received=unknown[0][:100],
            fix="leave it out",
            field="settings",
        )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out what has no value: an agent reads every word."""
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}


def _short(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if isinstance(value, int | float | str)}


def _placed(
    config: StageConfig, machine: SavedMachine | None, reservation: Reservation
) -> StageConfig:
    """Puts a training on a machine, which ends it before it costs more than was reserved."""
    if machine is None or not isinstance(config, TrainConfig):
        return config
    place = {
        "target": machine.target,
        "price_per_hour": machine.price_per_hour,
        "max_cost": reservation.dollars or None,
    }
    return TrainConfig.parse({**config.model_dump(), **place})


def _curves(store: Store, rows: Sequence[RunRow], metric: str) -> tuple[list[Curve], float | None]:
    """Reads a metric of runs; of one run's loss also the training loss and the baseline."""
    is_loss = len(rows) == 1 and metric in ("loss", "eval_loss")
    names = ["loss", "eval_loss"] if is_loss else [metric]
    curves = []
    for row in rows:
        points, _ = store.sample_metrics(row.id, names, _MOST_POINTS)
        for name in filter(points.get, names):
            steps, values = zip(*points[name], strict=True)
            label = name if is_loss else f"{row.title or row.name or row.stage} ({row.id})"
            curves.append(Curve(label, steps, values, faint=is_loss and name == "loss"))
    if not curves:
        known = sorted({name for row in rows for name in row.metric_counts})
        raise ConfigError(
            f"No run has values of {metric[:100]} yet",
            expected=", ".join(known) or "a run that has begun to train",
            received=metric[:100],
            fix="choose another metric, or wait",
            field="metric",
        )
    baseline = store.latest_metrics(rows[0].id).get("frequency_baseline_loss") if is_loss else None
    return curves, baseline
