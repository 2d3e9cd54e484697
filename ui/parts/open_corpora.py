"""The choice of an open corpus by its language, which fills in the form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import gradio as gr

from core.corpus.open_corpora import SAMPLE_DOCUMENTS, find_corpora, list_languages
from ui.assets import script
from ui.present import answering


def render_open_corpora(form: str, *, classes: Sequence[str] = ()) -> None:
    """Renders the choice.

    Args:
        form: Id of the form that it fills in.
    """
    names = sorted(list_languages().items(), key=lambda language: language[1])
    gr.HTML(
        html_template='<div class="ps-open-corpora"></div>',
        js_on_load=script("open_corpora.js"),
        server_functions=[open_corpora],
        elem_id=f"{form}-open",
        elem_classes=[*classes],
        form=form,
        languages=names,
        documents=SAMPLE_DOCUMENTS,
    )


@answering
def open_corpora(question: dict[str, Any]) -> dict[str, Any]:
    """Lists the corpora of a language."""
    return {"corpora": [asdict(corpus) for corpus in find_corpora(str(question.get("language")))]}
