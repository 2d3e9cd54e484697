"""Labelled examples from files of all formats, and what is refused."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.config.corpus import CorpusConfig
from core.config.finetune import FinetuneConfig
from core.errors import ConfigError, CorpusError, StudioError
from core.finetuning.data import check_files, hold_out, read_splits
from core.finetuning.examples import Example, Sentence
from core.finetuning.glue import with_glue
from core.finetuning.labels import Labels
from core.finetuning.sampling import sample
from core.finetuning.tasks import make_task
from core.finetuning.unused import check_used

ROWS = [{"label": number % 2, "text": f'"text" {number}'} for number in range(10)]
CONLLU = """# newpar id = p1
# text = Han tok det.
1\tHan\than\tPRON\tpron\t_\t2\tnsubj\t_\t_
2-3\ttok det\t_\t_\t_\t_\t_\t_\t_\t_
2\ttok\tta\tVERB\tverb\t_\t0\troot\t_\t_
3\tdet\tdet\tPRON\tpron\t_\t2\tobj\t_\tSpaceAfter=No
3.1\t_\t_\t_\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\tclb\t_\t2\tpunct\t_\t_

1\tJa\tja\tINTJ\tinterj\t_\t0\troot\t_\t_

"""


def write(folder: Path, name: str, rows: list[dict[str, Any]] = ROWS) -> str:
    """Writes rows in the format of the name's suffix."""
    path = folder / name
    if name.endswith(".parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    elif "json" in name:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        mark = "\t" if ".tsv" in name.lower() else ","
        quote = '"' if mark == "," else ""
        cells = [[str(one).replace('"', '""' if quote else '"') for one in row.values()]
                 for row in rows]  # fmt: skip
        lines = [mark.join(rows[0]), *(mark.join(f"{quote}{c}{quote}" for c in r) for r in cells)]
        text = "\n".join(lines) + "\n"
        path.write_bytes(
            gzip.compress(text.encode()) if name.lower().endswith(".gz") else text.encode()
        )
    return str(path)


@pytest.mark.parametrize(
    "name", ["a.csv", "a.tsv", "A.TSV", "a.tsv.gz", "A.Tsv.GZ", "a.jsonl", "a.parquet"]
)
def test_examples_are_read_from_all_formats(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name)
    splits = read_splits(FinetuneConfig(train_path=path, test_path=path))
    assert [(one.texts, one.label) for one in splits.test] == [  # type: ignore[union-attr]
        ((row["text"],), str(row["label"])) for row in ROWS
    ]
    assert (len(splits.train), len(splits.validation)) == (9, 1)
    assert splits.test_name == name


@pytest.mark.parametrize("pattern", ["", "*.tsv", "*"])
def test_quotation_marks_in_a_folder_are_read_by_each_files_format(
    tmp_path: Path, pattern: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a.tsv", "b.tsv", *(["c.csv"] if pattern != "*.tsv" else [])):
        write(folder, name)
    path = str(folder / pattern)
    found = read_splits(FinetuneConfig(train_path=path, test_path=path)).test
    texts = [row["text"] for row in ROWS]
    assert [one[0] for one in found] == [(one,) for one in texts * (len(found) // 10)]
    assert len(found) == (20 if pattern == "*.tsv" else 30)


def test_members_of_an_archive_are_read_by_their_formats(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("a.tsv", "b.csv"):
            archive.write(write(tmp_path, name), name)
    config = FinetuneConfig(train_path=str(path), test_path=str(path))
    texts = [row["text"] for row in ROWS]
    assert [one[0] for one in read_splits(config).test] == [(one,) for one in texts * 2]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"text_column": "label"}, "text_column"),
        ({"text_column": "text", "label_column": "text"}, "text_column"),
        ({"text_column": "text", "text_pair_column": "label"}, "text_pair_column"),
        ({"text_column": "text", "text_pair_column": "text"}, "text_pair_column"),
        ({"text_column": "2", "label_column": "2", "csv_header": "no"}, "text_column"),
    ],
)
def test_label_is_never_read_as_a_text(tmp_path: Path, values: dict[str, str], field: str) -> None:
    path = write(tmp_path, "a.csv")
    for task in ("classification", "regression"):
        with pytest.raises(ConfigError, match="same column") as caught:
            read_splits(FinetuneConfig(train_path=path, task=task, **values))  # type: ignore[arg-type]
        assert caught.value.field == field
        with pytest.raises(ConfigError, match="same column"):
            check_files(FinetuneConfig(train_path=path, task=task, **values))  # type: ignore[arg-type]


def test_limit_takes_a_sample_of_sorted_classes(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": n // 500} for n in range(1000)]
    path = write(tmp_path, "a.jsonl", rows)
    config = FinetuneConfig(train_path=path, test_path=path, validation_path=path, limit=40)
    splits = read_splits(config)
    labels = [one[1] for one in splits.train]
    assert len(labels) == 40 and labels == sorted(labels) and 10 < labels.count("0") < 30
    assert splits.train == read_splits(config).train, "always the same"
    assert [len(splits.test), len(splits.validation)] == [1000, 1000]
    smaller = read_splits(config.model_copy(update={"limit": 10})).train
    assert set(smaller) < set(splits.train), "a smaller sample is part of a larger one"
    order = [int(one[0][0].split()[1]) for one in splits.train]
    assert order == sorted(order)
    most = read_splits(config.model_copy(update={"limit": 2000})).train
    assert [one[0] for one in most] == [(row["text"],) for row in rows]


def test_limit_takes_a_sample_of_sentences(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"w{n} {'AB'[n // 50]}\n\n" for n in range(100)))
    config = FinetuneConfig(
        task="token_classification", train_path=str(path), validation_path=str(path), limit=20
    )
    tags = {one[1] for one in read_splits(config).train}
    assert tags == {("A",), ("B",)}


def test_sample_is_spread_evenly() -> None:
    chosen = list(sample(range(100_000), 10_000))
    assert len(set(chosen)) == 10_000 and chosen == sorted(chosen)
    counts, _ = np.histogram(chosen, 20, (0, 100_000))
    assert np.abs(counts / 500 - 1).max() < 0.2


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_folder_of_tables_has_lists_of_words(tmp_path: Path, suffix: str) -> None:
    rows = [{"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]}]
    for name in ("a", "b"):
        write(tmp_path, name + suffix, rows)
    (tmp_path / "README.md").write_text("# Words\n")
    (tmp_path / "dataset_infos.json").write_text("{}")
    for path in (tmp_path, tmp_path / f"*{suffix}"):
        config = FinetuneConfig(
            task="token_classification", train_path=str(path), test_path=str(path)
        )
        assert [one[:2] for one in read_splits(config).test] == [(("a", "b"), ("O", "B-X"))] * 2


def test_folder_of_tables_and_column_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", [{"tokens": ["a"], "tags": ["O"]}])
    (tmp_path / "b.conllu").write_text(CONLLU)
    config = FinetuneConfig(task="token_classification", train_path=str(tmp_path))
    with pytest.raises(ConfigError, match="mixes tables with column files") as caught:
        read_splits(config)
    assert (caught.value.field, "data/*.jsonl" in caught.value.fix) == ("train_path", True)


def test_folder_of_column_files_is_read(tmp_path: Path) -> None:
    for name in ("a.conllu", "b.conllu"):
        (tmp_path / name).write_text(CONLLU)
    config = FinetuneConfig(
        task="token_classification", train_path=str(tmp_path), test_path=str(tmp_path)
    )
    assert len(read_splits(config).test) == 4


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.conllu", b"1"), ("folder", b""), ("a.csv", b"text;label|x\na;b|x\n"),
        ("a.csv", b"text,label\na,b,c\n"), ("a.csv", b"text,label\nabc\xff,1\n" * 9),
        ("a.tsv", b"PAR1\x00\x00PAR1"), ("a.xlsx.zip", b"PK\x05\x06" + bytes(18)),
        ("a.csv", b"text,label\n" + b"a" * 65_000_000 + b",1\n"),
    ],
)  # fmt: skip
def test_errors_advise_only_options_of_this_stage(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "a.bin").write_bytes(b"x")
    else:
        path.write_bytes(data)
    with pytest.raises(StudioError) as caught:
        read_splits(FinetuneConfig(train_path=str(path)))
    assert caught.value.field in FinetuneConfig.model_fields
    absent = CorpusConfig.model_fields.keys() - FinetuneConfig.model_fields.keys()
    assert "source" in absent and not absent & set(re.findall(r"\w+", caught.value.fix)), caught


def test_pairs_and_numbers_are_found_by_their_usual_names(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": 1.5}] * 4
    path = write(tmp_path, "pairs.jsonl", rows)
    splits = read_splits(FinetuneConfig(train_path=path, task="regression"))
    (example, *_) = splits.train
    assert isinstance(example, Example)
    assert example.texts == ("a", "b") and float(example.label) == 1.5


def test_usual_names_of_columns_may_begin_with_capitals(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", [{"Id": "1", "Text": "a", "LABEL": "x"}] * 3)
    example = read_splits(FinetuneConfig(train_path=path)).train[0]
    assert isinstance(example, Example)
    assert (example.texts, example.label) == (("a",), "x")
    path = write(tmp_path, "pairs.jsonl", [{"Premise": "a", "Hypothesis": "b", "Label": "x"}] * 3)
    example = read_splits(FinetuneConfig(train_path=path)).train[0]
    assert isinstance(example, Example) and example.texts == ("a", "b")


def test_unclear_columns_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", [{"first": "a", "kind": "x"}] * 3)
    with pytest.raises(ConfigError, match="unclear which column has the text") as caught:
        read_splits(FinetuneConfig(train_path=path))
    assert caught.value.field == "text_column"
    config = FinetuneConfig(train_path=path, text_column="first", label_column="kind")
    assert read_splits(config).train[0].texts == ("a",)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="no column 'none'"):
        read_splits(config.model_copy(update={"label_column": "none"}))


def test_columns_are_those_of_all_rows_of_json_lines(tmp_path: Path) -> None:
    rows = [{"text": f"a {number}", "text_pair": "b", "label": number % 2} for number in range(20)]
    odd: dict[str, Any] = {"text": "a", "label": 0}
    path = write(tmp_path, "first.jsonl", [odd, *rows])
    with pytest.raises(CorpusError, match=r"Line 1 .*'text_pair'"):
        read_splits(FinetuneConfig(model="m", train_path=path))
    path = write(tmp_path, "label.jsonl", [{"text": "a", "text_pair": "b"}, *rows])
    with pytest.raises(CorpusError, match=r"Line 1 .*label"):
        read_splits(FinetuneConfig(model="m", train_path=path))


def test_measured_numbers_are_no_classes(tmp_path: Path) -> None:
    rows = [{"text": f"a {number}", "label": (number % 45) / 97} for number in range(60)]
    config = FinetuneConfig(model="m", train_path=write(tmp_path, "numbers.jsonl", rows))
    with pytest.raises(CorpusError) as caught:
        make_task(config, read_splits(config))
    assert caught.value.field == "task" and "regression" in caught.value.fix


def test_figures_that_rest_on_little_are_warned_of(tmp_path: Path) -> None:
    rows = [{"text": f"a {number}", "label": int(number == 7)} for number in range(60)]
    told: list[str] = []
    config = FinetuneConfig(model="m", train_path=write(tmp_path, "few.jsonl", rows))
    read_splits(config, told.append)
    few, missing = told
    assert "6 examples (development set)" in few and "has the class 1" in missing


def test_words_and_tags_are_read_from_conllu(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU)
    config = FinetuneConfig(task="token_classification", train_path=str(path), test_path=str(path))
    first, second = read_splits(config).test
    assert isinstance(first, Sentence) and isinstance(second, Sentence)
    assert first.words == ("Han", "tok", "det", ".")
    assert first.tags == ("PRON", "VERB", "PRON", "PUNCT")
    assert second.words == ("Ja",)
    other = config.model_copy(update={"label_column": "deprel"})
    assert read_splits(other).test[1].tags == ("root",)  # type: ignore[union-attr]


def test_tags_are_read_from_column_files(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n# SYM O\n")
    config = FinetuneConfig(task="token_classification", train_path=str(path), test_path=str(path))
    first, second = read_splits(config).test
    assert first == ((("EU", "rejects")), ("B-ORG", "O"), first.place)
    assert second[:2] == (("#",), ("O",))
    by_place = config.model_copy(update={"label_column": "2"})
    assert read_splits(by_place).test[0].tags == ("NNP", "VBZ")  # type: ignore[union-attr]
    for column in ("0", "9", "upos"):
        with pytest.raises(ConfigError, match="a number from 1 to 3"):
            read_splits(config.model_copy(update={"label_column": column}))


GERMEVAL = """#\tn-tv.de vom 26.02.2005 [2005-02-26]
1\tSchartau\tB-PER\tO
2\tsagte\tO\tO

#\twelt.de vom 29.10.2005
1\t"\tO\tO
2\tBerlin\tB-LOC\tB-LOCpart
"""


def test_other_white_space_belongs_to_words(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("10\u00a0000 B-NUM\nruns  O\n\u3000 O\n\n" * 20, "utf-8")
    splits = read_splits(FinetuneConfig(train_path=str(path), task="token_classification"))
    sentence = splits.train[0]
    assert isinstance(sentence, Sentence)
    assert list(sentence.words) == ["10\u00a0000", "runs", "\u3000"]


def test_words_may_be_in_any_column(tmp_path: Path) -> None:
    columns = {"text_column": "2", "label_column": "3"}
    assert read_tagged(tmp_path, "a.tsv", GERMEVAL, **columns) == [
        (("Schartau", "sagte"), ("B-PER", "O")), (('"', "Berlin"), ("O", "B-LOC")),
    ]  # fmt: skip
    for column, problem in (("3", "same column"), ("5", "a number from 1 to 4"), ("0", "to 4")):
        with pytest.raises(ConfigError, match=problem) as caught:
            read_tagged(tmp_path, "a.tsv", GERMEVAL, **{**columns, "text_column": column})
        assert caught.value.field == "text_column"
    with pytest.raises(CorpusError, match="a word in column 2 and a tag in column 4"):
        read_tagged(tmp_path, "a.tsv", "1\ta\tX\tO\n2\t\tX\tO\n", text_column="2")
    with pytest.raises(ConfigError, match="same column"):
        read_tagged(tmp_path, "a.tsv", GERMEVAL, text_column="4")


HEADED = "id word ner\n1 EU B-ORG\n2 rejects O\n\n1 id O\n"


@pytest.mark.parametrize(
    "values",
    [
        {"text_column": "word"}, {"text_column": "2", "label_column": "ner"},
        {"text_column": "2", "csv_header": "yes"},
    ],
)  # fmt: skip
def test_header_of_a_column_file_names_its_columns(tmp_path: Path, values: dict[str, str]) -> None:
    text = f"# id = 1\n\n{HEADED}"
    assert read_tagged(tmp_path, "a.txt", text, **values) == [
        (("EU", "rejects"), ("B-ORG", "O")), (("id",), ("O",)),
    ]  # fmt: skip
    with pytest.raises(CorpusError, match=r"Line 4 of .* is malformed"):
        read_tagged(tmp_path, "a.txt", "id word ner\n1 EU O\n\n1 x\n", **values)


def test_first_row_of_a_column_file_is_no_header_by_default(tmp_path: Path) -> None:
    first = read_tagged(tmp_path, "a.txt", HEADED, text_column="2")[0]
    assert first == (("word", "EU", "rejects"), ("ner", "B-ORG", "O"))
    with pytest.raises(ConfigError, match=r"a name in the header: id, word, ner"):
        read_tagged(tmp_path, "a.txt", HEADED, text_column="token")
    with pytest.raises(ConfigError, match="a number from 1 to 3"):
        read_tagged(tmp_path, "a.txt", HEADED, text_column="word", csv_header="no")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a.conllu", {"text_column": "lemma"}),
        ("a.conllu", {"text_column": "3"}),
        ("a.conllu", {"csv_header": "yes"}),
        ("a.conllu", {"label_column": "7"}),
        ("a.txt", {"quoting": "yes"}),
        ("a.txt", {"text_pair_column": "2"}),
        ("a.txt", {"dataset_name": "me/words"}),
        ("a.txt", {"test_split": "test"}),
        ("a.txt", {"validation_split": "dev"}),
    ],
)
def test_option_without_effect_is_refused(
    tmp_path: Path, name: str, values: dict[str, str]
) -> None:
    text = CONLLU if name.endswith("u") else "EU B-ORG\nruns O\n\nhe O\n"
    with pytest.raises(ConfigError) as caught:
        read_tagged(tmp_path, name, text, **values)
    assert [caught.value.field] == list(values)
    assert read_tagged(tmp_path, name, text, **({"text_column": "form"} if name[-1] == "u" else {}))


def test_options_of_a_split_without_effect_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl")
    config = FinetuneConfig(dataset_name="me/a", test_path=path, test_split="test")
    with pytest.raises(ConfigError, match="test_split has no effect together with test_path"):
        read_splits(config)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a.jsonl", {"train_split": "test"}),
        ("a.jsonl", {"csv_header": "no"}),
        ("a.jsonl", {"quoting": "no"}),
        ("a.parquet", {"encoding": "cp949"}),
        ("", {"encoding": "cp949"}),
        ("", {"quoting": "no"}),
        ("", {"csv_header": "yes"}),
    ],
)
def test_options_of_files_without_effect_are_refused(
    tmp_path: Path, name: str, values: dict[str, str]
) -> None:
    data = {"train_path": write(tmp_path, name)} if name else {"dataset_name": "me/a"}
    config = FinetuneConfig.parse({**data, **values})
    with pytest.raises(ConfigError, match="has no effect") as caught:
        read_splits(config)
    assert [caught.value.field] == list(values)
    if "train_split" not in values:
        test = {"test_path": write(tmp_path, "a.csv")}
        check_used(FinetuneConfig.parse({**data, **values, **test}))


