"""Validates a demo's requests with models made from its endpoints."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import gradio as gr
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    create_model,
)

from core.errors import ConfigError
from ui.parts.access import App, Receive, Scope, Send, answer, route_path

_JOIN_PATHS = ("/gradio_api/queue/join", "/gradio_api/queue/join/")
_CALL_PATH = "/gradio_api/call/"
_EXACT = 2**53  # Integers up to here are exact in JavaScript.
_MOST_SHOWN = 80
_MOST_EVENT_CHARACTERS = 10_000
_MOST_ANSWER_CHARACTERS = 60_000

Id = Annotated[StrictStr, Field(pattern=r"^[\w-]{1,64}$")]


@dataclass(frozen=True)
class Text:
    """A text argument; `may_be_empty` admits null."""

    most_characters: int
    may_be_empty: bool = False

    def annotation(self) -> Any:
        """Returns the pydantic type."""
        text = Annotated[StrictStr, Field(max_length=self.most_characters)]
        return text | None if self.may_be_empty else text

    def expected(self) -> str:
        """Describes valid values."""
        return f"one string of at most {self.most_characters} characters"


@dataclass(frozen=True)
class Number:
    """A number argument with inclusive bounds; `may_be_empty` admits null."""

    low: float
    high: float
    is_whole: bool = False
    may_be_empty: bool = False

    def annotation(self) -> Any:
        """Returns the pydantic type."""
        bounds = Field(ge=self.low, le=self.high, allow_inf_nan=False)
        number: Any = Annotated[StrictInt, Field(ge=self.low, le=self.high)]
        number |= Annotated[
            StrictFloat, bounds, *([AfterValidator(_whole)] if self.is_whole else [])
        ]
        return number | None if self.may_be_empty else number

    def expected(self) -> str:
        """Describes valid values."""
        kind = "a whole number" if self.is_whole else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}"


Argument = Text | Number


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Cancel(_Body):
    session_hash: Id
    fn_index: Annotated[StrictInt, Field(ge=0, le=_EXACT)]
    event_id: Id


class _Reset(_Body):
    event_id: Id


class _Picked(_Body):
    sentence: Annotated[StrictStr, Field(max_length=_MOST_EVENT_CHARACTERS)]


@dataclass(frozen=True)
class _Function:
    """Arguments with the body models of Gradio's queue (`join`) and `/call/`."""

    arguments: Sequence[tuple[str, Argument]]
    join: type[BaseModel]
    call: type[BaseModel]


class DemoRequests:
    """ASGI middleware that answers 422 to JSON that fits no endpoint.

    `BodyLimits` must parse the JSON first.

    Args:
        offered: API arguments by function and name.
        most_characters: Longest text from the demo's forms.
    """

    def __init__(
        self,
        app: App,
        *,
        page: gr.Blocks,
        offered: Mapping[str, Mapping[str, Argument]],
        most_characters: int,
    ) -> None:
        self._app = app
        self._by_index: dict[int, _Function] = {}
        self._by_name: dict[str, _Function] = {}
        for index, function in page.fns.items():
            if function.fn is None:  # It runs in the browser.
                continue
            named = offered.get(str(function.api_name))
            arguments = (
                [(name, named[name]) for name in inspect.signature(function.fn).parameters]
                if named
                else [_in_form(block, most_characters) for block in function.inputs]
            )
            made = _make_function(index, arguments, needs_event=function.collects_event_data)
            self._by_index[index] = made
            if named:
                self._by_name[str(function.api_name)] = made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            problem = self._problem(route_path(scope), scope.get("studio.json"))
            if problem:
                name, error = problem
                await _refuse(send, name, error)
                return
        await self._app(scope, receive, send)

    def _problem(self, path: str, body: Any) -> tuple[str, ConfigError] | None:
        if not isinstance(body, dict):
            expected = "a JSON object"
            return "body", _error("The body is no object", expected, body, "send a JSON object")
        if path in _JOIN_PATHS:
            index = body.get("fn_index")
            if type(index) is not int or index not in self._by_index:
                listed = ", ".join(map(str, self._by_index)) or "none"
                return "fn_index", _error(
                    "There is no such function", f"an fn_index of {listed}", index, "choose another"
                )
            function = self._by_index[index]
            return _check(function.join, body, function.arguments)
        if path.startswith(_CALL_PATH):
            name = path.removeprefix(_CALL_PATH)
            if name not in self._by_name:
                listed = ", ".join(self._by_name) or "none"
                return "api_name", _error(
                    "There is no such function", f"a name of {listed}", name, "choose another"
                )
            function = self._by_name[name]
            return _check(function.call, body, function.arguments)
        return _check(_Cancel if path.endswith("/cancel") else _Reset, body, [])


