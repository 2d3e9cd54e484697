"""Finds the files of a path, folder or glob pattern, and reports those it skips."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from core.corpus.report import Skipped
from core.corpus.split_names import TRAIN, UNNAMED, VALIDATION, names_split, splits_of
from core.corpus.unpack import (
    DEFAULT_RATIO,
    SUFFIXES,
    Packed,
    archive_members,
    beginning_of,
    foreign_kind_of,
    head_of,
    is_tar,
    is_zip,
)
from core.errors import ConfigError, CorpusError
from core.foreign_files import parse_json
from core.workspace.names import expand_path

Format = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "arrow"]

_FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_NOT_IN_FOLDERS = {".md"}  # READMEs aren't data
# These often hold settings, unless they are compressed.
_ONLY_ALONE = {".json"}
# They describe a dataset and are not a part of it.
_METADATA = frozenset({
    "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json",
    "dummy_data.zip",
})  # fmt: skip
_ABOUT = frozenset("""
    license licence copying notice readme citation authors contributors changelog changes history
    contributing code_of_conduct security requirements
""".split())  # fmt: skip
_ABOUT_KINDS = {".txt", ".text", ".md"}
_SAVED_STATE = "state.json"
_MOST_STATE_BYTES = 16 << 20
_ARCHIVES = (".zip", ".tar")
_TAR_SUFFIXES = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
_PACKED_SUFFIXES = (*SUFFIXES, *_TAR_SUFFIXES, *_ARCHIVES)
# The first versions read these beside the uncompressed file.
_READ_BESIDE = {".gz"}
_COMPRESSED = ", also with .gz, .zst, .xz or .bz2, or in a .zip or .tar archive"
DATA_SUFFIXES = (*_FORMATS, *_PACKED_SUFFIXES)
_KNOWN = ", ".join(_FORMATS) + _COMPRESSED
_KNOWN_IN_FOLDERS = ", ".join(sorted(_FORMATS.keys() - _NOT_IN_FOLDERS)) + _COMPRESSED
_NOT_UNPACKED = (".lz4", ".7z", ".rar")
_OFFICE_MEMBER = "[Content_Types].xml"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_NOT_IN_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


@dataclass(frozen=True)
class TextFile:
    """A file of documents, or an archive's member.

    Attributes:
        problem: Why it can't be read; empty if nothing is known.
    """

    path: Path
    format: Format
    member: str = ""
    problem: str = ""

    @property
    def packed(self) -> Packed:
        return Packed(self.path, self.member)

    @property
    def shown(self) -> str:
        """The name in errors."""
        return self.packed.shown


@dataclass
class Found:
    """The files of a path, in a fixed order.

    Attributes:
        validation: Files of the validation split, by their names.
    """

    files: list[TextFile] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    validation: list[TextFile] = field(default_factory=list)


def find_files(
    pattern: str,
    *,
    field: str,
    file_format: str = "auto",
    skip_unreadable: bool = False,
    keep_unreadable: bool = False,
    by_split: bool = False,
    max_unpack_ratio: int = DEFAULT_RATIO,
) -> Found:
    """Finds the files that a path refers to.

    Args:
        pattern: Characters are wildcards unless a file has that name.
        field: Config field, for errors.
        keep_unreadable: Whether files that can't be opened are found, with their problem.
        by_split: Whether names such as test-00000-of-00001.parquet put files into splits, of which
            those for testing are left out.
        max_unpack_ratio: Largest ratio of an unpacked to a packed tar archive.

    Raises:
        ConfigError: The path is empty or a URL.
        CorpusError: No readable file of a known format exists.
    """
    _check_pattern(pattern, field)
    finder = _Finder(field, file_format, skip_unreadable, keep_unreadable, max_unpack_ratio)
    files = finder.find(pattern)
    return finder.divide(files, pattern) if by_split else files


class _Finder:
    def __init__(
        self,
        field: str,
        file_format: str,
        skip_unreadable: bool,
        keep_unreadable: bool,
        max_unpack_ratio: int,
    ) -> None:
        self._field = field
        self._format = file_format
        self._skip_unreadable = skip_unreadable
        self._keep_unreadable = keep_unreadable
        self._max_unpack_ratio = max_unpack_ratio
        self._root = Path()
        self._skipped: list[Skipped] = []

    def find(self, pattern: str) -> Found:
        path = expand_path(pattern, field=self._field)
        try:
            if path.is_dir():
                self._root = path
                return self._in_folder(path)
            paths = _matches(path)
        except OSError as error:
            raise self._cannot_look(error, path) from error
        if not paths:
            raise CorpusError(
                f"No file matches {pattern}",
                expected="a file, a folder or a pattern like data/*.txt",
                received=f"{path.absolute()}, which matches no file",
                fix="check the path, which is relative to the folder where the program was "
                "started. In a pattern, write [[] for a bracket that is part of a name",
                field=self._field,
            )
        if len(paths) == 1:
            return self._found(paths, is_named=True)
        self._root = Path(os.path.commonpath(path.parent for path in paths))
        self._refuse_packed(paths)
        alone = set() if ".json" in path.name else _ONLY_ALONE
        return self._found(self._chosen(paths, set(), alone) or paths, is_named=False)

    def divide(self, files: Found, pattern: str) -> Found:
        """Divides files by the splits in their names; files for testing are left out."""
        names = [file.packed.shown for file in files.files]
        if len(names) < 2:
            return files
        splits = splits_of([self._below_root(Path(name)) for name in names])
        train = [file for file, split in zip(files.files, splits, strict=True)
                 if split in ("", TRAIN)]  # fmt: skip
        if not train:
            named = Path(pattern).parts[-2 if glob.has_magic(pattern) else -1 :]
            if any(map(names_split, named)):
                return files
            raise CorpusError(
                f"{pattern} has no files for training",
                expected="files without the word test or validation in their names",
                received=", ".join(f"{self._below_root(Path(name))} (split {split})"
                                   for name, split in zip(names[:3], splits, strict=False)),
                fix="to train on these files, name them with a pattern such as data/test*",
                field=self._field,
            )  # fmt: skip
        for name, split in zip(names, splits, strict=True):
            if split == UNNAMED:
                self._skip(Path(name), "beside files of a training and another split, its name has "
                           "no split")  # fmt: skip
            elif split not in ("", TRAIN, VALIDATION):
                self._skip(Path(name), f"it belongs to the split {split} by its name; only train "
                           "is trained on")  # fmt: skip
        held_out = [file for file, split in zip(files.files, splits, strict=True)
                    if split == VALIDATION]  # fmt: skip
        return Found(train, list(dict.fromkeys(self._skipped)), held_out)

    def _below_root(self, path: Path) -> str:
        is_below = path.is_relative_to(self._root)
        return path.relative_to(self._root).as_posix() if is_below else path.as_posix()

    def _in_folder(self, folder: Path) -> Found:
        visible = list(self._visible(folder))
        self._refuse_packed(visible)
        chosen = self._chosen(visible, _NOT_IN_FOLDERS, _ONLY_ALONE)
        if self._format == "auto" and not any(map(_is_data, chosen)):
            chosen = self._largest_kind(chosen, visible)
        files = self._found(chosen, is_named=False)
        if not files.files:
            raise CorpusError(
                f"The folder {folder} contains no text files",
                expected=f"files that end in {_KNOWN_IN_FOLDERS}",
                received=f"{len(visible)} files, none with these endings",
                fix="choose another folder; or set ⟬file_format⟭ to the format of the files",
                field=self._field,
            )  # fmt: skip
        return files

    def _largest_kind(self, chosen: list[Path], visible: list[Path]) -> list[Path]:
        """Chooses JSON, Markdown or other text for a folder without files that are surely data."""
        others = sorted(path for path in visible if not _names_about(path))
        kinds = [
            [path for path in chosen if not _names_about(path)],
            [path for path in others if _kind(path) in _NOT_IN_FOLDERS],
            [path for path in others if not _kind(path)
             and _looks_like_text(Packed(path), self._max_unpack_ratio)],
        ]  # fmt: skip
        largest = max(kinds, key=lambda paths: sum(map(size_of, paths))) or chosen
        for path in set(chosen).difference(largest):
            self._skip(path, "there is more text of another kind in the folder")
        return largest

    def _chosen(self, paths: list[Path], left_out: set[str], alone: set[str]) -> list[Path]:
        """Chooses the data.

        Args:
            left_out: Kinds that are not read.
            alone: Kinds that are read only if there are no others.
        """
        if self._format != "auto":
            return sorted(paths)
        there = set(paths)
        kinds = {path: _kind(path) for path in paths}
        unlisted = self._unlisted(paths, kinds)
        data = [path for path in paths if path not in unlisted and not self._is_copy(path, there)]
        if left_out:  # a folder
            data = [path for path in data if path.name not in _METADATA]
        about = [path for path in data if left_out and _is_about(path, kinds[path])]
        data = [path for path in data if path not in set(about)]
        if any(kinds[path] in alone and path.suffix.lower() in SUFFIXES for path in data):
            alone = set()  # Beside compressed ones, they are data, too.
        read = (
            [path for path in data if _is_main(path, kinds[path], left_out, alone)]
            or [path for path in data if kinds[path] in alone]
            or [path for path in about if _is_main(path, kinds[path], left_out, alone)]
        )
        for path in sorted(there.difference(read)):
            if path in unlisted:
                self._skip(path, f"{_SAVED_STATE} doesn't list it")
            elif not self._is_copy(path, there):
                about_data = path in about or path.name in _METADATA
                self._skip(path, "it describes the data" if about_data and kinds[path]
                           else _reason(path, kinds[path], left_out))  # fmt: skip
        return sorted(read)

    def _unlisted(self, paths: list[Path], kinds: dict[Path, str]) -> set[Path]:
        """Returns Arrow files, such as caches, that a dataset saved by save_to_disk lacks."""
        unlisted = set()
        for state in [path for path in paths if path.name == _SAVED_STATE]:
            listed = _saved_files(state)
            here = {path.name: path for path in paths
                    if path.parent == state.parent and kinds[path] == ".arrow"}  # fmt: skip
            if listed is None or not here:
                continue
            if missing := sorted(listed.difference(here)):
                raise CorpusError(
                    f"The dataset in {state.parent} is incomplete",
                    expected=f"the {len(listed):,} files that {_SAVED_STATE} lists",
                    received=f"{len(missing):,} of them are missing, such as {missing[0][:200]}",
                    fix="copy the whole folder, or save the dataset again", field=self._field,
                )  # fmt: skip
            unlisted |= {path for name, path in here.items() if name not in listed}
        return unlisted

    def _is_copy(self, path: Path, there: set[Path]) -> bool:
        suffix = path.suffix.lower()
        if suffix not in _PACKED_SUFFIXES or suffix in _READ_BESIDE:
            return False
        plain = path.with_suffix("")
        beside = next((p for p in (plain, plain.with_name(f"{plain.name}.gz")) if p in there), None)
        if beside is None or _kind(plain) in ("", *_ARCHIVES):
            return False
        self._skip(path, f"{beside.name} in the same folder is read instead")
        return True

    def _found(self, paths: list[Path], *, is_named: bool) -> Found:
        files: list[TextFile] = []
        for path in self._without_links(paths):
            if problem := _problem_of(path):
                files += self._unreadable(path, problem, is_named)
                continue
            if not (is_named or _kind(path) or size_of(path) or self._format != "auto"):
                self._skip(path, "an empty file")
            elif _kind(path) in _ARCHIVES or (is_named and _is_archive(path)):
                files += self._members(path, set() if is_named else set(paths))
            else:
                files.append(self._text_file(path))
        read = {self._below_root(file.path / file.member) for file in files}
        self._skipped = [skipped for skipped in self._skipped if skipped.name not in read]
        return Found(files, list(dict.fromkeys(self._skipped)))

    def _without_links(self, paths: list[Path]) -> list[Path]:
        """Leaves out links to files that are read, too."""
        own = {os.path.realpath(path): path for path in paths if not path.is_symlink()}
        distinct = []
        for path in paths:
            first = own.setdefault(os.path.realpath(path), path)
            if first == path:
                distinct.append(path)
            else:
                self._skip(path, f"a link to {first.name}, which is read once")
        return distinct

    def _unreadable(self, path: Path, problem: str, is_named: bool) -> list[TextFile]:
        """Returns the file if such files are kept; raises CorpusError unless they are skipped."""
        if self._skip_unreadable and not is_named:
            self._skip(path, problem)
            return []
        if self._keep_unreadable:
            return [TextFile(path, self._format_of(path), problem=problem)]
        raise CorpusError(
            f"{path} can't be read", expected="a regular file that this account can read",
            received=problem, field=self._field,
            fix="repair the file or exclude it"
            + ("" if is_named else "; or set ⟬skip_unreadable⟭ to skip such files"),
        )  # fmt: skip

    def _format_of(self, path: Path) -> Format:
        if self._format != "auto":
            return cast(Format, self._format)
        return _FORMATS.get(_kind(path), "text")

    def _text_file(self, path: Path) -> TextFile:
        if self._format != "auto":
            return TextFile(path, cast(Format, self._format))
        kind = _kind(path)
        if not kind and _looks_like_text(Packed(path), self._max_unpack_ratio):
            return TextFile(path, "text")
        if not kind:
            raise CorpusError(
                f"{path} has an unsupported file type", expected=f"a file that ends in {_KNOWN}",
                received=_foreign_kind(path) or path.suffix or path.name, field=self._field,
                fix=f"unpack it, then set the path to {path.with_suffix('').name}"
                if path.suffix.lower() in _NOT_UNPACKED
                else "save its text as .txt in UTF-8" if _foreign_kind(path)
                else "set ⟬file_format⟭ to text if it is plain text, or to its format",
            )  # fmt: skip
        return TextFile(path, _FORMATS[kind])

    def _members(self, path: Path, there: set[Path]) -> list[TextFile]:
        """Returns the members of an archive.

        Args:
            there: All files of the folder or pattern; empty for an archive that is named alone.
        """
        try:
            names = archive_members(path, self._max_unpack_ratio)
        except OSError as error:
            if self._keep_unreadable:
                return self._unreadable(path, error.strerror or str(error), is_named=True)
            raise CorpusError(
                f"{path} can't be read", expected=f"a complete {_kind(path)[1:] or 'zip'} archive",
                received=error.strerror or str(error), fix="repair the file or exclude it",
                field=self._field,
            ) from error  # fmt: skip
        files = []
        for name in names:
            kind = _kind(Path(name))
            is_hidden = _is_hidden(name)
            if self._format != "auto" and not is_hidden:
                files.append(TextFile(path, cast(Format, self._format), name))
            elif kind in _FORMATS and kind not in _NOT_IN_FOLDERS and not is_hidden:
                files.append(TextFile(path, _FORMATS[kind], name))
            elif not is_hidden:
                self._skip(path / name, _reason(Path(name), kind, _NOT_IN_FOLDERS))
            elif kind and "__MACOSX" not in Path(name).parts:
                self._skip(path / name, "a hidden file, or in a hidden folder")
        if not (files := _without_descriptions(files)) and _OFFICE_MEMBER not in names:
            others = [name for name in names
                      if not (_is_hidden(name) or _names_about(Path(name)))]  # fmt: skip
            markdown = [name for name in others if _kind(Path(name)) in _NOT_IN_FOLDERS]
            unknown = [
                name
                for name in others
                if not _kind(Path(name))
                and _looks_like_text(Packed(path, name), self._max_unpack_ratio)
            ]
            files = [TextFile(path, "text", name) for name in max(markdown, unknown, key=len)]
        if there and files and _is_unpacked(path, files, there):
            self._skip(path, "its members are in the same folder, too, and read there")
            return []
        if files:
            return files
        if there:
            self._skip(path, "an archive without text files")
            return []
        is_office = _OFFICE_MEMBER in names
        raise CorpusError(
            f"{path} is an Office document" if is_office
            else f"The archive {path} contains no text files",
            expected="a text or table file" if is_office
            else f"members that end in {_KNOWN_IN_FOLDERS}",
            received=f"{len(names)} members, none with these endings", field=self._field,
            fix="save it as text or as CSV in UTF-8" if is_office
            else "unpack it, or set ⟬file_format⟭ to the format of its members",
        )  # fmt: skip

    def _visible(self, folder: Path) -> Iterator[Path]:
        """Yields files, following links but visiting each folder once."""
        seen = set()
        for parent, children, names in os.walk(
            folder, onerror=self._on_closed_folder, followlinks=True
        ):
            place = os.path.realpath(parent)
            if place in seen:
                children.clear()
                continue
            seen.add(place)
            hidden = [child for child in children if _is_passed_over(child)]
            for child in sorted(set(hidden) - {"lost+found"}):
                self._skip(Path(parent, child), "a hidden folder")
            children[:] = sorted(set(children) - set(hidden))
            for name in sorted(names):
                path = Path(parent, name)
                if not name.startswith("."):
                    yield path
                elif _kind(path) and not name.startswith("._"):
                    self._skip(path, "a hidden file; to read it, set the path to this file")

    def _on_closed_folder(self, error: OSError) -> None:
        if not self._skip_unreadable or error.filename == str(self._root):
            raise error
        self._skip(Path(str(error.filename)), error.strerror or str(error))

    def _refuse_packed(self, paths: list[Path]) -> None:
        """Refuses files like text.jsonl.lz4 without a readable copy beside them."""
        if missed := _only_packed(paths):
            raise CorpusError(
                f"{missed[0]} has an unsupported compression format",
                expected=f"uncompressed files{_COMPRESSED}",
                received=", ".join(path.name for path in missed[:3])
                + (f" and {len(missed) - 3} more" if len(missed) > 3 else ""),
                fix="unpack these files, or select only the others with a pattern like data/*.txt",
                field=self._field,
            )

    def _skip(self, path: Path, reason: str) -> None:
        self._skipped.append(Skipped(self._below_root(path), reason))

    def _cannot_look(self, error: OSError, path: Path) -> CorpusError:
        return CorpusError(
            f"{error.filename or path} can't be accessed",
            expected="a path that this account can read",
            received=error.strerror or str(error), field=self._field,
            fix="choose another path, or give this account read access; or set ⟬skip_unreadable⟭ "
            "to skip it inside a folder",
        )  # fmt: skip


def _problem_of(path: Path) -> str:
    """Returns why a file can't be opened; "" if it can."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISREG(mode):
        return "it is not a regular file"
    return "" if os.access(path, os.R_OK) else "Permission denied"


