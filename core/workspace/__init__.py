"""The workspace: a folder of artifacts, runs and a regenerable cache.

An artifact, <kind>s/<name>/ with a `manifest.json`, appears atomically.
"""

from core.workspace.atomic import (
    DraftFolder,
    commit_folder,
    remove_folder,
    sync,
    write_atomically,
    writing_whole_file,
)
from core.workspace.confinement import ALLOWED_PATHS_VARIABLE
from core.workspace.kinds import ArtifactKind, artifact_kinds, find_kind, register_kind
from core.workspace.locks import file_lock, single_instance
from core.workspace.manifests import (
    MANIFEST_FILE,
    MOST_MANIFEST_BYTES,
    Artifact,
    Manifest,
    damaged_files,
    describe_files,
    fingerprint_of_files,
    hash_file,
    library_versions,
    manifest_text,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from core.workspace.names import check_name, expand_path
from core.workspace.workspace import Draft, Workspace

__all__ = [
    "ALLOWED_PATHS_VARIABLE",
    "MANIFEST_FILE",
    "MOST_MANIFEST_BYTES",
    "Artifact",
    "ArtifactKind",
    "Draft",
    "DraftFolder",
    "Manifest",
    "Workspace",
    "artifact_kinds",
    "check_name",
    "commit_folder",
    "damaged_files",
    "describe_files",
    "expand_path",
    "file_lock",
    "find_kind",
    "fingerprint_of_files",
    "hash_file",
    "library_versions",
    "manifest_text",
    "parse_manifest",
    "read_manifest",
    "register_kind",
    "remove_folder",
    "single_instance",
    "sync",
    "write_atomically",
    "write_manifest",
    "writing_whole_file",
]
