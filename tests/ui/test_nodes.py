"""Rendered results become nodes in which text stays text."""

from __future__ import annotations

import pytest

from ui.parts.nodes import nodes_of


def test_elements_attributes_and_text_are_kept() -> None:
    html = '<div class="a"><p>1 &lt; 2 &amp; <b>so</b></p><details open><br></details></div>'
    assert nodes_of(html) == [
        [
            "div",
            {"class": "a"},
            [
                ["p", {}, ["1 < 2 & ", ["b", {}, ["so"]]]],
                ["details", {"open": True}, [["br", {}, []]]],
            ],
        ]
    ]
    assert nodes_of("") == []


@pytest.mark.parametrize(
    "html",
    [
        "<script>x</script>",
        "<img src=x>",
        '<p onclick="x">y</p>',
        '<p style="x">y</p>',
        '<a href="javascript:alert(1)">x</a>',
        '<a href=" JavaScript:alert(1)">x</a>',
        '<a href="data:text/html,x">x</a>',
        "<a href>x</a>",
    ],
)
def test_other_tags_and_attributes_are_refused(html: str) -> None:
    with pytest.raises(ValueError, match="<"):
        nodes_of(html)
