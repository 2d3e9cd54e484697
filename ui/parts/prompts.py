"""Forms to query models: masks or a prompt.

The Playground selects a model; a demo has one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import gradio as gr
from gradio.events import api

from core.architecture.architecture import Architecture
from core.config.options import DTYPES, Dtype
from core.errors import StudioError
from core.families import find_family
from core.inference.filled import filled_texts
from core.inference.masks import fills_masks
from core.tokenizer.loading import StudioTokenizer
from ui import present
from ui.assets import script
from ui.parts import answers, markup
from ui.parts.events import QUIET

MOST_PREDICTIONS = 20
# Waiting requests form one batch.
ASKERS_AT_ONCE = 32
WRITERS_AT_ONCE = 8
_MOST_NEW_TOKENS = 512
_SHOWN = "({__type__: 'update', visible: %s})"
_TO_STOP = f"{_SHOWN % 'false'}, {_SHOWN % 'true'}"
_TO_WRITE = f"{_SHOWN % 'true'}, {_SHOWN % 'false'}"
_MOST_TOP_K = 200
_NOTHING_ASKED = markup.empty_state(
    "No prediction yet", "Write a sentence with a mask, or choose an example."
)
_NOTHING_WRITTEN = markup.empty_state("No text yet", "Write a prompt, or choose an example.")
_WAITING_FOR_A_PLACE = answers.writing("", "", "waiting for a place", continues=True)


_CONTINUES = "The model continues it."
_WAITING = f"() => [{json.dumps(_WAITING_FOR_A_PLACE)}, {_TO_STOP}]"
_NOT_BEGUN = (
    f"(shown) => shown === {json.dumps(_WAITING_FOR_A_PLACE)}"
    f" ? [{json.dumps(_NOTHING_WRITTEN)}, {_TO_WRITE}] : []"
)


def render_slider(*bounds: float, **options: Any) -> gr.Slider:
    """Renders a slider that may be empty or out of range while typing."""
    slider = gr.Slider(*bounds, **options)

    def preprocess(payload: float | None) -> float:
        value = slider.value if payload is None else payload
        return gr.Slider.preprocess(slider, min(max(value, slider.minimum), slider.maximum))

    # Not a subclass: Gradio would write a file beside its module.
    slider.preprocess = preprocess  # type: ignore[method-assign]
    return slider


class Answerer(Protocol):
    """Interface for querying models."""

    def fill_mask(self, model: str, text: str, top_k: int = ..., dtype: Dtype = ...) -> list[Any]:
        """See `core.inference.fill_mask`."""
        ...

    def generate(self, model: str, prompt: str, **options: Any) -> Generator[str, None, Any]:
        """See `core.inference.generate_stream`."""
        ...


@dataclass(frozen=True)
class Asked:
    """The model to query.

    Attributes:
        model: Menu, or one name.
        architecture: Returns it by name, if known.
        mask: If known beforehand.
        tokenizer: Returns it by name, if readable.
        second: Menu of a model that answers beside it.
    """

    answerer: Answerer
    model: gr.Dropdown | str
    architecture: Callable[[str | None], Architecture | None]
    mask: str = ""
    has_precision: bool = True
    most_new_tokens: int = _MOST_NEW_TOKENS
    tokenizer: Callable[[str | None], StudioTokenizer | None] = lambda _: None
    second: gr.Dropdown | None = None

    def filled_texts(self, name: str | None, text: str, predictions: list[Any]) -> list[list[str]]:
        """Returns the text per prediction of each mask, with what the tokenizer doesn't know."""
        is_one = bool(predictions) and isinstance(predictions[0], dict)
        tokenizer = self.tokenizer(name)
        of_each = [predictions] if is_one else predictions
        return filled_texts(tokenizer, text, of_each) if tokenizer else []

    def in_words_of(self, other: str, name: str | None, text: str) -> str:
        """Replaces the mask token of a model by that of another one."""
        tokenizer, others = self.tokenizer(name), self.tokenizer(other)
        if not (tokenizer and others and tokenizer.mask_token and others.mask_token):
            return text
        return text.replace(tokenizer.mask_token, others.mask_token)

    def of_this(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Binds the model's name, if there is only one."""
        return partial(handler, self.model) if isinstance(self.model, str) else handler

    def inputs(self, *others: Any) -> list[Any]:
        """Returns a handler's inputs, preceded by the menus, if any."""
        menus = [] if isinstance(self.model, str) else [self.model]
        return [*menus, *([self.second] if self.second else []), *others]

    @property
    def the_architecture(self) -> Architecture | None:
        """Architecture of the only model, if any."""
        return self.architecture(self.model) if isinstance(self.model, str) else None

    def writes(self, name: str | None) -> bool:
        """Returns whether a model generates text."""
        architecture = self.architecture(name)
        return architecture is not None and architecture.kind != "encoder"

    def fills(self, name: str | None) -> bool:
        """Returns whether a model fills masks (BART too)."""
        return fills_masks(self.architecture(name))


@dataclass(frozen=True)
class AskForm:
    """Form for one kind of model.

    Attributes:
        column: Visible for suitable models.
        nothing: Content of `answer` before requests.
        events: Run a model.
        words: Buttons that mask a word; their value is the mask token.
    """

    column: gr.Column
    text: gr.Textbox
    answer: gr.HTML
    nothing: str
    events: Sequence[Any]
    buttons: Sequence[gr.Button] = ()
    words: gr.HTML | None = None


def render_chips(sentences: Sequence[str] = ()) -> gr.HTML:
    """Renders example sentences; `pick` reports a click."""
    return gr.HTML(
        list(sentences),
        html_template='<div class="ps-chips" role="group" aria-label="Examples"></div>',
        js_on_load=script("examples.js"),
        elem_id="playground-examples",
    )


def prompt_help(architecture: Architecture | None) -> str:
    """Returns help on writing a prompt."""
    own = find_family(architecture.model_type).prompt_help if architecture else ""
    return own or _CONTINUES


def render_masks(asked: Asked, chips: gr.HTML, *, visible: bool = True) -> AskForm:
    """Renders the form for models that fill masks."""
    with gr.Column(visible=visible) as column:
        with gr.Column(elem_classes=["ps-card"]):
            text = gr.Textbox(
                label="Text",
                lines=2,
                max_lines=6,
                elem_id="playground-text",
                submit_btn=False,
            )
            words = gr.HTML(
                asked.mask,
                html_template='<div class="ps-mask-words"></div>',
                js_on_load=script("mask_words.js"),
                elem_id="playground-words",
            )
            with gr.Row(elem_classes=["ps-inline"]):
                top_k = render_slider(
                    1,
                    MOST_PREDICTIONS,
                    value=5,
                    step=1,
                    label="Predictions per mask",
                    elem_id="playground-top-k",
                )
                dtype = [_precision("playground-dtype", "auto")] if asked.has_precision else []
                ask = gr.Button("Fill masks", variant="primary", elem_id="playground-ask", scale=0)
        answer = gr.HTML(_NOTHING_ASKED, elem_id="playground-answer")

    def fill(name: str | None, sentence: str, count: float, precision: Dtype = "auto") -> str:
        try:
            predictions = asked.answerer.fill_mask(name or "", sentence, int(count), precision)
            return answers.predictions(predictions, asked.filled_texts(name, sentence, predictions))
        except StudioError as error:
            return present.error_card(error)

    def fill_both(name: str | None, other: str | None, sentence: str, *values: Any) -> str:
        shown = fill(name, sentence, *values)
        if not other:
            return shown
        beside = fill(other, asked.in_words_of(other, name, sentence or ""), *values)
        return answers.side_by_side([(name or "", shown), (other, beside)])

    ask_models = fill_both if asked.second else fill

    def fill_if_suitable(name: str | None, *values: Any) -> Any:
        return ask_models(name, *values) if asked.fills(name) else gr.skip()

    def fill_again(name: str | None, *values: Any) -> Any:
        sentence = values[1 if asked.second else 0]
        return ask_models(name, *values) if (sentence or "").strip() else gr.skip()

    def answering(handler: Callable[..., Any]) -> dict[str, Any]:
        return {
            "fn": present.guarded(asked.of_this(handler)),
            "inputs": asked.inputs(text, top_k, *dtype),
            "outputs": answer,
            "api_visibility": "private",
            "concurrency_id": "fill_mask",
            "concurrency_limit": ASKERS_AT_ONCE,
        }

    events = [
        # What is asked while an answer is on its way is answered after it.
        gr.on([ask.click, text.submit], **answering(ask_models), trigger_mode="always_last"),
        gr.on([top_k.release, *(menu.input for menu in dtype)], **answering(fill_again)),
        chips.pick(picked, None, text, **QUIET).then(**answering(fill_if_suitable)),
    ]
    return AskForm(column, text, answer, _NOTHING_ASKED, events, words=words)


def render_writing(
    asked: Asked, chips: gr.HTML, *, visible: bool = False, at_once: int = WRITERS_AT_ONCE
) -> AskForm:
    """Renders the form for generation."""
    with gr.Column(visible=visible) as column:
        with gr.Column(elem_classes=["ps-card"]):
            prompt = gr.Textbox(
                label="Prompt",
                info=prompt_help(asked.the_architecture),
                lines=2,
                max_lines=8,
                elem_id="playground-prompt",
                submit_btn=False,
            )
            settings = _render_settings(asked)
            with gr.Row(elem_classes=["ps-buttons"]):
                ask = gr.Button("Generate", variant="primary", elem_id="playground-write")
                stop = gr.Button("Stop", elem_id="playground-stop", visible=False)
        answer = gr.HTML(_NOTHING_WRITTEN, elem_id="playground-written")

    def write(name: str | None, text: str, *values: Any) -> Iterator[Any]:
        yield from write_both(name, None, text, *values)

    def write_both(name: str | None, other: str | None, text: str, *values: Any) -> Iterator[Any]:
        options = _options(*values)
        names = [name or "", *([other] if other else [])]
        yield (
            answers.writing(text, "", "waiting for the model", continues=continues(name)),
            gr.update(visible=False),
            gr.update(visible=True),
        )
        shown = ""
        with ExitStack() as stack:
            streams = [
                _stream_answer(asked.answerer, name, text, options, continues(name))
                for name in names
            ]
            for stream in streams:
                stack.enter_context(closing(stream))
            for shown in _together(names, streams):
                yield shown, gr.skip(), gr.skip()
        yield shown, gr.update(visible=True), gr.update(visible=False)

    def continues(name: str | None) -> bool:
        architecture = asked.architecture(name)
        return architecture is None or architecture.kind == "decoder"

    # In the browser, at once, so that nobody presses twice.
    gr.on([ask.click, prompt.submit], None, None, [answer, ask, stop], js=_WAITING, **QUIET)
    started = gr.on(
        [ask.click, prompt.submit],
        present.guarded_stream(asked.of_this(write_both if asked.second else write)),
        asked.inputs(prompt, *settings),
        [answer, ask, stop],
        **QUIET,
        # A run stopped early stays active for a while.
        trigger_mode="multiple",
        concurrency_id="generate",
        concurrency_limit=at_once,
    )
    # Gradio's notice reports the full queue.
    started.failure(None, answer, [answer, ask, stop], js=_NOT_BEGUN, **QUIET)
    # Two steps: pending output must not follow the final text.
    stop.click(
        lambda: None,
        cancels=[started],
        **QUIET,
    ).then(
        lambda shown: (answers.stopped(shown), gr.update(visible=True), gr.update(visible=False)),
        answer,
        [answer, ask, stop],
        **QUIET,
    )
    chips.pick(picked, None, prompt, **QUIET)
    return AskForm(column, prompt, answer, _NOTHING_WRITTEN, [started], [ask, stop])


def _render_settings(asked: Asked) -> list[Any]:
    with gr.Column(elem_classes=["ps-knobs"]):
        new_tokens = render_slider(
            1,
            asked.most_new_tokens,
            60,
            step=1,
            label="New tokens",
            elem_id="playground-new-tokens",
        )
        temperature = render_slider(
            0,
            2,
            0.8,
            step=0.05,
            label="Temperature",
            info="0 takes the most probable token each time.",
            elem_id="playground-temperature",
        )
        top_k = render_slider(
            0,
            _MOST_TOP_K,
            50,
            step=1,
            label="Top-k",
            info="Sample from this many most probable tokens; 0 means all.",
            elem_id="playground-write-top-k",
        )
        top_p = render_slider(
            0.05,
            1,
            0.95,
            step=0.05,
            label="Top-p",
            info="Sample from the most probable tokens with this total probability.",
            elem_id="playground-top-p",
        )
        seed = gr.Number(
            0,
            precision=0,
            minimum=0,
            label="Seed",
            info="The same seed gives the same text.",
            elem_id="playground-seed",
        )
        dtype = [_precision("playground-write-dtype", "float32")] if asked.has_precision else []
    return [new_tokens, temperature, top_k, top_p, seed, *dtype]


def _precision(elem_id: str, value: Dtype) -> gr.Dropdown:
    return gr.Dropdown(
        [("Automatic" if dtype == "auto" else dtype, dtype) for dtype in DTYPES],
        value=value,
        label="Precision",
        info="Automatic: bfloat16 if this machine computes faster in it.",
        elem_id=elem_id,
        interactive=True,
    )


def _options(
    new_tokens: float,
    temperature: float,
    top_k: float,
    top_p: float,
    seed: float,
    dtype: Dtype = "float32",
) -> dict[str, Any]:
    return {
        "max_new_tokens": int(new_tokens),
        "temperature": float(temperature),
        "top_k": int(top_k),
        "top_p": float(top_p),
        "seed": int(seed or 0),
        "dtype": dtype,
    }


def _stream_answer(
    answerer: Answerer, name: str, prompt: str, options: dict[str, Any], continues: bool
) -> Generator[str, None, None]:
    text, began = "", 0.0
    with closing(answerer.generate(name, prompt, **options)) as stream:
        while True:
            try:
                text += next(stream)
            except StopIteration as end:
                seconds = time.monotonic() - began if began else 0.0
                yield answers.written(prompt, end.value, seconds, continues=continues)
                return
            except StudioError as error:
                yield present.error_card(error)
                return
            began = began or time.monotonic()
            yield answers.writing(prompt, text, "writing", continues=continues)


def _together(names: Sequence[str], streams: Sequence[Iterator[str]]) -> Iterator[str]:
    """Yields the answers of one or several models, as they grow."""
    if len(streams) == 1:
        yield from streams[0]
        return
    shown = [""] * len(streams)
    going = dict(enumerate(streams))
    while going:
        for number, stream in list(going.items()):
            try:
                shown[number] = next(stream)
            except StopIteration:
                del going[number]
            else:
                yield answers.side_by_side(list(zip(names, shown, strict=True)))


def offer(function: Callable[..., Any], *, at_once: int) -> None:
    """Adds a function to the API; programs get errors as plain text.

    Args:
        at_once: Concurrent calls; more wait without delaying browsers.
    """
    api(
        present.telling_programs(function),
        api_name=function.__name__,
        concurrency_id=f"{function.__name__} of programs",
        concurrency_limit=at_once,
    )


def picked(event: gr.EventData) -> str:
    """Returns the example that was clicked."""
    return str(event._data["sentence"])
