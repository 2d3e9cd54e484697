"""The options of the web app, chosen in a real browser: no choice breaks its form."""

from __future__ import annotations

import itertools
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
import pytest

from core.__main__ import build_parser
from core.cli.fields import stage_values
from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.shards.build import build
from core.stages.registry import STAGES
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint, write_writer
from tests.core.sweeps.support import make_sweep
from tests.thorough import THOROUGH
from tests.ui.browser import Visitor, find_chromium, panel_of, running_app, visiting
from ui.forms import Form
from ui.parts.subjects import SubjectForm
from ui.parts.text_choice import TextForm

pytestmark = pytest.mark.long

# The form ids of each tab, by stage.
FORMS = {
    "Corpus": {},
    "Clean": {"clean": "clean"},
    "Tokenizer": {"tokenizer": "tokenizer"},
    "Shards": {"shards": "shards"},
    "Train": {"train": "train", "preflight": "preflight"},
    "Runs": {},
    "Sweeps": {},
    "Evaluate": {"evaluate": "evaluate"},
    "Fine-tune": {"finetune": "finetune"},
    "Playground": {},
    "Publish": {"push": "publish", "export": "export"},
    "Workspace": {},
}
# The forms with the most options.
LONG = ("Clean", "Train")
# Switches that show further controls.
SWITCHES = {"Clean": ("clean-boilerplate_lines", "clean-fineweb")}
# The web app may be slow if two cores run the browser and the app.
SETTLED_WITHIN_SECONDS = 90
# Matches a list, an object or a Gradio update that is shown as a value by mistake.
NO_VALUE = re.compile(r"""^\s*[\[{]|\[object |__type__|\bundefined\b|\bNaN\b""")

# Expected problems: choices that the few artifacts of this workspace don't fit, or that need a
# sign-in, or have no effect with the other values. Any other problem is a bug.
CAUSED = re.compile(
    "too few sentinels|no sentinels|fewer training sequences than one step|Sign in to publish|"
    "only evaluate|evaluate_only|[Nn]o path|a path|dataset_name|needs? a checkpoint|config.json|"
    "The checkpoint belongs to another family|can't train with the objective|lacks a special token|"
    "doesn.t fit|can't learn from|isn't attached|No usable GPU|No usable TPU|There is no|"
    "was not found|is unknown|There are no training examples|has no effect|"
    # Machines whose host, flavor, zone or bucket is still to be entered.
    "can.t be the address of a|can.t be a machine of|The address of the .* is invalid|"
    "names no zone|needs a mirror|No text files were given|No machine is named yet"
)

# The visible controls of a tab with their options, in document order.
CONTROLS = """
(tab) => {
  const seen = (node) => node.checkVisibility({ visibilityProperty: true }) && node.offsetParent;
  const panel = document.getElementById(tab);
  const found = [];
  const add = (kind, node, options) => {
    const block = node.closest("[id]:not(input):not(label)");
    const nth = [...block.querySelectorAll(node.tagName)].indexOf(node);
    found.push({ kind, block: block.id, nth, options });
  };
  for (const group of panel.querySelectorAll("fieldset")) {
    const radios = [...group.querySelectorAll("input[type=radio]")];
    if (seen(group) && radios.length) add("radio", radios[0], radios.map((one) => one.value));
  }
  for (const box of panel.querySelectorAll("input[type=checkbox]:not(search *)"))
    if (seen(box.closest("label"))) add("checkbox", box, ["on", "off"]);
  for (const menu of panel.querySelectorAll("input[role=combobox]"))
    if (seen(menu)) add("menu", menu, []);
  for (const slider of panel.querySelectorAll("input[type=range]:not(:disabled)"))
    if (seen(slider)) add("slider", slider, ["Home", "End"]);
  for (const menu of panel.querySelectorAll("select"))
    if (seen(menu)) add("select", menu, [...menu.options].map((one) => one.value));
  return found;
}
"""
# What a tab shows: texts, problems, commands and refusals, and the fields' values by form and name.
SHOWN = """
([tab, forms]) => {
  const panel = document.getElementById(tab);
  const texts = (selector) => [...panel.querySelectorAll(selector)].map((one) => one.textContent);
  const valueOf = (block) => {
    const radio = block.querySelector("input[type=radio]");
    if (radio) return block.querySelector("input[type=radio]:checked")?.value ?? "";
    const box = block.querySelector("input[type=checkbox]");
    return box ? box.checked : block.querySelector("input, textarea").value;
  };
  const beside = [...panel.querySelectorAll(".ps-problem:not([hidden])")];
  const problems = [...beside, ...document.querySelectorAll(".ps-message")];
  const values = {};
  for (const [form, names] of forms) {
    const blocks = names.map((name) => [name, document.getElementById(`${form}-${name}`)]);
    const shown = blocks.filter(([, block]) => block);
    values[form] = Object.fromEntries(shown.map(([name, block]) => [name, valueOf(block)]));
  }
  return {
    texts: [...panel.querySelectorAll(":is(input:not([type=file]), textarea, select)")]
      .map((one) => [one.closest("[id]:not(input):not(textarea)")?.id, one.value]),
    problems: problems.map((one) => [one.closest("[id]:not(p)")?.id ?? "", one.textContent]),
    commands: texts(".ps-command .ps-code:first-of-type code"),
    refused: texts(".ps-facts .ps-error, .ps-hint"),
    values,
  };
}
"""