def _check_pattern(pattern: str, field: str) -> None:
    if not pattern.strip():
        raise ConfigError(
            "No text files were given", expected="a file, a folder or a pattern like data/*.txt",
            fix=f"set ⟬{field}⟭, or choose another source", field=field,
        )  # fmt: skip
    if "://" in pattern:
        raise ConfigError(
            "The path to the text is not a local path", expected="a path on this machine",
            received=pattern, field=field,
            fix="download the text first, or set ⟬source⟭ to hub for a dataset on the Hub",
        )  # fmt: skip


def _matches(path: Path) -> list[Path]:
    if path.exists() or path.is_symlink():
        return [path]
    first, *rest = path.parts
    matches = set(_expanded(Path(first), rest)) if path.is_absolute() else set(
        _expanded(Path(), list(path.parts))
    )  # fmt: skip
    return [path for path in sorted(matches) if not path.is_dir()]


def _expanded(base: Path, parts: list[str]) -> Iterator[Path]:
    """Yields matches; existing names take precedence, so folder names may contain brackets."""
    if not parts:
        yield base
        return
    part, *rest = parts
    if os.path.lexists(base / part):
        yield from _expanded(base / part, rest)
    elif part == "**":
        below = glob.glob(str(Path(glob.escape(str(base)), *parts)), recursive=True)
        if not below:
            quoted = [part.replace("[", "[[]") for part in parts]
            below = glob.glob(str(Path(glob.escape(str(base)), *quoted)), recursive=True)
        yield from map(Path, below)
    elif glob.has_magic(part) and base.is_dir():
        names = [name for name in os.listdir(base) if part.startswith(".") or name[:1] != "."]
        matching = fnmatch.filter(names, part.replace("[", "[[]")) or fnmatch.filter(names, part)
        for name in matching:
            if not rest or (base / name).is_dir():
                yield from _expanded(base / name, rest)


