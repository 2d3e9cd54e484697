"""Chooses the data of a form: a dropped file, a file of the workspace, or a dataset on the Hub.

What is chosen is shown before the start: columns, first rows, and how many examples each class has.
"""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import gradio as gr

from core.config.base import StageConfig
from core.config.options import field_extra
from core.corpus.table_preview import TablePreview
from core.errors import StudioError
from core.workspace.workspace import Workspace
from ui.assets import script
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET
from ui.parts.upload_zone import UploadZone, connect_zone, render_zone
from ui.present import error_card, escape

_MOST_KEPT = 32
_MOST_OFFERED = 100
_MOST_GROUPS = 12
_ZONE_HEIGHT = 112
# Fields of these groups say what is read.
_GROUPS = ("Data", "Hub", "Columns", "Minimal pairs", "Text")
_REST = "() => studio.rest(%s)"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class PickedFile:
    """A file that the form names.

    Attributes:
        field: The option with its path.
        title: Label of the drop zone.
    """

    field: str
    title: str
    is_multiple: bool = False


class DataPicker:
    """Drop zones above the paths of a form, and a look at the chosen data.

    Args:
        files: The first one is required, unless there is a dataset.
        read: Previews what a config names, for one of the files' fields; may raise StudioError.
        dataset: Returns the dataset on the Hub that a config reads, or "".
    """

    def __init__(
        self,
        form: Form[Any],
        workspace: Workspace,
        files: Sequence[PickedFile],
        read: Callable[[Any, str], TablePreview],
        dataset: Callable[[Any], str],
    ) -> None:
        self._form = form
        self._workspace = workspace
        self._files = files
        self._read = read
        self._dataset = dataset
        self._zones: list[UploadZone] = []
        self._known: OrderedDict[str, TablePreview | StudioError] = OrderedDict()
        self._reading = Lock()

    def render_zones(self) -> None:
        """Renders the drop zones side by side."""
        with gr.Row(elem_classes=["ps-zones"]):
            for picked in self._files:
                with gr.Column(min_width=150):
                    self._zones.append(
                        render_zone(
                            f"{self._form.id}-{picked.field}", picked.title,
                            is_multiple=picked.is_multiple, height=_ZONE_HEIGHT,
                        )
                    )  # fmt: skip

    def render_preview(self) -> None:
        """Renders the place of the preview, below the form's fields for the data."""
        with gr.Column(elem_classes=["ps-data"], elem_id=f"{self._form.id}-data"):
            self._shown = gr.HTML(elem_id=f"{self._form.id}-data-preview")
            self._ask = gr.Button(
                "Preview the dataset", elem_id=f"{self._form.id}-data-look", visible=False
            )

    def connect(self) -> None:
        """Connects all, after the form is rendered."""
        form, shown, ask = self._form, self._shown, self._ask
        fields = [picked.field for picked in self._files]
        offered = gr.HTML(
            self._offered(), html_template="", js_on_load=script("data_picker.js"),
            elem_classes=["ps-unseen"], form=form.id, fields=fields,
        )  # fmt: skip
        for picked, zone in zip(self._files, self._zones, strict=True):
            connect_zone(zone, form, picked.field, None, self._workspace)
            zone.upload.change(lambda: self._offered(), None, offered, **QUIET)
        fresh = gr.JSON(visible=False)
        outputs = [shown, ask, fresh]

        def describe(*raw: Any) -> dict[Any, Any]:
            return self._describe(form.parse(*raw), outputs, asks_hub=False)

        def look(*raw: Any) -> dict[Any, Any]:
            return self._describe(form.parse(*raw), outputs, asks_hub=True)

        form.on_change(describe, outputs, otherwise={shown: "", ask: gr.update(visible=False)})
        ask.click(
            form.guarded(look),
            form.inputs,
            [*outputs, *form.problem_outputs],
            show_progress_on=[shown],
            api_visibility="private",
        )
        # A finished preview changes the expected time.
        fresh.change(None, None, form.rest, js=_REST % json.dumps(form.id), **QUIET)

    def known(self, config: StageConfig, field: str) -> TablePreview | None:
        """Returns an earlier preview of the same data, if any; reads nothing."""
        preview = self._known.get(self._key(config, field))
        return preview if isinstance(preview, TablePreview) else None

    def _describe(self, config: Any, outputs: Sequence[Any], *, asks_hub: bool) -> dict[Any, Any]:
        shown, ask, fresh = outputs
        first = self._files[0].field
        dataset = "" if getattr(config, first) else self._dataset(config)
        before = set(self._known)
        parts = []
        for picked in self._files:
            if getattr(config, picked.field) or (dataset and picked.field == first):
                preview = self._find(config, picked.field, reads=not dataset or asks_hub)
                parts.append(_section(_name_of(config, picked, dataset), preview))
        is_unknown = bool(dataset) and not isinstance(
            self._known.get(self._key(config, first)), TablePreview
        )
        changed = bool(set(self._known) - before)
        return {
            shown: "".join(parts),
            ask: gr.update(visible=is_unknown),
            fresh: [next(_numbers)] if changed else gr.skip(),
        }

    def _find(self, config: Any, field: str, *, reads: bool) -> TablePreview | StudioError | None:
        key = self._key(config, field)
        path = getattr(config, field)
        if not reads or (path and "*" not in path and not Path(path).exists()):
            return self._known.get(key)
        with self._reading:
            preview = self._known.get(key)
            # A dataset that couldn't be reached is asked for again.
            if preview is None or (isinstance(preview, StudioError) and not path):
                try:
                    preview = self._read(config, field)
                except StudioError as error:
                    preview = error
                self._known[key] = preview
                while len(self._known) > _MOST_KEPT:
                    self._known.popitem(last=False)
        return preview

    def _key(self, config: StageConfig, field: str) -> str:
        fields = type(config).model_fields
        values = {
            name: getattr(config, name)
            for name in fields
            if name == "task" or field_extra(fields[name])["group"] in _GROUPS
        }
        # A sample is drawn after the preview.
        values.pop("limit", None)
        for picked in self._files:
            if picked.field != field:
                values.pop(picked.field, None)
        try:
            stat = Path(getattr(config, field)).stat()
        except OSError:
            return json.dumps([field, values], default=str)
        return json.dumps([field, values, stat.st_mtime_ns, stat.st_size], default=str)

    def _offered(self) -> list[str]:
        """Lists earlier uploads, the newest first."""
        paths = (path for path in self._workspace.uploads.glob("*/*") if path.is_file())
        newest = sorted(paths, key=lambda path: path.parent.name, reverse=True)
        return [str(path) for path in newest[:_MOST_OFFERED]]