@dataclass(frozen=True)
class Control:
    """A control with options."""

    kind: str
    block: str
    nth: int
    options: tuple[str, ...] = field(compare=False)

    def locate(self, page: Any) -> Any:
        kinds = {
            "radio": "input[type=radio]",
            "checkbox": "input[type=checkbox]",
            "menu": "input[role=combobox]",
            "slider": "input[type=range]",
            "select": "select",
        }
        found = page.locator(f"[id='{self.block}']").locator(kinds[self.kind])
        return found if self.kind == "radio" else found.first


class Chooser:
    """Chooses options in a tab and checks the web app after each choice.

    Args:
        visitor: The browser tab.
        forms: The web app's forms, by stage.
        workspace: The web app's workspace.
    """

    def __init__(self, visitor: Visitor, forms: dict[str, Form[Any]], workspace: Workspace) -> None:
        self.visitor, self.page, self.forms = visitor, visitor.page, forms
        self.workspace = workspace
        self.chosen: list[str] = []
        self.problems: list[str] = []

    def forget(self) -> None:
        """Forgets what earlier tests chose and found."""
        for found in (self.chosen, self.problems, self.visitor.errors):
            found.clear()

    def assert_well(self) -> None:
        """Raises AssertionError for any problem or script error."""
        assert self.visitor.errors == []
        assert not self.problems, "\n".join(self.problems)

    def settle(self) -> None:
        """Waits until no request has been sent or answered for a while."""
        awaited = self.visitor.settle(SETTLED_WITHIN_SECONDS)
        assert not awaited, f"the page does not come to rest after {self.chosen[-1:]}: {awaited}"

    def open(self, tab: str, view: str) -> None:
        self.visitor.open(tab)
        sections = self.page.locator(f"#{panel_of(tab)} .ps-section > button:not(.open)")
        for number in reversed(range(sections.count())):
            sections.nth(number).click()
        switches = self.page.locator(f"#{panel_of(tab)} .ps-view")
        for number in range(switches.count()):
            switches.nth(number).get_by_text(view, exact=True).click()
        groups = self.page.locator(f"#{panel_of(tab)} .ps-open-all:visible")
        for number in range(groups.count()):
            groups.nth(number).click()
        commands = self.page.locator(f"#{panel_of(tab)} .ps-command > button:not(.open)")
        for number in reversed(range(commands.count())):
            commands.nth(number).click()
        for id in SWITCHES.get(tab, ()):
            self.visitor.field(id).check()
        self.settle()

    def controls(self, tab: str) -> list[Control]:
        found = self.page.evaluate(CONTROLS, panel_of(tab))
        return [
            Control(one["kind"], one["block"], one["nth"], tuple(one["options"])) for one in found
        ]

    def options_of(self, control: Control) -> tuple[str, ...]:
        if control.kind != "menu":
            return control.options
        control.locate(self.page).click()
        listed = self.page.locator(f"[id='{control.block}'] [role=option]")
        texts = listed.evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))")
        self.page.keyboard.press("Escape")
        control.locate(self.page).blur()
        return tuple(text for text in texts if text)

    def current(self, control: Control) -> str:
        node = control.locate(self.page)
        if control.kind == "radio":
            return str(node.evaluate_all("(all) => all.find((one) => one.checked)?.value ?? ''"))
        if control.kind == "slider":
            return ""
        if control.kind == "checkbox":
            return "on" if node.is_checked() else "off"
        return str(node.input_value())

    def choose(self, control: Control, option: str, by: str) -> None:
        self.chosen.append(f"{control.block}: {option} by {by}")
        choose = getattr(self, f"_{control.kind}_by_{by}")
        choose(control.locate(self.page), control, option)

    def _radio_by_mouse(self, node: Any, control: Control, option: str) -> None:
        self.page.locator(f"[id='{control.block}'] label:has(input[value='{option}'])").click()

    def _radio_by_keyboard(self, node: Any, control: Control, option: str) -> None:
        node.locator("visible=true").and_(self.page.locator(":checked")).focus()
        for _ in control.options:
            if self.current(control) == option:
                return
            self.page.keyboard.press("ArrowRight")

    def _checkbox_by_mouse(self, node: Any, control: Control, option: str) -> None:
        if self.current(control) != option:
            node.click()

    def _checkbox_by_keyboard(self, node: Any, control: Control, option: str) -> None:
        if self.current(control) != option:
            node.focus()
            self.page.keyboard.press("Space")

    def _menu_by_mouse(self, node: Any, control: Control, option: str) -> None:
        node.click()
        self.page.locator(f"[id='{control.block}'] [role=option][aria-label='{option}']").click()

    def _menu_by_keyboard(self, node: Any, control: Control, option: str) -> None:
        node.focus()
        active = (
            "(one) => document.getElementById(one.getAttribute('aria-activedescendant'))"
            "?.getAttribute('aria-label')"
        )
        for _ in range(100):
            if node.evaluate(active) == option:
                break
            self.page.keyboard.press("ArrowDown")
            self.page.wait_for_timeout(10)
        self.page.keyboard.press("Enter")

    def _slider_by_mouse(self, node: Any, control: Control, option: str) -> None:
        box = node.bounding_box()
        x = 1 if option == "Home" else box["width"] - 1
        node.click(position={"x": x, "y": box["height"] / 2})

    def _slider_by_keyboard(self, node: Any, control: Control, option: str) -> None:
        node.focus()
        self.page.keyboard.press(option)

    def _select_by_mouse(self, node: Any, control: Control, option: str) -> None:
        node.select_option(option)

    _select_by_keyboard = _select_by_mouse

    def look(self, tab: str, seconds: float = SETTLED_WITHIN_SECONDS / 3) -> None:
        """Notes the problems that remain some seconds after the last choice."""
        noted = len(self.problems)
        deadline = time.monotonic() + seconds
        while True:
            del self.problems[noted:]
            self._look(tab)
            if len(self.problems) == noted or time.monotonic() > deadline:
                return
            self.page.wait_for_timeout(200)

    def _look(self, tab: str) -> None:
        forms = {one.id: one for stage in FORMS[tab] for one in self.forms[stage]._all()}
        asked = [[id, list(form.components)] for id, form in forms.items()]
        shown = self.page.evaluate(SHOWN, [panel_of(tab), asked])
        for place, text in shown["texts"]:
            if NO_VALUE.search(text):
                self._note(f"{place} holds {text}")
        for place, text in shown["problems"]:
            if not CAUSED.search(text):
                self._note(f"{place} says {text}")
        for text in shown["refused"]:
            if not CAUSED.search(text):
                self._note(f"refused: {text}")
        commands = dict(map(parsed, shown["commands"]))
        for stage in FORMS[tab]:
            expected = self.expected(stage, shown["values"])
            if stage not in commands:
                if not shown["problems"]:
                    self._note(f"no command for {stage}")
                continue
            command, made_first = commands[stage]
            if made_first:
                expected = expected.model_copy(update={made_first: getattr(command, made_first)})
            # A form with a refused choice may show a command that can't run.
            if command != expected and not shown["problems"]:
                self._note(f"{stage}: {differences(command, expected)}")

    def expected(self, stage: str, shown: dict[str, dict[str, Any]]) -> StageConfig:
        """Returns the config of shown values, given by form and name."""
        form = self.forms[stage]
        typed = [
            {name: to_typed(one.components[name], value) for name, value in shown[one.id].items()}
            for one in form._all()
        ]
        return form.parse(*typed)

    def _note(self, problem: str) -> None:
        self.problems.append(f"after {self.chosen[-1]}: {problem}")