def test_header_of_tables_of_words_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", [{"tokens": ["a"], "tags": ["O"]}])
    config = FinetuneConfig(task="token_classification", train_path=path, csv_header="yes")
    with pytest.raises(ConfigError, match="csv_header has no effect on files in the format jsonl"):
        check_files(config)


def read_tagged(folder: Path, name: str, text: str, **values: Any) -> list[Any]:
    """Writes a file of tagged words and reads it."""
    path = folder / name
    path.write_text(text)
    given: dict[str, Any] = {"validation_path": str(path), "test_path": str(path), **values}
    config = FinetuneConfig(task="token_classification", train_path=str(path), **given)
    return [(one[0], one[1]) for one in read_splits(config).test]


def row_of(number: str, word: str, upos: str = "X", xpos: str = "_") -> str:
    return "\t".join([number, word, word, upos, xpos, "_", "0", "root", "_", "SpaceAfter=No"])


GOOD = f"{row_of('1', 'a')}\n{row_of('2', 'b')}\n\n"


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("a.conllu", GOOD + row_of("1", "c").rpartition("\t")[0], 4),
        ("a.conllu", row_of("1", "New York").replace("\t", " ") + "\n" + GOOD, 1),
        ("a.conll-u", "# text = x\ncat\tNOUN\n", 2),
        ("a.txt", GOOD + row_of("1", "c") + "\n2\tcat\n", 5),
        ("a.conll", GOOD + "1 New York _ _\n", 4),
        ("a.conll", "# text = x\n" + GOOD + row_of("one", "c"), 5),
        ("a.conllu", GOOD + row_of("1", ""), 4),
        ("a.txt", "EU B-ORG\nruns O\n\nNew York B-LOC\n", 4),
        ("a.txt", "EU\tB-ORG\nruns O\n", 2),
        ("a.txt", "EU\tB-ORG\nruns\t\n", 2),
        ("a.txt", "EU\tB-ORG\n\tO\n", 2),
    ],
)
def test_malformed_line_is_reported_by_number(
    tmp_path: Path, name: str, text: str, number: int
) -> None:
    with pytest.raises(CorpusError, match=f"Line {number} of .*{name} is malformed") as caught:
        read_tagged(tmp_path, name, text)
    assert caught.value.field in ("train_path", "test_path")


