"""One source of a corpus with several sources."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import field_validator, model_validator

from core.config.options import option
from core.config.source import SOURCE_OPTIONS, SourceConfig, limit_option
from core.errors import ConfigError
from core.foreign_files import parse_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_DATASET = re.compile(r"hub:(?P<name>[^:@]+)(:(?P<config>[^@]+))?(@(?P<revision>.+))?")


class NamedSource(SourceConfig):
    """A source of a corpus with several sources.

    Also made from a text: NAME=PATH, NAME=hub:OWNER/NAME:CONFIGURATION@REVISION,
    NAME=corpus:CORPUS, NAME=docs: or a JSON object.
    """

    source: Literal["docs", "files", "hub", "corpus"] = option(
        "docs",
        "Where the text comes from.",
        basic=True,
        options=SOURCE_OPTIONS,
    )
    name: str = option(
        "",
        "Name of the source, such as web.",
        basic=True,
        details="Letters, digits, dots, dashes and underscores.",
    )
    limit: int | None = limit_option()

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, values: Any) -> Any:
        return cls.inferred(values_of_source(values)) if isinstance(values, str) else values

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(
                "1 to 60 of the letters a-z and A-Z, digits, dots, dashes or underscores; a letter "
                "or digit first"
            )
        return name

    @property
    def address(self) -> str:
        """The text that makes this source; "" if it has further settings."""
        values = self.model_dump(exclude_defaults=True)
        name = values.pop("name")
        if values.pop("source", "docs") == "docs":
            text = "docs:"
        elif self.source == "files":
            text = values.pop("path", "")
        elif self.source == "corpus":
            text = f"corpus:{values.pop('corpus_name', '')}"
        else:
            values.pop("dataset_name", "")
            chosen, revision = values.pop("dataset_config", ""), values.pop("dataset_revision", "")
            text = f"hub:{self.dataset_name}" + (f":{chosen}" if chosen else "")
            text += f"@{revision}" if revision else ""
        written = f"{name}={text}"
        is_same = not values and text and NamedSource.model_validate(written) == self
        return written if is_same else ""


def values_of_source(text: str) -> dict[str, Any]:
    """Parses NAME=ADDRESS, or a JSON object; raises ConfigError."""
    if text.lstrip().startswith("{"):
        return _values_of_json(text)
    name, equals, address = text.partition("=")
    if not equals or not address or not _NAME.fullmatch(name):
        raise ConfigError(
            "A source can't be read",
            expected="a name and an address, such as web=data/*.txt, wiki=hub:owner/dataset, "
            "old=corpus:NAME or python=docs:",
            received=repr(text),
            fix="write a name of the letters a-z and A-Z, digits, dots, dashes and underscores, "
            "then = and the address",
            field="sources",
        )
    return {"name": name, **_values_of_address(address)}


def _values_of_json(text: str) -> dict[str, Any]:
    try:
        values = parse_json(text.encode())
    except ValueError as error:
        raise ConfigError(
            "A source can't be read", expected='a JSON object such as {"name": "web", "path": '
            '"data/*.txt", "text_unit": "file"}', received=str(error),
            fix="correct the JSON at that position", field="sources",
        ) from error  # fmt: skip
    return dict(values)


def _values_of_address(address: str) -> dict[str, Any]:
    if address == "docs:":
        return {"source": "docs"}
    if address.startswith("corpus:"):
        return {"source": "corpus", "corpus_name": address.removeprefix("corpus:")}
    if dataset := _DATASET.fullmatch(address):
        stated = {"dataset_config": dataset["config"], "dataset_revision": dataset["revision"]}
        return {
            "source": "hub",
            "dataset_name": dataset["name"],
            **{name: value for name, value in stated.items() if value},
        }
    return {"source": "files", "path": address}
