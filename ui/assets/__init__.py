"""The web app's style sheets and scripts."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from hashlib import blake2b
from pathlib import Path

_FOLDER = Path(__file__).parent
_UPLOT = "vendor/uplot/uPlot.iife.min.js"
_UPLOT_STYLE = "vendor/uplot/uPlot.min.css"
# Scripts that several components use; they run once.
_SHARED = ("chart.js", "compare.js", "preflight_card.js", "cleaning_card.js", "samples.js",
           "drawer.js")  # fmt: skip
_EVENT = re.compile(r'trigger\(("\w+")')
# Scripts of one component, in one scope.
_CONTINUED_BY = {"sweeps.js": ("sweep_new.js",), "strip.js": ("menus.js", "messages.js")}
# Gradio passes these to a component's script.
_PARAMETERS = "element, trigger, props, server, upload, watch"


@cache
def read(name: str) -> str:
    """Returns a file's text."""
    return (_FOLDER / name).read_text("utf-8")


@cache
def style_sheets() -> str:
    """Joins the style sheets, `page.css` first."""
    others = sorted(path.name for path in _FOLDER.glob("*.css") if path.name != "page.css")
    return "\n".join(map(read, (_UPLOT_STYLE, "page.css", *others)))


def script(name: str, *events: str) -> str:
    """Returns the call of a component's script, which `bundle` holds.

    Args:
        events: Further events; those that it triggers by their name are known.
    """
    # Gradio looks here for the names.
    named = {*_EVENT.findall(_whole(name)), *map(json.dumps, events)}
    return f"studio.scripts[{json.dumps(name)}]({_PARAMETERS}) // {' '.join(sorted(named))}"


def _whole(name: str) -> str:
    return "\n".join(map(read, (name, *_CONTINUED_BY.get(name, ()))))


@cache
def bundle() -> str:
    """Joins the scripts into one file, which browsers keep.

    In the page itself each component would repeat its own.
    """
    shared = "\n".join(map(read, (_UPLOT, *_SHARED)))
    others = {"studio.js", *_SHARED, *itertools.chain(*_CONTINUED_BY.values())}
    single = sorted({path.name for path in _FOLDER.glob("*.js")} - others)
    of_components = "".join(
        f"{json.dumps(name)}: ({_PARAMETERS}) => {{\n{_whole(name)}\n}},\n" for name in single
    )
    return (
        f"{read('studio.js')}\n(() => {{\n{shared}\n}})();\n"
        f"studio.scripts = {{\n{of_components}}};\n"
    )


@cache
def bundle_path() -> str:
    """Returns the bundle's address, which names its content."""
    return f"/assets/studio-{blake2b(bundle().encode(), digest_size=8).hexdigest()}.js"