def test_words_without_a_tag_have_no_label_in_conllu(tmp_path: Path) -> None:
    lines = [row_of("1", "a", "_", "DT"), row_of("2", "b", ""), row_of("3", "c", "NOUN")]
    text = "\n".join([*lines, "", row_of("1", "d", "_"), "", row_of("1", "e", "VERB"), "", ""])
    assert read_tagged(tmp_path, "a.conllu", text) == [
        (("a", "b", "c"), ("", "", "NOUN")), (("e",), ("VERB",)),
    ]  # fmt: skip
    with pytest.raises(CorpusError, match=r"No word of .* has a tag in the column upos"):
        read_tagged(tmp_path, "a.conllu", f"{row_of('1', 'a', '_')}\n\n{row_of('1', 'b', '')}\n")


def test_underscore_is_a_tag_in_column_files(tmp_path: Path) -> None:
    assert read_tagged(tmp_path, "a.txt", "a _\n\nb X\n") == [(("a",), ("_",)), (("b",), ("X",))]


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("#\tO\n\nEU\tB-ORG\n", ("O", "B-ORG")),
        ("# O\n\nEU B-ORG\n", ("O", "B-ORG")),
        (
            "# text = a b\n# newpar\n# a remark\n# O\n\n# sent_id = 2\na B\n\n#x B\n",
            ("O", "B", "B"),
        ),
        ("# id 7\tdomain=train\na _ _ O\n\nb _ _ X\n", ("O", "X")),
        ("# sent_id = 1\na _ _ O\n\n# sent_id = 2\nb _ _ X\n", ("O", "X")),
    ],
)
def test_word_number_sign_is_told_from_comments(
    tmp_path: Path, text: str, tags: tuple[str, ...]
) -> None:
    found = read_tagged(tmp_path, "a.txt", text)
    assert tuple(tag for _, (tag,) in found) == tags


