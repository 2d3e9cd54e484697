"""Names of the metrics of phenomena and of sources of text."""

from __future__ import annotations

from core.evaluation.names import metric_names, short_names


def test_names_are_short_plain_and_distinct() -> None:
    long = "x" * 80
    found = metric_names("pairs_accuracy", ["a b/ü", "a_b/ü", long, f"{long}y", f"{long}z"])
    assert found["a b/ü"] == "pairs_accuracy/a_b/ü"
    assert found["a_b/ü"] == "pairs_accuracy/a_b/ü-2"
    assert len(set(found.values())) == 5 and max(map(len, found.values())) == 64


def test_folders_that_all_files_have_in_common_are_left_out() -> None:
    assert short_names(["/data/en/a.txt", "/data/ko/a.txt"]) == {
        "/data/en/a.txt": "en/a.txt",
        "/data/ko/a.txt": "ko/a.txt",
    }
    assert short_names(["/data/a.txt", "/data/b/c.txt"])["/data/a.txt"] == "a.txt"
    assert short_names(["/data/a.txt"]) == {"/data/a.txt": "a.txt"}
    assert short_names(["en", "no"]) == {"en": "en", "no": "no"}
    assert short_names([]) == {}