def _is_main(path: Path, kind: str, left_out: set[str], alone: set[str]) -> bool:
    if kind == ".zip":
        kind = _kind(path.with_suffix("")) or kind
    is_packed = path.suffix.lower() in _PACKED_SUFFIXES
    if is_packed and path.suffix.lower() not in _READ_BESIDE:
        left_out = _NOT_IN_FOLDERS
    return kind not in ("", *left_out) and (is_packed or kind not in alone)


def _is_data(path: Path) -> bool:
    """Returns whether a file of a folder is data by its name alone."""
    return path.suffix.lower() not in _ONLY_ALONE and not _names_about(path)


def size_of(path: Path) -> int:
    """Returns a file's bytes; 0 if it can't be accessed."""
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _is_about(path: Path, kind: str) -> bool:
    return kind in _ABOUT_KINDS and _names_about(path)


def _names_about(path: Path) -> bool:
    return path.name.lower().partition(".")[0] in _ABOUT


def _without_descriptions(files: list[TextFile]) -> list[TextFile]:
    """Leaves out members of an archive that describe the others, as in a folder."""
    paths = {file: Path(file.member) for file in files}
    data = [file for file, path in paths.items()
            if path.name not in _METADATA and not _is_about(path, _kind(path))]  # fmt: skip
    main = [file for file in data if _is_main(paths[file], _kind(paths[file]), set(), _ONLY_ALONE)]
    return main or data or files


