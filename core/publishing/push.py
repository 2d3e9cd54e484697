"""Publishes an artifact on the Hub, in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from core.artifacts.evaluations import fingerprint_of_weights
from core.artifacts.finding import find_here
from core.config.push import PushConfig
from core.errors import ConfigError, HubError
from core.hub.client import ask, connect, explaining, hub_id, parse_hub_id, sign_in
from core.models.hf import check_weight_files
from core.network.hub_ids import check_hub_id
from core.publishing.bundle import (
    Bundle,
    RepositoryKind,
    Upload,
    check_whole,
    model_bundle,
    shards_bundle,
    tokenizer_bundle,
)
from core.publishing.card_notes import CardNotes
from core.publishing.cards import CURVES_FILE
from core.publishing.facts import gather_facts
from core.publishing.space import space_bundle
from core.records.events import Reporter
from core.shards.read import open_shards
from core.workspace.manifests import MANIFEST_FILE, Artifact, Manifest, read_manifest
from core.workspace.workspace import Workspace

_MAIN = "main"
# Between steps, a run reports progress and can stop.
_BYTES_AT_ONCE = 64 << 20
_FILES_AT_ONCE = 100
_PREFIXES = {"model": "", "dataset": "datasets/", "space": "spaces/"}
_ADD_SECRET = (
    "the model is private; add a token with read access as the secret HF_TOKEN in the settings "
    "of the Space"
)


@dataclass(frozen=True)
class Repository:
    """The target repository; dry runs may lack an owner."""

    id: str
    kind: RepositoryKind
    private: bool = True
    revision: str = _MAIN

    @property
    def url(self) -> str:
        return f"{connect().endpoint}/{_PREFIXES[self.kind]}{self.id}"

    @property
    def branch(self) -> str:
        """The branch; empty for the default one."""
        return "" if self.revision == _MAIN else self.revision


@dataclass(frozen=True)
class Receipt:
    """The result of a push or dry run."""

    repo_id: str
    kind: RepositoryKind
    url: str
    private: bool
    dry_run: bool
    files: list[dict[str, Any]] = field(default_factory=list)
    bytes: int = 0
    card: str = ""
    commit: str = ""
    space_url: str = ""
    space_files: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Preview:
    """A dry run's receipt and curves."""

    receipt: Receipt
    picture: bytes = b""


def run(config: PushConfig, workspace: Workspace, reporter: Reporter | None = None) -> Artifact:
    """Publishes or previews an artifact; returns a `Receipt` as its counts.

    Raises:
        ConfigError, CheckpointError, ShardError: It can't be published.
        HubError: The Hub refused or is unreachable.
        RunStopped: Nothing is committed.
    """
    reporter = reporter or Reporter()
    name, folder = _find(config, workspace)
    if config.dry_run:
        receipt = preview(config, workspace, reporter).receipt
    else:
        receipt = _publish(config, name, folder, workspace, reporter)
    return _receipt_artifact(config, name, folder, receipt)


def preview(config: PushConfig, workspace: Workspace, reporter: Reporter | None = None) -> Preview:
    """Returns a push's files and card, offline."""
    name, folder = _find(config, workspace)
    repository = _repository(config, config.repo_id or name)
    bundle = _bundle(config, folder, repository, workspace, reporter or Reporter())
    receipt = _receipt(repository, bundle, dry_run=True)
    if config.space:
        files = space_bundle(_shown(config, folder, repository), config.license).listing()
        url = replace(repository, kind="space").url
        receipt = replace(receipt, space_url=url, space_files=files)
    return Preview(receipt, bundle.content(CURVES_FILE) if bundle else b"")


def _publish(
    config: PushConfig, name: str, folder: Path | None, workspace: Workspace, reporter: Reporter
) -> Receipt:
    repository = _repository(config, resolve_repo_id(config.repo_id or name))
    bundle = _bundle(config, folder, repository, workspace, reporter)
    receipt = _receipt(repository, bundle, dry_run=False)
    if bundle:
        if config.kind == "shards" and folder:
            check_whole(folder, [upload_file.path for upload_file in bundle.uploads])
        message = config.commit_message or f"Push the {config.kind} {name}"
        receipt = replace(receipt, commit=upload(bundle, repository, message, reporter))
        if not repository.private:
            make_public(repository)
        reporter.note(f"Pushed to {repository.url}")
    if config.space:
        receipt = _publish_space(config, folder, repository, receipt, reporter)
    return receipt


def check(config: PushConfig, workspace: Workspace) -> None:
    """Checks offline that the artifact can be published."""
    name, _ = _find(config, workspace)
    check_hub_id(config.repo_id or name, field="repo_id")


