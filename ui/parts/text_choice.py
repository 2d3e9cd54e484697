"""The text of a later stage: that of the Data tab, or a cleaned corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import option
from core.workspace.workspace import Workspace
from ui.forms import Form
from ui.parts.events import QUIET, listen

_FROM_TAB = ("The corpus of the Data tab", "")
_SEPARATOR = "/"


class TextChoice(StageConfig):
    """The choice of a cleaned corpus."""

    cleaned: str = option(
        "", "A cleaned corpus, or one of its sources, instead of the corpus above.",
        title="Text to read", basic=True, artifact="corpus",
    )  # fmt: skip


class TextForm(Form[Any]):
    """Form of the text that a stage reads; parses to a `CorpusConfig`.

    Args:
        text: Form of the Data tab.
        stage: Tab with the choice.
    """

    def __init__(self, text: Form[CorpusConfig], stage: str, workspace: Workspace) -> None:
        super().__init__(TextChoice, f"{stage}-text", workspace, base=text, check=self._check_text)
        self.text = text
        self.stage = stage

    @property
    def place(self) -> str:
        return self.stage

    @property
    def menu(self) -> Any:
        return self.components["cleaned"]

    def render_choice(self) -> None:
        """Renders the menu, hidden as long as there is no cleaned corpus."""
        field = TextChoice.model_fields["cleaned"]
        choices = self._choices()
        with gr.Column(elem_id=self.id, elem_classes=["ps-text-choice"]):
            self.components["cleaned"] = gr.Dropdown(
                choices, value="", label=field.title, info=field.description, filterable=False,
                visible=len(choices) > 1, elem_id=f"{self.id}-cleaned", elem_classes=["ps-field"],
            )  # fmt: skip
        self._render_problems()
        self._gather()

    def follow_corpora(self, line: gr.HTML) -> None:
        """Keeps the menu up to date; `line` reports changes of artifacts."""

        def refresh(chosen: str | None) -> list[Any]:
            choices = self._choices()
            is_gone = chosen not in [value for _, value in choices]
            # Setting an unchanged value would undo a choice made in the meantime.
            value = {"value": ""} if is_gone else {}
            return [gr.update(choices=choices, visible=len(choices) > 1, **value)]

        listen(line.artifacts, refresh, [self.menu], [self.menu])

    def _choices(self) -> list[tuple[str, str]]:
        """Returns (label, value) pairs: the corpora, and the sources of each."""
        choices = [_FROM_TAB]
        for corpus in self._workspace.list("corpus"):
            choices.append((f"Cleaned corpus {corpus.name}", corpus.name))
            sources = corpus.manifest.counts.get("sources")
            choices += [
                (f"Cleaned corpus {corpus.name}, only {name}", f"{corpus.name}{_SEPARATOR}{name}")
                for name in (sources if isinstance(sources, dict) else ())
            ]
        return choices

    def parse(self, *raw: Any) -> CorpusConfig:
        """Parses the values of `inputs`; raises ConfigError."""
        typed, *rest = raw
        chosen = str(self.shown(typed)["cleaned"] or "").strip()
        if not chosen:
            return self.text.parse(*rest)
        name, _, only = chosen.partition(_SEPARATOR)
        self._workspace.confine_artifact("corpus", name, field="cleaned")
        return CorpusConfig(source="corpus", corpus_name=name, only=only)

    def _check_text(self, config: CorpusConfig) -> None:
        if config.source == "corpus":
            self._workspace.find("corpus", config.corpus_name, field="cleaned")
        self.text.check(config)

    def updates(self, config: StageConfig) -> dict[Component, Any]:
        """Returns updates that show a config, here or in the Data tab."""
        assert isinstance(config, CorpusConfig)
        value = _SEPARATOR.join(filter(None, [config.corpus_name, config.only]))
        offered = {choice for _, choice in self._choices()}
        is_offered = config.source == "corpus" and value in offered
        if is_offered and config == CorpusConfig(corpus_name=config.corpus_name, only=config.only):
            return {self.menu: value}
        return {self.menu: "", **self.text.updates(config)}


def link_choices(forms: Sequence[TextForm]) -> None:
    """Makes all stages read the text that the user chooses for one of them."""
    for form in forms:
        others = [other.menu for other in forms if other is not form]
        listen(form.menu.input, lambda chosen: [chosen] * (len(forms) - 1), [form.menu], others)


def offer(button: gr.Button, chosen: Component, forms: Sequence[TextForm]) -> None:
    """Makes a button choose a corpus for all stages."""

    def use(name: str | None) -> list[Any]:
        if not name:
            return [gr.skip()] * len(forms)
        gr.Info(f"The Tokenizer and the Shards tab read {name}.")
        return [gr.update(choices=form._choices(), value=name, visible=True) for form in forms]

    listen(button.click, use, [chosen], [form.menu for form in forms], **QUIET)