def _is_hidden(member: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in Path(member).parts)


def _is_unpacked(path: Path, files: list[TextFile], there: set[Path]) -> bool:
    """Returns whether the members of an archive are beside it, or in a folder of its name."""
    stem = path.name[: path.name.lower().rindex(_suffixes_of_archive(path))]
    folders = (path.parent, path.parent / stem)
    return any(all(folder / file.member in there for file in files) for folder in folders)


def _suffixes_of_archive(path: Path) -> str:
    name = path.name.lower()
    known = (*_TAR_SUFFIXES, *(f".tar{suffix}" for suffix in SUFFIXES), *_ARCHIVES)
    return next((suffix for suffix in known if name.endswith(suffix)), "")


def _saved_files(state: Path) -> set[str] | None:
    """Reads the names of the Arrow files of a dataset saved by `datasets`; None if it is none."""
    try:
        with state.open("rb") as file:
            values = parse_json(file.read(_MOST_STATE_BYTES))
        return {str(file["filename"]) for file in values["_data_files"]}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _is_passed_over(folder: str) -> bool:
    return folder.startswith(".") or folder == "lost+found"


def has_known_suffix(name: str) -> bool:
    """Returns whether a file's name has a suffix that is read in folders."""
    path = Path(name)
    is_plain_json = path.suffix.lower() in _ONLY_ALONE and path.name != _SAVED_STATE
    return bool(_kind(path)) and _kind(path) not in _NOT_IN_FOLDERS and not is_plain_json