def resolve_repo_id(wanted: str) -> str:
    """Adds the user's name to an ownerless id; raises HubError."""
    account = sign_in()
    if not account.can_write:
        raise HubError(
            f"The token of {account.name} has no write access",
            fix="create another token at https://huggingface.co/settings/tokens, then run `hf "
            "auth login`, or set HF_TOKEN",
        )
    repo_id = wanted if "/" in wanted else f"{account.name}/{wanted}"
    check_hub_id(repo_id, field="repo_id")
    return repo_id


def upload(
    bundle: Bundle, repository: Repository, message: str, reporter: Reporter | None = None
) -> str:
    """Uploads a bundle; returns the commit's id. Stopping commits nothing."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    reporter = reporter or Reporter()
    make_repository(repository)
    problem = f"{repository.id} could not be written to"
    operations = [_operation(upload_file, CommitOperationAdd) for upload_file in bundle.uploads]
    removals = []
    if bundle.outdates:
        there = ask(
            problem,
            connect().list_repo_files,
            repository.id,
            repo_type=repository.kind,
            revision=repository.revision,
            field="repo_id",
        )
        removals = [CommitOperationDelete(path) for path in bundle.outdated(there)]
    done = 0
    for part in _parts(bundle.uploads):
        reporter.raise_if_stopped()
        reporter.progress(done, bundle.size_bytes, "bytes", f"uploading to {repository.id}")
        chosen = [operations[number] for number in part]
        # The client itself retries this.
        with explaining(problem, field="repo_id"):
            connect().preupload_lfs_files(
                repository.id,
                additions=chosen,
                repo_type=repository.kind,
                revision=repository.revision,
            )
        done += sum(bundle.uploads[number].size_bytes for number in part)
    reporter.raise_if_stopped()
    commit = ask(
        problem,
        connect().create_commit,
        repository.id,
        operations=[*operations, *removals],
        commit_message=message,
        repo_type=repository.kind,
        revision=repository.revision,
        field="repo_id",
    )
    reporter.progress(bundle.size_bytes, bundle.size_bytes, "bytes", f"uploaded to {repository.id}")
    return str(commit.oid)


def make_repository(repository: Repository) -> None:
    """Creates a missing repository and branch.

    Raises:
        HubError: Refused, or an existing repository is public.
    """
    problem = f"{repository.id} could not be created"
    api = connect()
    ask(
        problem,
        api.create_repo,
        repository.id,
        private=repository.private,
        repo_type=repository.kind,
        exist_ok=True,
        space_sdk="gradio" if repository.kind == "space" else None,
        field="repo_id",
    )
    if repository.private and not _is_private(repository.id, repository.kind, problem):
        raise HubError(
            f"{repository.id} already exists and is public",
            expected="a private repository, or a push with --no-private",
            fix="push with --no-private to publish it, make the repository private on its "
            "settings page, or choose another name",
            field="private",
        )
    if repository.branch:
        ask(
            f"The branch {repository.revision} of {repository.id} could not be created",
            api.create_branch,
            repository.id,
            branch=repository.revision,
            repo_type=repository.kind,
            exist_ok=True,
            field="revision",
        )


def make_public(repository: Repository) -> None:
    """Makes a repository public, as creation leaves an existing one private."""
    problem = f"{repository.id} was uploaded, but could not be made public"
    if _is_private(repository.id, repository.kind, problem):
        ask(
            problem,
            connect().update_repo_settings,
            repository.id,
            private=False,
            repo_type=repository.kind,
            field="private",
        )


def _find(config: PushConfig, workspace: Workspace) -> tuple[str, Path | None]:
    """Returns the artifact's name and folder, None for a Hub model."""
    reference = str(getattr(config, config.kind))
    if not reference:
        raise ConfigError(
            f"No {config.kind} was given",
            expected=f"the name of a {config.kind} in the workspace, or a folder",
            fix=f"set ⟬--{config.kind}⟭",
            field=config.kind,
        )
    if config.space and config.kind != "model":
        raise ConfigError(
            "A Space can only show a model",
            expected="space with a model",
            received=f"space with the {config.kind} {reference}",
            fix="turn space off",
            field="space",
        )
    if config.kind == "model":
        return _find_model(config, reference, workspace)
    if config.kind == "shards":
        return Path(reference).name, open_shards(reference, workspace).path
    artifact = workspace.find("tokenizer", reference)
    return artifact.name, artifact.path


def _find_model(
    config: PushConfig, reference: str, workspace: Workspace
) -> tuple[str, Path | None]:
    if folder := find_here(reference, workspace):
        check_weight_files(folder)
        return folder.resolve().name, folder
    if parse_hub_id(reference) and config.space:
        return reference.partition("@")[0].rsplit("/", 1)[-1], None
    known = ", ".join(artifact.name for artifact in workspace.list("model")[:10])
    raise ConfigError(
        f"The model {reference!r} was not found",
        expected=f"a model in the workspace ({known or 'there are none yet'}), or a folder",
        received=reference,
        fix="choose an existing model, or train one first",
        field="model",
    )