def test_lists_of_words_are_read_from_tables(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]}, {"tokens": ["c"], "ner_tags": ["O"]}]
    path = write(tmp_path, "a.parquet", rows)
    config = FinetuneConfig(task="token_classification", train_path=path, test_path=path)
    assert read_splits(config).test[0][:2] == (("a", "b"), ("O", "B-X"))
    path = write(tmp_path, "b.jsonl", [{"tokens": ["a", "b"], "ner_tags": ["O"]}])
    with pytest.raises(StudioError, match="no word for each tag"):
        read_splits(config.model_copy(update={"train_path": path}))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "no training examples"),
        ({"train_path": "missing.tsv"}, "missing"),
        ({"learning_rates": "fast"}, "learning_rates"),
        ({"learning_rates": "0.1, 7"}, "learning_rates"),
    ],
)
def test_unsuitable_options_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(StudioError, match=problem):
        read_splits(FinetuneConfig(**values))


@pytest.mark.parametrize(
    ("given", "width", "rates"),
    [
        ("", 128, [3e-4, 1e-3, 3e-3]),
        (" ", 512, [1e-4, 3e-4, 1e-3]),
        ("", 768, [3e-5, 1e-4, 3e-4]),
        ("2e-5 2e-5", 128, [2e-5]),
    ],
)
def test_learning_rates_suit_the_width_unless_some_are_given(
    given: str, width: int, rates: list[float]
) -> None:
    assert FinetuneConfig(learning_rates=given).for_width(width).rates == rates


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ("good", "no number"),
        ("1_000", "no number"),
        (float("nan"), "no number"),
        pytest.param(int("9" * 400), "too large a number", id="400 digits"),
        (1e39, "too large a number"),
        ("-1e39", "too large a number"),
        ("inf", "too large a number"),
    ],
)
def test_label_must_be_a_number_within_float32_for_regression(
    tmp_path: Path, label: Any, problem: str
) -> None:
    rows = [{"text": "a", "label": 1}, {"text": "a", "label": label}]
    path = write(tmp_path, "a.jsonl", rows)
    with pytest.raises(CorpusError, match=rf"Line 2 of .* has {problem}.*float32") as caught:
        read_splits(FinetuneConfig(train_path=path, task="regression"))
    assert caught.value.field == "label_column"