def _name_of(config: Any, picked: PickedFile, dataset: str) -> str:
    path = getattr(config, picked.field)
    if not path:
        return f"Dataset: {dataset}"
    name = Path(path).name or path
    return name if picked.is_multiple else f"{picked.title}: {name}"


def _section(title: str, preview: TablePreview | StudioError | None) -> str:
    heading = f'<h3 class="ps-subheading">{escape(title)}</h3>'
    if preview is None:
        return heading
    if isinstance(preview, StudioError):
        return heading + error_card(preview)
    return heading + "".join(_parts(preview))


def _parts(seen: TablePreview) -> Iterator[str]:
    at_least = "" if seen.complete else "at least "
    classes = len(seen.groups)
    facts = [f"{at_least}{markup.count(seen.count)} {'example' if seen.count == 1 else 'examples'}"]
    if seen.grouped_by:
        facts.append(f"{markup.count(classes)} {_plural(seen.grouped_by, classes)}")
    facts.append(f"columns: {', '.join(seen.columns)}")
    yield f'<p class="ps-note ps-data-facts">{escape(" · ".join(facts))}</p>'
    if seen.groups and (classes > 1 or seen.grouped_by == "class"):
        yield _bars(seen)
    table = markup.table(seen.columns, seen.rows, label="First rows")
    region = 'tabindex="0" role="region" aria-label="First rows"'
    yield f'<div class="ps-data-rows" {region}>{table}</div>'


def _bars(seen: TablePreview) -> str:
    most = max(seen.groups.values())
    listed = list(seen.groups.items())[:_MOST_GROUPS]
    rows = "".join(
        f'<li><span class="word">{escape(Path(name).name or name)}</span>'
        f'<span class="ps-bar" aria-hidden="true"><i style="width:{100 * number / most:.1f}%"></i>'
        f'</span><span class="score">{markup.count(number)}</span></li>'
        for name, number in listed
    )
    more = len(seen.groups) - len(listed)
    rest = f'<p class="ps-note">and {markup.count(more)} more</p>' if more else ""
    label = f"Examples per {seen.grouped_by}"
    return f'<ol class="ps-predictions ps-data-groups" aria-label="{label}">{rows}</ol>{rest}'


def _plural(name: str, count: int) -> str:
    if count == 1:
        return name
    return f"{name}es" if name.endswith("s") else f"{name}s"
