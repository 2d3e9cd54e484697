"""Options of the corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from core.config.named_source import NamedSource
from core.config.options import option, split_names
from core.config.source import SOURCE_OPTIONS, SourceConfig, limit_option
from core.errors import ConfigError


class CorpusConfig(SourceConfig):
    """The source of text, or several, and the validation split."""

    implied: ClassVar[dict[str, str]] = {**SourceConfig.implied, "sources": "several"}

    source: Literal["docs", "files", "hub", "corpus", "several"] = option(
        "docs",
        "Where the text comes from.",
        basic=True,
        options={
            **SOURCE_OPTIONS,
            "several": ("Several sources", "Named sources that are read one after another"),
        },
        details="On the command line, a path implies files, the name of a dataset implies hub, "
        "--corpus implies corpus, and --add implies several.",
    )
    sources: tuple[NamedSource, ...] = option(
        (),
        "Named sources, read in this order as one corpus.",
        group="Several sources",
        basic=True,
        flag="add",
        is_later=True,
        details="Repeat it: --add web='data/*.txt' --add wiki=hub:OWNER/NAME:CONFIGURATION@"
        "REVISION --add old=corpus:NAME --add python=docs:. A JSON object gives one source with "
        "all its settings; --corpus FILE.toml reads the sources of a file.",
    )
    only: str = option(
        "",
        "Sources to read, separated by commas; empty means all.",
        title="Only these sources",
        group="Several sources",
        is_later=True,
        details="Held-out documents are the same as with all sources. Also takes sources of a "
        "cleaned corpus.",
    )
    validation_percent: float | None = option(
        None,
        "Percent of the documents held out for validation; empty: follows from the text.",
        details="A document's hash decides, so equal documents are always on the same side. Not "
        "used if a validation split or path is given. Empty: 10 of small files, less of large "
        "ones, and 5 of other text.",
        title="Validation percent",
        automatic=True,
        group="Validation",
        basic=True,
        hidden_with={"source": "corpus"},
        gt=0,
        le=50,
    )
    drop_overlapping_validation: bool | None = option(
        None,
        "Drop held-out documents that share 20 words in a row with a training document.",
        group="Validation",
        details="Takes one more pass over the text. Empty: only for installed documentation.",
    )
    limit: int | None = limit_option()

    @property
    def names_only(self) -> list[str]:
        """The names in `only`."""
        return split_names(self.only)

    @property
    def short_name(self) -> str:
        """Begins the default names of tokenizers and shards."""
        return "-".join(self.names_only)[:60] or self.source

    def of_source(self, named: NamedSource) -> CorpusConfig:
        """Returns the config of one of the sources alone."""
        values = named.model_dump(exclude={"name"})
        limits = [limit for limit in (self.limit, named.limit) if limit is not None]
        own = self.model_dump(include={"validation_percent", "drop_overlapping_validation"})
        return CorpusConfig(**{**values, **own, "limit": min(limits, default=None)})

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        names = Counter(source.name.casefold() for source in self.sources)
        if self.source == "several":
            if not names:
                raise _no_sources_error()
            for source in self.sources:
                if not source.name:
                    raise _no_name_error(source)
                if names[source.name.casefold()] > 1:
                    raise _same_name_error(source.name)
            known = [source.name for source in self.sources]
            if unknown := [name for name in self.names_only if name not in known]:
                raise unknown_source_error(unknown[0], known)
        elif self.only and self.source != "corpus":
            raise ConfigError(
                "only needs a corpus with several sources",
                expected="sources, or a cleaned corpus of several sources",
                received=f"⟬source={self.source}⟭ and ⟬only={self.only}⟭",
                fix="leave ⟬only⟭ empty, or name several sources",
                field="only",
            )
        return self

    @property
    def reads_elsewhere(self) -> bool:
        """True if reading can need credentials: some text is on the Hub or at an address."""
        read: tuple[SourceConfig, ...] = self.sources if self.source == "several" else (self,)
        return any(
            source.source == "hub" or "://" in f"{source.path} {source.validation_path}"
            for source in read
        )

    def pin_inferred(self, changed: dict[str, Any]) -> dict[str, Any]:
        """Adds the source, and leaves out names of text that is not read."""
        unused = {"sources": "several", "corpus_name": "corpus"}
        values_in_use = {
            n: v for n, v in changed.items() if unused.get(n, self.source) == self.source
        }
        return super().pin_inferred(values_in_use)

    @classmethod
    def inferred(
        cls, values: dict[str, Any], before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Infers the source; on the command line refuses text that it leaves unread.

        Raises:
            ConfigError: Two sources are given.
        """
        source = values.get("source")
        for name in ("corpus_name", "sources"):
            if before is not None and source and values.get(name) and source != cls.implied[name]:
                raise _unread_error(name, str(source), cls.implied[name])
        return super().inferred(values, before)


def unknown_source_error(name: str, known: list[str], corpus: str = "") -> ConfigError:
    """Explains that `only` names no source of a corpus."""
    where = f"The corpus {corpus}" if corpus else "The corpus"
    return ConfigError(
        f"{where} has no source {name!r}",
        expected=f"one of {', '.join(known)}" if known else "a corpus with several sources",
        received=f"⟬only={name}⟭",
        fix="correct the name, or leave ⟬only⟭ empty",
        field="only",
    )


def _no_sources_error() -> ConfigError:
    return ConfigError(
        "The corpus has no sources",
        expected="at least one named source",
        fix="add a source, or set ⟬source⟭ to files, hub or docs",
        field="sources",
    )


def _no_name_error(source: NamedSource) -> ConfigError:
    return ConfigError(
        "A source has no name",
        expected="a name for each of several sources",
        received=source.path or source.source,
        fix="set its name",
        field="sources",
    )


def _same_name_error(name: str) -> ConfigError:
    return ConfigError(
        f"Two sources are named {name}",
        expected="a different name for each source, also in lower case",
        received=f"{name} twice",
        fix="rename one of them",
        field="sources",
    )


def _unread_error(name: str, source: str, implied: str) -> ConfigError:
    flag = {"corpus_name": "⟬--corpus⟭", "sources": "⟬--add⟭"}[name]
    return ConfigError(
        f"{flag} has no effect with ⟬--source⟭ {source}",
        expected=f"⟬--source⟭ {implied}, or no ⟬--source⟭",
        received=f"both {flag} and ⟬--source⟭ {source}",
        fix="leave one of them out",
        field="source",
    )
