"""The Workspace tab: disk usage and settings import."""

from __future__ import annotations

import json

import gradio as gr

from core.store import Store
from core.workspace.workspace import Workspace
from ui.assets import script
from ui.parts import disk
from ui.parts.run_rows import tabs_by_stage
from ui.present import escape

_IMPORT = f"""
<section class="ps-import" data-tabs="{escape(json.dumps(tabs_by_stage()))}">
  <h3 class="ps-subheading">Import settings</h3>
  <p class="ps-note">A run exports its settings as a JSON file.
  Import one to fill in the form of its stage.</p>
  <label class="ps-button">Import settings
    <input type="file" accept=".json,application/json"></label>
</section>
"""


def render(workspace: Workspace, store: Store) -> gr.HTML:
    """Renders the tab; `settings` of the result brings an imported file."""
    disk.render(workspace, store)
    return gr.HTML(html_template=_IMPORT, js_on_load=script("import.js"))
