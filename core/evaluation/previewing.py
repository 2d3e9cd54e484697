"""Previews the data of an evaluation; files are read in a subprocess (this module)."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from core.config.evaluate import EvaluateConfig
from core.corpus.isolation import answer_parent, ask_child, raise_error
from core.corpus.table_preview import TablePreview, add_row, count_all
from core.evaluation.documents import read_documents
from core.evaluation.pairs import Pair, iterate_pairs

_MODULE = "core.evaluation.previewing"


def preview_evaluation_apart(config: EvaluateConfig) -> TablePreview:
    """Previews files in a subprocess, or a dataset here.

    Raises:
        ConfigError, CorpusError, HubError: The data are missing or unreadable.
    """
    if not config.path:
        return preview_evaluation(config)
    answer = ask_child(_MODULE, {"config": config.model_dump(mode="json")})
    raise_error(answer)
    return TablePreview(**answer["preview"])


def preview_evaluation(config: EvaluateConfig) -> TablePreview:
    """Previews pairs or documents; see `preview_evaluation_apart`."""
    if config.task == "text":
        return _preview_text(config)
    seen = TablePreview(grouped_by="paradigm")

    def noted(pair: Pair) -> Pair:
        names = {config.good_field: pair.good, config.bad_field: pair.bad}
        add_row(seen, {**names, config.paradigm_field or "paradigm": pair.paradigm})
        return pair

    count_all(
        seen, map(noted, iterate_pairs(config)), lambda pair: pair.good + pair.bad,
        lambda pair: [pair.paradigm],
    )  # fmt: skip
    return seen


def _preview_text(config: EvaluateConfig) -> TablePreview:
    seen = TablePreview(grouped_by="file" if config.path else "configuration")
    texts = ((name, text) for name, texts in read_documents(config) for text in texts)

    def noted(named_text: tuple[str, str]) -> tuple[str, str]:
        add_row(seen, {seen.grouped_by: named_text[0], "text": named_text[1]})
        return named_text

    count_all(seen, map(noted, texts), itemgetter(1), lambda named_text: [named_text[0]])
    return seen


def _answer(question: dict[str, Any]) -> TablePreview:
    return preview_evaluation(EvaluateConfig.parse(question["config"]))


if __name__ == "__main__":
    answer_parent(_answer)