def is_tar_archive(path: Path) -> bool:
    return _kind(path) == ".tar"


def _kind(path: Path) -> str:
    name = path.name.lower()
    if path.suffix.lower() in _TAR_SUFFIXES:
        return ".tar"
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            name = name.removesuffix(suffix)
            break
    suffix = Path(name).suffix
    return suffix if suffix in (*_FORMATS, *_ARCHIVES) else ""


def _is_archive(path: Path) -> bool:
    try:
        head = head_of(Packed(path))
        return is_zip(head) or is_tar(head)
    except OSError:
        return False  # opening it reports the reason


def _foreign_kind(path: Path) -> str:
    try:
        return foreign_kind_of(head_of(Packed(path)))
    except OSError:
        return ""


def is_text_of_unknown_kind(path: Path) -> bool:
    """Returns whether a file is text by its content and not by its suffix, as a log is."""
    return not _kind(path) and _looks_like_text(Packed(path), DEFAULT_RATIO)


def is_text_passed_over(path: Path) -> bool:
    """Returns whether a file is text of a kind that isn't read beside data."""
    return _kind(path) in _NOT_IN_FOLDERS or is_text_of_unknown_kind(path)


def _looks_like_text(packed: Packed, max_unpack_ratio: int) -> bool:
    try:
        head = beginning_of(packed, max_unpack_ratio)
    except (OSError, CorpusError):
        return False
    is_text = head.startswith(_UTF_16_MARKS) or not _NOT_IN_TEXT.search(head)
    return bool(head) and not foreign_kind_of(head) and is_text


def _reason(path: Path, kind: str, left_out: set[str]) -> str:
    if kind in left_out:
        return f"{kind} files are read only if a pattern such as **/*{kind} selects them"
    if kind in _ONLY_ALONE:
        return (
            f"next to other files, {kind} files are read only if a pattern such as **/*{kind} "
            "selects them"
        )
    if re.fullmatch(r"(\.[a-z0-9]{1,8})?", path.suffix.lower()) and path.suffix:
        return f"the suffix {path.suffix} is unknown; set file_format to read such files"
    return "the suffix is unknown; set file_format to read such files"


def _only_packed(paths: list[Path]) -> list[Path]:
    """Lists text files in an unsupported compression that have no readable copy beside them."""
    there = set(paths)
    texts = {path: path.with_suffix("") for path in paths if path.suffix in _NOT_UNPACKED}
    return [
        path
        for path, text in texts.items()
        if _kind(text) not in ("", *_NOT_IN_FOLDERS)
        and not there & {text, text.with_name(f"{text.name}.gz")}
    ]
