"""Navigation of the web app: the way from a text to a model, then the other places."""

from __future__ import annotations

from core.stages.registry import STAGES, Stage
from core.workspace.workspace import Workspace
from ui.parts.markup import MARK
from ui.present import escape

# Tabs by id, in their order; those of further stages follow.
_TITLES = {
    "home": "Home", "corpus": "Data", "clean": "Clean", "tokenizer": "Tokenizer",
    "shards": "Shards", "train": "Train", "sweeps": "Sweeps", "runs": "Runs",
    "evaluate": "Evaluate", "finetune": "Fine-tune", "playground": "Playground",
    "publish": "Publish", "workspace": "Workspace",
}  # fmt: skip
STEPS = ("corpus", "tokenizer", "shards", "train")
# Tabs within others.
PARENTS = {"clean": "corpus", "sweeps": "train"}
_WITHIN = {"corpus": (("corpus", "Text"), ("clean", "Clean")),
           "train": (("train", "One run"), ("sweeps", "Sweeps"))}  # fmt: skip
_CURRENT = ' aria-current="page"'
_MORE = ("runs", "evaluate", "finetune", "playground", "publish")
_ON_PHONES = ("runs", "playground")
_IN_MENU = ("evaluate", "finetune", "publish", "workspace")
_ICONS = {
    "home": '<path d="M4 11l8-7 8 7v8a1 1 0 0 1-1 1h-4v-6h-6v6H5a1 1 0 0 1-1-1z"/>',
    "train": '<path d="M4 6h10M4 12h16M4 18h7"/><path d="M17 15l3 3-3 3"/>',
    "runs": '<path d="M4 4v16h16"/><path d="M7 8c3 6 6 8 12 8"/>',
    "playground": '<path d="M4 5h16v11H9l-5 4z"/>',
    "": '<path d="M5 12h.01M12 12h.01M19 12h.01"/>',
}


def further_stages() -> list[Stage]:
    """Lists the stages with a tab that isn't laid out by hand."""
    return [stage for stage in STAGES.values() if stage.tab not in ("", *_TITLES)]


def titles() -> dict[str, str]:
    """Returns the titles of the tabs by id, in their order."""
    return {**_TITLES, **{stage.tab: stage.title for stage in further_stages()}}


def render_header(workspace: Workspace, title: str) -> str:
    """Renders title, navigation and menu of a wide screen, and a phone's bar."""
    steps = "".join(f"<li>{_link(tab)}</li>" for tab in STEPS)
    further = tuple(stage.tab for stage in further_stages())
    more = "".join(map(_link, _MORE + further))
    root = escape(workspace.root)
    menu = (
        '<details class="ps-menu"><summary>Workspace</summary><div>'
        f'<p>{root}</p><a href="#workspace" data-go="workspace" data-tab="workspace">'
        "Disk usage and import</a></div></details>"
    )
    on_phones = "".join(_item(tab) for tab in ("home", "train", *_ON_PHONES))
    return (
        '<a class="ps-skip" href="#tabs" data-skip>Skip to the content</a>'
        f'<div class="ps-top"><h1>{MARK}{escape(title)}</h1>{menu}</div>'
        f'<nav class="ps-nav" aria-label="Tabs">{_link("home")}<ol>{steps}</ol>{more}</nav>'
        f'<nav class="ps-bottom" aria-label="Main">{on_phones}'
        f'<details class="ps-menu"><summary>{_icon("")}More</summary><div>'
        f"{''.join(map(_link, _IN_MENU + further))}</div></details></nav>"
    )


def render_within(tab: str) -> str:
    """Renders the links between a tab and those within it."""
    parent = PARENTS.get(tab, tab)
    if parent not in _WITHIN:
        return ""
    links = "".join(
        f'<a href="#{name}" data-go="{name}"{_CURRENT if name == tab else ""}>{words}</a>'
        for name, words in _WITHIN[parent]
    )
    return f'<nav class="ps-within" aria-label="{titles()[parent]}">{links}</nav>'


def _link(tab: str) -> str:
    return f'<a href="#{tab}" data-go="{tab}" data-tab="{tab}">{titles()[tab]}</a>'


def _item(tab: str) -> str:
    return f'<a href="#{tab}" data-go="{tab}" data-tab="{tab}">{_icon(tab)}{titles()[tab]}</a>'


def _icon(tab: str) -> str:
    return (
        '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" '
        f'stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">{_ICONS[tab]}</svg>'
    )