def test_decimals_are_numbers_and_classes(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": Decimal("1.00")}, {"text": "b", "label": Decimal("0.50")}]
    path = write(tmp_path, "a.parquet", rows)
    train = write(tmp_path, "train.jsonl")
    found = read_splits(FinetuneConfig(train_path=train, test_path=path)).test
    assert [one.label for one in found] == ["1", "0.5"]  # type: ignore[union-attr]
    config = FinetuneConfig(train_path=train, test_path=path, task="regression")
    assert [float(one.label) for one in read_splits(config).test] == [1, 0.5]  # type: ignore[union-attr]


@pytest.mark.parametrize("header", ["text,label,label", "text,text,label"])
def test_columns_of_one_name_are_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n" + "a,0,1\nb,1,0\n" * 20)
    with pytest.raises(CorpusError, match=r"has several columns named (text|label)"):
        read_splits(FinetuneConfig(train_path=str(path)))


@pytest.mark.parametrize(
    ("labels", "advice"),
    [
        ([str(number) for number in range(20)], "set task to regression"),
        (["a", "b"], "add examples"),
        ([f"class-{number}" for number in range(20)], "add examples"),
    ],
)
def test_advice_if_no_class_can_spare_an_example(
    tmp_path: Path, labels: list[str], advice: str
) -> None:
    rows = [{"text": "x", "label": label} for label in labels]
    with pytest.raises(CorpusError, match="a class with at least 2 examples") as caught:
        read_splits(FinetuneConfig(train_path=write(tmp_path, "a.jsonl", rows)))
    assert caught.value.fix.startswith(advice)
    assert f"{len(labels)} different labels" in caught.value.received


@pytest.mark.parametrize("name", ["test.jsonl", "test.parquet"])
def test_whole_floats_and_integers_are_the_same_class(tmp_path: Path, name: str) -> None:
    train = write(tmp_path, "train.jsonl")
    test = write(tmp_path, name, [{"text": "a", "label": 1.0}, {"text": "b", "label": 0.5}])
    found = read_splits(FinetuneConfig(train_path=train, test_path=test)).test
    assert [one.label for one in found] == ["1", "0.5"]  # type: ignore[union-attr]


def test_label_must_not_be_nan(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", [{"text": "a", "label": float("nan")}])
    with pytest.raises(CorpusError, match=r"Line 1 of .* has no label"):
        read_splits(FinetuneConfig(train_path=path))


@pytest.mark.parametrize("empty", ["", "  "])
@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_empty_text_is_refused_with_its_row(tmp_path: Path, name: str, empty: str) -> None:
    path = write(tmp_path, name, [*ROWS, {"label": 1, "text": empty}])
    with pytest.raises(CorpusError, match=r"11 of .* has no text in the column 'text'"):
        read_splits(FinetuneConfig(train_path=path))


def test_one_of_a_pair_may_be_empty_only_in_glue(tmp_path: Path) -> None:
    rows = [{"question1": "a", "question2": "", "label": 1}] * 2
    path = write(tmp_path, "a.jsonl", rows)
    with pytest.raises(CorpusError, match="has no text in the column 'question2'"):
        read_splits(FinetuneConfig(train_path=path))
    config = with_glue(FinetuneConfig(glue="qqp", train_path=path))
    assert read_splits(config).train[0][0] == ("a", "")


def test_lists_must_not_have_empty_words(tmp_path: Path) -> None:
    rows = [{"tokens": [], "tags": []}, {"tokens": ["a", ""], "tags": ["O", "O"]}]
    path = write(tmp_path, "a.jsonl", rows)
    config = FinetuneConfig(task="token_classification", train_path=path)
    with pytest.raises(CorpusError, match=r"Line 2 of .* has no text in the column 'tokens'"):
        read_splits(config)


def test_classes_are_ordered_by_number_or_alphabet() -> None:
    assert Labels.of(["10", "9", "-1"]).names == ("-1", "9", "10")
    assert Labels.of(["b", "a", "9"]).names == ("9", "a", "b")
    with pytest.raises(StudioError, match="have the same label"):
        Labels.of(["a", "a"])


def test_held_out_examples_are_always_the_same() -> None:
    examples = [Example((str(number),), "0") for number in range(50)]
    train, validation = hold_out(examples, "classification")
    assert (len(train), len(validation)) == (45, 5)
    assert hold_out(examples, "classification") == (train, validation)
    assert sorted([*train, *validation]) == sorted(examples)


def test_each_class_keeps_a_training_example() -> None:
    for rare in range(30):
        examples = [Example((str(number),), "ab"[number % 2]) for number in range(30)]
        examples[rare] = examples[rare]._replace(label="c")
        train, validation = hold_out(examples, "classification")
        assert (len(train), len(validation)) == (27, 3)
        assert examples[rare] in train
    with pytest.raises(CorpusError, match="a class with at least 2 examples"):
        hold_out([Example(("x",), "a"), Example(("y",), "b")], "classification")


def tagged(*sentences: str) -> list[Sentence]:
    """Returns sentences by their tags."""
    return [Sentence(tuple(tags.split()), tuple(tags.split())) for tags in sentences]


def test_each_tag_keeps_a_training_sentence() -> None:
    for rare in range(30):
        sentences = tagged(*(f"O B{number % 3}" for number in range(30)))
        sentences[rare] = tagged("O B0 B-RARE")[0]
        train, validation = hold_out(sentences, "token_classification")
        assert (len(train), len(validation)) == (27, 3)
        assert sentences[rare] in train


@pytest.mark.parametrize("sentences", [("A B", "A C"), ("A B", "C"), ("A B", "A B")])
def test_two_sentences_are_enough_if_one_leaves_two_tags(sentences: tuple[str, str]) -> None:
    train, validation = hold_out(tagged(*sentences), "token_classification")
    assert len(train) == len(validation) == 1
    assert len(set(train[0][1])) == 2


@pytest.mark.parametrize("sentences", [("A B",), ("A", "B")])
def test_too_few_sentences_to_hold_one_out_are_an_error(sentences: tuple[str, ...]) -> None:
    with pytest.raises(CorpusError, match="too few training examples to hold some out") as caught:
        hold_out(tagged(*sentences), "token_classification")
    assert caught.value.field == "train_path" and "add examples" in caught.value.fix
    with pytest.raises(CorpusError, match="raise limit"):
        hold_out(tagged(*sentences), "token_classification", is_sample=True)


def test_tags_that_training_lacks_are_noted(tmp_path: Path) -> None:
    train, test = tmp_path / "train.txt", tmp_path / "test.txt"
    train.write_text("a A\nb B\n\n" * 20)
    test.write_text("a A\nb B\nc C\n\n")
    config = FinetuneConfig(task="token_classification", train_path=str(train), test_path=str(test))
    notes: list[str] = []
    read_splits(config, notes.append)
    assert "Only the test set has the tags C: the model doesn't" in notes[0]
    train.write_text("a A\nb B\n\nc C\nd D\n\n")
    read_splits(config, notes.append)
    assert "Only the development set has the tags " in notes[2]


def test_limit_that_leaves_out_classes_is_to_be_raised(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": "rare" if n == 99 else "ab"[n % 2]} for n in range(100)]
    path = write(tmp_path, "a.jsonl", rows)
    config = FinetuneConfig(train_path=path, validation_path=path, limit=10)
    with pytest.raises(CorpusError, match="labels that the training examples lack") as caught:
        make_task(config, read_splits(config))
    assert caught.value.field == "limit" and caught.value.fix.startswith("raise limit")
    path = write(tmp_path, "b.jsonl", rows[:99] + [{"text": "x", "label": "a"}] * 900)
    few = FinetuneConfig(train_path=path, validation_path=path, limit=2)
    with pytest.raises(CorpusError, match="have the same label") as caught:
        make_task(few, read_splits(few))
    assert caught.value.field == "limit" and caught.value.fix.startswith("raise limit")
    whole = few.model_copy(update={"limit": 10_000})
    splits = read_splits(whole)
    assert not splits.is_sample and make_task(whole, splits).outputs == 2


def test_held_out_numbers_differ() -> None:
    for odd in range(12):
        examples = [Example((str(number),), str(float(number == odd))) for number in range(12)]
        train, validation = hold_out(examples, "regression")
        assert (len(train), len(validation)) == (10, 2)
        assert examples[odd] in validation
    with pytest.raises(CorpusError, match="at least 3 examples"):
        hold_out(examples[:2], "regression")


def test_glue_task_sets_dataset_columns_and_metric() -> None:
    config = with_glue(FinetuneConfig(glue="stsb"))
    assert (config.task, config.dataset_name, config.dataset_config, config.test_split) == (
        "regression", "nyu-mll/glue", "stsb", "validation",
    )  # fmt: skip
    assert (config.text_column, config.text_pair_column) == ("sentence1", "sentence2")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"glue": "cola", "text_column": "text"}, "text_column"),
        ({"glue": "cola", "text_pair_column": "other"}, "text_pair_column"),
        ({"glue": "mrpc", "label_column": "class", "train_path": "a.tsv"}, "label_column"),
        ({"glue": "cola", "task": "regression"}, "task"),
        ({"glue": "cola", "dataset_name": "me/other"}, "dataset_name"),
    ],
)
def test_options_that_contradict_glue_are_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} contradicts glue") as caught:
        with_glue(FinetuneConfig(**values))
    assert caught.value.field == field


def test_options_may_repeat_those_of_glue() -> None:
    config = with_glue(FinetuneConfig(glue="mrpc", text_column="sentence1", test_split="test"))
    assert config.test_split == "test"
    assert with_glue(config) == config


@pytest.mark.parametrize("field", ["train_path", "validation_path", "test_path"])
def test_label_that_a_glue_task_lacks_is_refused_with_its_row(tmp_path: Path, field: str) -> None:
    good = write(tmp_path, "a.jsonl", [{"sentence": "a", "label": n % 2} for n in range(20)])
    bad = write(tmp_path, "b.tsv", [{"sentence": "a", "label": one} for one in ("0", "maybe")])
    config = with_glue(FinetuneConfig(glue="cola", **{"train_path": good, field: bad}))
    with pytest.raises(CorpusError, match=r"Row 2 of .*b.tsv has a label that the GLUE task cola"):
        read_splits(config)
