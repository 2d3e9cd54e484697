"""The list of a corpus's named sources: the form edits one, the list keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component
from pydantic.fields import FieldInfo

from core.config.corpus import CorpusConfig
from core.config.named_source import NamedSource
from core.config.options import field_extra
from core.errors import ConfigError
from ui.assets import script
from ui.forms import Form
from ui.parts.events import QUIET

_FIELDS = [name for name in NamedSource.model_fields if name != "name"]
_ADD, _SAVE = "Add as a source", "Save the source"
_LISTED = "(text) => [JSON.parse(text || '[]')]"
_HELP = (
    '<p class="ps-note">To train on several sources, name the one above and add it; then choose '
    "the next. The corpus reads the listed sources, in this order.</p>"
)


class CorpusForm(Form[CorpusConfig]):
    """Form of the corpus; the named sources, if any, take precedence over the fields of one."""

    def _component(self, name: str, field: FieldInfo, value: Any) -> Component:
        if name == "sources":
            return gr.Textbox(
                "",
                label="Sources",
                elem_id=f"{self.id}-listing",
                elem_classes=["ps-field", "ps-unseen"],
            )
        return super()._component(name, field, value)

    def _offered(self, name: str, choices: Sequence[str]) -> list[str]:
        return [choice for choice in choices if (name, choice) != ("source", "several")]

    def _values(self, typed: Any) -> dict[str, Any]:
        values = super()._values(typed)
        if values["sources"]:
            return {**values, "source": "several"}
        return {**values, "only": values["only"] if values["source"] == "corpus" else ""}

    def updates_of(self, values: Mapping[str, Any]) -> dict[Component, Any]:
        """Returns updates of some fields; a list of sources leaves the fields of one alone."""
        if values.get("source") != "several":
            return super().updates_of(values)
        shared = {name: value for name, value in values.items() if name not in _FIELDS}
        return super().updates_of({**shared, "limit": values["limit"]})

    def single(self, *raw: Any) -> CorpusConfig:
        """Parses the source in the fields, without the list; raises ConfigError."""
        typed, *rest = raw
        alone = {"sources": "", "only": ""}
        return self.parse({**typed, **alone} if isinstance(typed, dict) else typed, *rest)

    def listed(self, typed: Any) -> list[NamedSource]:
        """Returns the sources of the list; raises ConfigError."""
        return list(CorpusConfig(source="docs", sources=self._values(typed)["sources"]).sources)

    def render_help(self) -> None:
        gr.HTML(_HELP)

    def render_sources(self) -> None:
        """Renders the list, and the button that adds the source in the fields."""
        self.listing = gr.HTML(
            [],
            html_template='<div class="ps-sources"></div>',
            js_on_load=script("sources.js", "edit", "remove"),
            elem_id="corpus-listed",
        )
        with gr.Row(elem_classes=["ps-buttons", "ps-add-source"]):
            self.name = gr.Textbox(
                "", label="Name of this source", elem_id="corpus-sources", max_lines=1,
                placeholder="web", elem_classes=["ps-field"],
            )  # fmt: skip
            self.add = gr.Button(_ADD, elem_id="corpus-add", scale=0)

    def connect_sources(self, upload: gr.File, files: gr.HTML, held: gr.JSON) -> None:
        """Connects the list, after the form is rendered.

        Args:
            upload, files, held: Cleared when a source is added, so that its files stay.
        """
        listing, name, add = self.listing, self.name, self.add
        # The name of the source that is edited.
        edited = gr.Textbox("", label="Edited source", elem_classes=["ps-unseen"])
        menu, fields = self.components["sources"], self.components
        menu.change(None, menu, listing, js=_LISTED, **QUIET)
        cleared = [fields["path"], fields["validation_path"], fields["limit"]]

        def take(*raw: Any) -> dict[Any, Any]:
            *form, typed_name, before = raw
            sources = self.with_source(form, str(typed_name or ""), str(before or ""))
            return {
                **self._list(sources), name: "", edited: "", add: _ADD, upload: None, files: "",
                held: {}, **dict.fromkeys(cleared, ""),
            }  # fmt: skip

        def edit(typed: Any, event: gr.EventData) -> dict[Any, Any]:
            source = self._chosen(typed, event)
            values = {field: getattr(source, field) for field in _FIELDS}
            return {
                **super(CorpusForm, self).updates_of(values),
                name: source.name,
                edited: source.name,
                add: _SAVE,
            }

        def remove(typed: Any, event: gr.EventData) -> dict[Any, Any]:
            gone = self._chosen(typed, event).name
            left = [source for source in self.listed(typed) if source.name != gone]
            return {**self._list(left), edited: "", add: _ADD}

        outputs = [menu, name, edited, add, upload, files, held, *cleared, *self.problem_outputs]
        gr.on(
            [add.click, name.submit], self.guarded(take), [*self.inputs, name, edited], outputs,
            **QUIET,
        )  # fmt: skip
        inputs = [self.typed]
        shown = [*(fields[field] for field in _FIELDS), name, edited, add, *self.problem_outputs]
        listing.edit(self.guarded(edit), inputs, shown, **QUIET)
        listing.remove(
            self.guarded(remove), inputs, [menu, edited, add, *self.problem_outputs], **QUIET
        )

    def with_source(self, raw: Sequence[Any], name: str, edited: str) -> list[NamedSource]:
        """Returns the list with the source in the fields, in the place of the edited one.

        Raises:
            ConfigError: The name is wrong or taken.
            CorpusError: The source can't be read.
        """
        config = self.single(*raw)
        self._check(config)
        try:
            source = named_source(config, name.strip())
        except ConfigError as error:
            # Shown beside the name.
            raise ConfigError(
                "The source has no valid name", expected=error.expected, received=repr(name),
                fix="enter a name, such as web", field="sources",
            ) from None  # fmt: skip
        before = self.listed(raw[0])
        names = [each.name for each in before]
        sources = [source if each.name == edited else each for each in before]
        sources += [source] * (edited not in names)
        return list(CorpusConfig(sources=tuple(sources)).sources)

    def _list(self, sources: Sequence[NamedSource]) -> dict[Component, Any]:
        return super().updates_of({"sources": tuple(sources)})

    def _chosen(self, typed: Any, event: gr.EventData) -> NamedSource:
        wanted = event._data.get("name") if isinstance(event._data, dict) else None
        chosen = next((source for source in self.listed(typed) if source.name == wanted), None)
        if chosen is None:
            raise ConfigError("The source is no longer in the list", fix="load the page again")
        return chosen


def named_source(config: CorpusConfig, name: str) -> NamedSource:
    """Returns the source of a config under a name, without what belongs to other kinds."""
    groups = {"files": "Files", "hub": "Hub", "corpus": "Corpus"}
    return NamedSource(name=name, **_own_values(config, groups.get(config.source, "")))


def _own_values(config: CorpusConfig, group: str) -> dict[str, Any]:
    shared = ("General", "Validation")
    return {
        field: getattr(config, field)
        for field in _FIELDS
        if field_extra(NamedSource.model_fields[field])["group"] in (group, *shared)
        or (field == "text_column" and group == "Hub")
    }
