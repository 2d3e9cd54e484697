"""The shared parts of the tabs: markup, number formats and artifact menus."""

from pathlib import Path

import pytest
from gradio import component_meta
from gradio import mcp as gradio_servers

from core.workspace.workspace import Workspace
from ui.parts import artifacts, markup
from ui.parts.tokens import colour_tokens, mark_masked

SCRIPT = "<script>alert(1)</script>"


def test_every_part_escapes_its_text() -> None:
    pieces = [
        markup.heading(SCRIPT, SCRIPT),
        markup.empty_state(SCRIPT, SCRIPT, tab="runs", link=SCRIPT),
        markup.tiles([(SCRIPT, SCRIPT)]),
        markup.table([SCRIPT], [[SCRIPT]], label=SCRIPT),
        markup.code_blocks([(SCRIPT, SCRIPT)]),
        colour_tokens([(SCRIPT, 3)], frozenset()),
        mark_masked([(SCRIPT, f'"{SCRIPT}', True), (SCRIPT, SCRIPT, False)]),
    ]
    for piece in pieces:
        assert "<script" not in piece
        assert "&lt;script&gt;" in piece


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (950, "950"),
        (999.6, "1 k"),
        (12_345, "12.3 k"),
        (999_400, "999 k"),
        (999_600, "1 M"),
        (4_370_000, "4.37 M"),
        (1.02e9, "1.02 G"),
        (1.5e12, "1.5 T"),
    ],
)
def test_large_counts_are_short(value: float, text: str) -> None:
    assert markup.short_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (4_200_000, "4.2 MB"), (18e9, "18 GB")],
)
def test_bytes_have_a_unit(value: float, text: str) -> None:
    assert markup.byte_count(value) == text


@pytest.mark.parametrize(
    ("names", "chosen", "known", "expected"),
    [
        (["b", "a"], "", [], "b"),  # nothing was chosen: the newest one
        (["b", "a"], "a", ["a"], "b"),  # the former newest one was chosen: the new one
        (["c", "b", "a"], "a", ["b", "a"], "a"),  # an older one was chosen by hand: kept
        (["c", "b"], "a", ["b", "a"], "c"),  # the chosen one was deleted: the newest one
        (["b", "a"], "user/repo", ["a"], "user/repo"),  # typed, not from the menu
        (["a"], "user/repo", [], "user/repo"),  # typed while the menu was empty
        ([], "user/repo", [], "user/repo"),
        (["b", "a"], "a", [], "b"),  # in the menu, so it wasn't typed
        ([], "a", ["a"], ""),
        (["a"], "a", ["a"], "a"),
    ],
)
def test_menu_follows_the_newest_artifact(
    names: list[str], chosen: str, known: list[str], expected: str
) -> None:
    assert artifacts.follow_newest(names, chosen, known) == expected


def test_a_damaged_artifact_does_not_hide_the_others(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with workspace.new_artifact("tokenizer", "good") as draft:
        (draft.folder / "tokenizer.json").write_text("{}")
    broken = workspace.folder("tokenizer") / "broken"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    assert artifacts.list_names(workspace, "tokenizer") == ["good"]


def test_the_revision_changes_with_the_artifacts(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    before = artifacts.revision(workspace)
    with workspace.new_artifact("tokenizer", "new") as draft:
        (draft.folder / "tokenizer.json").write_text("{}")
    assert artifacts.revision(workspace) != before
    assert artifacts.revision(workspace) == artifacts.revision(workspace)


def test_gradio_writes_no_stub_files_of_its_components() -> None:
    assert component_meta.create_or_modify_pyi.__module__ == "ui.parts.gradio_stubs"


def test_gradio_does_not_import_the_sdk_of_mcp_servers() -> None:
    assert not hasattr(gradio_servers.GradioMCPServer, "StreamableHTTPSessionManager")