def to_typed(component: Any, shown: Any) -> Any:
    """Returns the value that is sent for a shown one: menus may show labels."""
    choices = dict(getattr(component, "choices", None) or [])
    return choices.get(shown, shown)


def parsed(command: str) -> tuple[str, tuple[StageConfig, str]]:
    """Returns the stage and config of a command line; of several joined commands, the last one's.

    The last item is the field that refers to the artifact of an earlier command, or "".
    """
    *earlier, line = command.split(" &&\n")
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "core"], line
    options = build_parser().parse_args(words[3:])
    model = STAGES[options.stage].config
    made_first = {"shards": "tokenizer", "train": "shards"}[options.stage] if earlier else ""
    return options.stage, (model.parse(stage_values(options, model)), made_first)


def differences(shown: StageConfig, expected: StageConfig) -> str:
    ours, theirs = shown.model_dump(), expected.model_dump()
    return ", ".join(
        f"{name}: the command has {ours[name]!r}, the form {theirs[name]!r}"
        for name in theirs
        if ours[name] != theirs[name]
    )


def page_forms(workspace: Workspace) -> dict[str, Form[Any]]:
    """Builds the web app's forms, by stage."""
    with gr.Blocks():
        text = Form(CorpusConfig, "corpus", workspace)
        read = {stage: TextForm(text, stage, workspace) for stage in ("tokenizer", "shards")}
        forms: dict[str, Form[Any]] = {
            "clean": Form(STAGES["clean"].config, "clean", workspace, nested={"corpus": text}),
            **{
                stage: Form(STAGES[stage].config, stage, workspace, nested={"corpus": one})
                for stage, one in read.items()
            },
            "train": Form(STAGES["train"].config, "train", workspace),
            "evaluate": SubjectForm(STAGES["evaluate"].config, "evaluate", workspace),
            "finetune": SubjectForm(STAGES["finetune"].config, "finetune", workspace),
            "export": SubjectForm(STAGES["export"].config, "export", workspace),
            "push": Form(STAGES["push"].config, "publish", workspace),
        }
        forms["preflight"] = Form(
            STAGES["preflight"].config, "preflight", workspace, base=forms["train"]
        )
        for one in read.values():
            one.render_choice()
        for form in (text, *forms.values()):
            form.render()
    return forms


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a tokenizer, shards and two models."""
    find_chromium()
    workspace = Workspace(tmp_path_factory.mktemp("options") / "workspace")
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    corpus = CorpusConfig(source="files", path=str(workspace.root / "text.txt"))
    shards = STAGES["shards"].config(
        name="rows", tokenizer="byte_level_bpe", corpus=corpus, max_seq_length=32
    )
    build(shards, workspace)
    with workspace.new_artifact("model", "reader") as draft:
        write_checkpoint(draft.folder, tokenizer)
    with workspace.new_artifact("model", "writer") as draft:
        write_writer(draft.folder, tokenizer, "gpt2", positions=1024, ends=False)
    for name in ("first", "second"):
        make_sweep(workspace, name)
    return workspace


@pytest.fixture(scope="module")
def address(workspace: Workspace) -> Iterator[str]:
    with running_app(workspace.root) as url:
        yield url


def choose_all(
    chooser: Chooser, tab: str, view: str, ways: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    """Chooses each option of each control of these kinds, the present one last.

    Args:
        ways: "mouse" and "keyboard", in turn.
    """
    chooser.open(tab, view)
    tried: set[Control] = set()
    turns = itertools.cycle(ways)
    # A choice may reveal further controls.
    while rest := [one for one in chooser.controls(tab) if one not in tried and one.kind in kinds]:
        control = rest[0]
        tried.add(control)
        if control.block.endswith("-view"):
            continue
        before, options = chooser.current(control), chooser.options_of(control)
        others = [one for one in options if one != before]
        # In long forms, one other option of a control has to do.
        chosen = others if THOROUGH or tab not in LONG else others[:1]
        for option in [*chosen, before] if before in options else chosen:
            chooser.choose(control, option, next(turns))
            chooser.settle()
            chooser.look(tab)


@pytest.fixture(scope="module")
def chooser(workspace: Workspace, address: str) -> Iterator[Chooser]:
    with visiting(address) as visit:
        yield Chooser(visit(), page_forms(workspace), workspace)


@pytest.mark.slow(40)
def test_no_radio_button_or_preset_breaks_a_form(chooser: Chooser) -> None:
    chooser.forget()
    for tab in ("Tokenizer", "Shards", "Evaluate"):
        choose_all(chooser, tab, "Basic", ("mouse",), ("radio",))
    assert len(chooser.chosen) > 10
    chooser.assert_well()


@pytest.mark.slow(30)
def test_form_settles_after_choices_in_quick_succession(chooser: Chooser) -> None:
    chooser.forget()
    chooser.open("Train", "Basic")
    [presets] = [one for one in chooser.controls("Train") if one.block == "train-preset"]
    # Each is chosen before the request for the previous one is answered.
    for number in range(8):
        chooser.choose(presets, presets.options[number % 2], "mouse")
        chooser.page.wait_for_timeout(170)
    chooser.settle()
    chooser.look("Train")
    chooser.assert_well()


_WAYS = [
    pytest.param(("mouse", "keyboard"), id="either"),
    pytest.param(("mouse",), id="mouse", marks=pytest.mark.thorough),
    pytest.param(("keyboard",), id="keyboard", marks=pytest.mark.thorough),
]


@pytest.mark.slow(20)
@pytest.mark.parametrize("ways", _WAYS)
@pytest.mark.parametrize("tab", FORMS)
def test_no_option_breaks_a_form(chooser: Chooser, tab: str, ways: tuple[str, ...]) -> None:
    chooser.forget()
    kinds = ("radio", "checkbox", "menu", "slider", "select")
    # The advanced view has all options.
    choose_all(chooser, tab, "Advanced", ways, kinds)
    chooser.assert_well()