def _make_function(
    index: int, arguments: Sequence[tuple[str, Argument]], *, needs_event: bool
) -> _Function:
    types: Any = tuple(argument.annotation() for _, argument in arguments)
    # Strict pydantic takes no list for a tuple; items stay strict.
    data: Any = (Annotated[tuple.__class_getitem__(types), Field(strict=False)], ...)
    value = Annotated[StrictStr, Field(max_length=_MOST_EVENT_CHARACTERS)] | StrictFloat
    event: Any = (
        (_Picked, ...) if needs_event else (value | StrictInt | StrictBool | _Picked | None, None)
    )
    join: Any = create_model(
        f"Join{index}",
        __base__=_Body,
        data=data,
        fn_index=(StrictInt, ...),
        session_hash=(Id, ...),
        trigger_id=(StrictInt | None, None),
        event_data=event,
    )
    call: Any = create_model(
        f"Call{index}", __base__=_Body, data=data, session_hash=(Id | None, None)
    )
    return _Function(arguments, join, call)


def _in_form(block: Any, most_characters: int) -> tuple[str, Argument]:
    """While typing, a slider's box may be empty or out of range."""
    name = str(block.label or "answer").lower()
    if isinstance(block, gr.Textbox):
        return name, Text(most_characters, may_be_empty=True)
    if isinstance(block, (gr.Slider, gr.Number)):
        return name, Number(-_EXACT, _EXACT, may_be_empty=True)
    if isinstance(block, gr.HTML):
        # An answer that the browser returns.
        return name, Text(_MOST_ANSWER_CHARACTERS, may_be_empty=True)
    raise TypeError(f"A {type(block).__name__} of a demo has no schema")


def _check(
    model: type[BaseModel], body: dict[str, Any], arguments: Sequence[tuple[str, Argument]]
) -> tuple[str, ConfigError] | None:
    try:
        model.model_validate(body)
    except ValidationError as error:
        return _explain(error, body, arguments)
    return None


def _explain(
    error: ValidationError, body: dict[str, Any], arguments: Sequence[tuple[str, Argument]]
) -> tuple[str, ConfigError]:
    problem = error.errors(include_url=False, include_context=False)[0]
    where = problem["loc"]
    if where[0] != "data":
        return _explain_field(str(where[0]), problem, body)
    given = body.get("data")
    if not isinstance(given, list) or len(given) != len(arguments):
        return "data", _wrong_count([name for name, _ in arguments], given)
    name, argument = arguments[int(where[1])]
    return name, _explain_argument(name, argument, given[int(where[1])])


def _wrong_count(names: Sequence[str], given: Any) -> ConfigError:
    return ConfigError(
        "The number of arguments is wrong",
        expected=f"a list of {len(names)}: {', '.join(names)}" if names else "an empty list",
        received=f"{len(given)} of them" if isinstance(given, list) else _shown(given),
        fix="send one value for each argument",
    )


def _explain_text(name: str, expected: str, value: Any) -> ConfigError:
    if not isinstance(value, str):
        return _error(f"The {name} is not a string", expected, value, "send one text at a time")
    received = f"{len(value)} characters"
    return ConfigError(
        f"The {name} is too long", expected=expected, received=received, fix="shorten it"
    )


def _explain_argument(name: str, argument: Argument, value: Any) -> ConfigError:
    expected = argument.expected()
    if isinstance(argument, Text):
        return _explain_text(name, expected, value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and value > argument.high:
        fix = f"ask for {argument.high:g} or less"
        return _error(f"{name} is too large", expected, value, fix)
    if is_number and value < argument.low:
        fix = f"ask for {argument.low:g} or more"
        return _error(f"{name} is too small", expected, value, fix)
    return _error(f"{name} is out of range", expected, value, "send such a number")


def _explain_field(name: str, problem: Any, body: dict[str, Any]) -> tuple[str, ConfigError]:
    if problem["type"] == "extra_forbidden":
        return name, ConfigError(
            "The request has an unknown key",
            expected="only the keys that the endpoint has",
            received=repr(name[:_MOST_SHOWN]),
            fix="leave it out",
        )
    if problem["type"] == "missing" and len(problem["loc"]) == 1:
        return name, ConfigError(
            "A key is missing", expected=name, received=_listed(body), fix="add it"
        )
    return name, _error(f"{name} can't be used", str(problem["msg"]), body.get(name), "correct it")


def _listed(body: dict[str, Any]) -> str:
    return ", ".join(repr(name[:_MOST_SHOWN]) for name in list(body)[:10]) or "an empty object"


def _error(problem: str, expected: str, received: Any, fix: str) -> ConfigError:
    return ConfigError(problem, expected=expected, received=_shown(received), fix=fix)


def _shown(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"


async def _refuse(send: Send, name: str, error: ConfigError) -> None:
    problem = {
        "__type__": "validate",
        "is_valid": False,
        "parameter_name": name,
        "message": str(error),
    }
    body = json.dumps({"detail": [problem], "error": str(error)}).encode()
    await answer(send, 422, body, "application/json")


def _whole(value: float) -> float:
    if not value.is_integer():
        raise ValueError("a whole number is expected")
    return value
