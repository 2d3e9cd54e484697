"""Curves as image files."""

from __future__ import annotations

import io
import math
import re
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from core.report.curves import Curve, draw_curves

LOSS = Curve("validation loss", [0, 100, 200], [6.0, 5.0, 4.5])
RGB_OF_THE_BASELINE = (0xB4, 0x53, 0x09)


def pixels(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))


def test_picture_shows_the_baseline_if_there_is_one() -> None:
    with_baseline = pixels(draw_curves([LOSS], baseline=5.5))
    without = pixels(draw_curves([LOSS]))
    assert with_baseline.shape == without.shape == (518, 1152, 3)
    assert (with_baseline == RGB_OF_THE_BASELINE).all(-1).any()
    assert not (without == RGB_OF_THE_BASELINE).all(-1).any()


def test_equal_curves_give_equal_bytes() -> None:
    for form in ("png", "svg"):
        assert draw_curves([LOSS], form=form) == draw_curves([LOSS], form=form)


def test_nan_values_and_empty_curves_are_omitted() -> None:
    broken = Curve("training loss", [0, 1, 2], [6.0, math.nan, 5.0], faint=True)
    whole = Curve("training loss", [0, 2], [6.0, 5.0], faint=True)
    nothing = Curve("nothing", [], [])
    assert draw_curves([broken, nothing]) == draw_curves([whole])


def test_axis_labels_are_whole_steps() -> None:
    for steps in ([0], [1], [1, 2, 3]):
        drawing = draw_curves([Curve("loss", steps, [5.0] * len(steps))], form="svg").decode()
        labels = [one for one in re.findall(r"<!-- (.*?) -->", drawing) if one[-1] == "m"]
        assert not labels, steps
        assert f"<!-- {steps[0]} -->" in drawing


def test_drawing_has_no_external_links() -> None:
    drawing = draw_curves([LOSS], baseline=5.5, form="svg")
    tree = ElementTree.fromstring(drawing)
    links = [value for node in tree.iter() for name, value in node.items() if "href" in name]
    assert links and all(link.startswith("#") for link in links)