def _repository(config: PushConfig, repo_id: str) -> Repository:
    check_hub_id(repo_id, field="repo_id")
    kind: RepositoryKind = "dataset" if config.kind == "shards" else "model"
    return Repository(repo_id, kind, config.private, config.revision or _MAIN)


def _receipt(repository: Repository, bundle: Bundle | None, *, dry_run: bool) -> Receipt:
    receipt = Receipt(repository.id, repository.kind, repository.url, repository.private, dry_run)
    if bundle is None:
        return receipt
    return replace(receipt, files=bundle.listing(), bytes=bundle.size_bytes, card=bundle.card)


def _bundle(
    config: PushConfig,
    folder: Path | None,
    repository: Repository,
    workspace: Workspace,
    reporter: Reporter,
) -> Bundle | None:
    if folder is None:
        return None
    reporter.progress(0, None, "bytes", "reading the files to upload")
    notes = CardNotes(
        repository.id, config.license, config.language, config.description, repository.branch
    )
    if config.kind == "model":
        exports = _exports_of(folder, workspace) if config.exports else []
        return model_bundle(gather_facts(folder, workspace), notes, exports)
    if config.kind == "tokenizer":
        return tokenizer_bundle(folder, notes)
    return shards_bundle(open_shards(config.shards, workspace, reporter), notes)


def _exports_of(folder: Path, workspace: Workspace) -> list[Artifact]:
    """Finds the exports of a model's weights."""
    weights = fingerprint_of_weights(folder)
    exports = [
        artifact
        for artifact in workspace.list("export")
        if artifact.manifest.inputs.get("model") == weights
    ]
    if not exports:
        raise ConfigError(
            f"The model {folder.name} has no exports",
            expected="an export of these weights in the workspace",
            fix=f"run `python -m core export {folder.name}` first",
            field="exports",
        )
    return exports


def _shown(config: PushConfig, folder: Path | None, repository: Repository) -> str:
    return config.model if folder is None else hub_id(repository.id, repository.branch)


def _publish_space(
    config: PushConfig,
    folder: Path | None,
    repository: Repository,
    receipt: Receipt,
    reporter: Reporter,
) -> Receipt:
    model_is_private = config.private if folder else _is_private_model(config.model)
    space = Repository(repository.id, "space", config.private)
    shown = _shown(config, folder, repository)
    bundle = space_bundle(shown, config.license)
    make_repository(space)
    problem = f"The model of the Space {space.id} could not be set"
    ask(problem, connect().add_space_variable, space.id, "STUDIO_MODEL", shown)
    upload(bundle, space, f"Show {shown}", reporter)
    if not space.private:
        make_public(space)
    reporter.note(f"The Space is at {space.url}")
    if model_is_private:
        reporter.warn(f"{space.url}: {_ADD_SECRET}")
    return replace(receipt, space_url=space.url, space_files=bundle.listing())


def _is_private_model(reference: str) -> bool:
    name, _, revision = reference.partition("@")
    problem = f"{reference} could not be found on the Hub"
    return _is_private(name, "model", problem, revision or None, field="model")


def _is_private(
    repo_id: str, kind: RepositoryKind, problem: str, revision: str | None = None, field: str = ""
) -> bool:
    look_up = connect().repo_info
    info = ask(problem, look_up, repo_id, repo_type=kind, revision=revision, field=field)
    return bool(info.private)


def _operation(upload: Upload, operation: Any) -> Any:
    return operation(path_in_repo=upload.path, path_or_fileobj=upload.source)


def _parts(uploads: tuple[Upload, ...]) -> Iterator[list[int]]:
    part: list[int] = []
    size = 0
    for number, upload_file in enumerate(uploads):
        if part and (size + upload_file.size_bytes > _BYTES_AT_ONCE or len(part) == _FILES_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(number)
        size += upload_file.size_bytes
    yield part


def _receipt_artifact(
    config: PushConfig, name: str, folder: Path | None, receipt: Receipt
) -> Artifact:
    place = folder or Path(config.model)
    known = read_manifest(place) if (place / MANIFEST_FILE).is_file() else None
    manifest = known or Manifest(config.kind, name, "")
    return Artifact(place, replace(manifest, kind=config.kind, counts=asdict(receipt)))


def summarize_receipt(results: dict[str, Any]) -> str:
    """Lists a push's URLs, or a dry run's files and card."""
    if not results["dry_run"]:
        links = [results["url"] if results["commit"] else "", results["space_url"]]
        return "\n".join(filter(None, links))
    lines = []
    for what, files in (("", results["files"]), ("the Space ", results["space_files"])):
        lines += [f"{what}{results['repo_id']} would receive:"] if files else []
        lines += [f"  {file['bytes']:>14,}  {file['path']}" for file in files]
    return "\n".join([*lines, "", results["card"]]).rstrip()
