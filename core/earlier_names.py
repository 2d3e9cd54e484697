"""Finds modules and members under the names of earlier versions, which scripts still import.

Nothing of this program uses them. A module is the same object under both names.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULES = {
    "core.backends.constants": "core.models.constants",
    "core.backends.kernels": "core.models.kernels",
    "core.children": "core.processes.children",
    "core.cores": "core.processes.cores",
    "core.curves": "core.report.curves",
    "core.demo": "core.serving.demo",
    "core.directions": "core.config.metrics",
    "core.disk_usage": "core.runs.disk_usage",
    "core.environment": "core.processes.environment",
    "core.evaluation.reading": "core.config.evaluate",
    "core.evaluation.stored": "core.artifacts.evaluations",
    "core.evaluation.subject": "core.artifacts.subject",
    "core.events": "core.records.events",
    "core.finetuning.inference": "core.inference.classification",
    "core.hub.ids": "core.network.hub_ids",
    "core.hub.bundle": "core.publishing.bundle",
    "core.hub.card_cleaning": "core.publishing.card_cleaning",
    "core.hub.card_evaluations": "core.publishing.card_evaluations",
    "core.hub.card_notes": "core.publishing.card_notes",
    "core.hub.cards": "core.publishing.cards",
    "core.hub.classifier_card": "core.publishing.classifier_card",
    "core.hub.facts": "core.publishing.facts",
    "core.hub.markdown": "core.publishing.markdown",
    "core.hub.push": "core.publishing.push",
    "core.hub.space": "core.publishing.space",
    "core.interruption": "core.processes.interruption",
    "core.models.architecture": "core.architecture.architecture",
    "core.models.config_format": "core.architecture.config_format",
    "core.models.families": "core.families",
    "core.models.families.bart": "core.families.bart",
    "core.models.families.bert": "core.families.bert",
    "core.models.families.gpt2": "core.families.gpt2",
    "core.models.families.modernbert": "core.families.modernbert",
    "core.models.families.roberta": "core.families.roberta",
    "core.models.families.t5": "core.families.t5",
    "core.models.family": "core.architecture.family",
    "core.models.finding": "core.artifacts.finding",
    "core.models.options": "core.architecture.options",
    "core.models.weight_mapping": "core.architecture.weight_mapping",
    "core.outbound": "core.network.outbound",
    "core.outbound_http": "core.network.http",
    "core.outbound_hub": "core.network.hub",
    "core.parts.steps": "core.corpus.part_steps",
    "core.playground": "core.serving.playground",
    "core.presets": "core.config.presets",
    "core.redaction": "core.messages.redaction",
    "core.refusals": "core.cli.refusals",
    "core.runs.annotations": "core.records.annotations",
    "core.runs.folder": "core.records.folder",
    "core.runs.process": "core.records.process",
    "core.shards.storage": "core.storage.files",
    "core.suggestions": "core.messages.suggestions",
    "core.system_errors": "core.messages.system_errors",
    "core.terminal": "core.messages.terminal",
    "core.training.checkpoint": "core.artifacts.checkpoint",
    "core.training.topologies": "core.config.topologies",
    "core.training.utilisation": "core.records.utilisation",
    "core.verdicts": "core.report.verdicts",
}
# Members of packages, by the module that has them.
_MEMBERS = {
    "core.config": {
        "core.config.analyse": "AnalyseConfig",
        "core.config.base": "StageConfig config_error describe_expected fingerprint_of",
        "core.config.clean": "CleanConfig",
        "core.config.corpus": "CorpusConfig",
        "core.config.evaluate": "EvaluateConfig",
        "core.config.finetune": "FinetuneConfig",
        "core.config.named_source": "NamedSource",
        "core.config.options": (
            "AUTOMATIC DTYPES Dtype Family FittedPresetName HUB_ID_PATTERN LICENSES Size "
            "choices_of field_extra flag_of help_of option option_label plain_type settled "
            "split_names split_references title_of"
        ),
        "core.config.preflight": "PreflightConfig",
        "core.config.pretrain": "PretrainConfig",
        "core.config.push": "PushConfig",
        "core.config.quickstart": "QuickstartConfig",
        "core.config.shards": "ShardConfig",
        "core.config.source": "SourceConfig",
        "core.config.source_file": "is_source_file load_sources",
        "core.config.source_flags": "with_named_sources",
        "core.config.tokenizer": "TokenizerConfig",
        "core.config.train": "TrainConfig TrainPresetName",
        "core.config.values": "changed_values load_config_file",
    },
    "core.tokenizer": {
        "core.tokenizer.loading": "StudioTokenizer load",
        "core.tokenizer.scoring": "pieces scorecard",
        "core.tokenizer.training": "train",
    },
    "core.corpus": {
        "core.corpus.reading": "Corpus CorpusPreview open_corpus preview",
        "core.corpus.source": "Split",
    },
    "core.inference": {
        "core.config.options": "DTYPES Dtype",
        "core.inference.generation": "generate generate_stream",
        "core.inference.masks": "FillMask fill_mask fills_masks",
        "core.inference.models": "force_cpu read_out",
        "core.inference.scoring": "perplexity perplexity_stream",
        "core.inference.warming": "prepare",
    },
    "core.workspace": {
        "core.workspace.atomic": (
            "DraftFolder commit_folder remove_folder sync write_atomically writing_whole_file"
        ),
        "core.workspace.confinement": "ALLOWED_PATHS_VARIABLE",
        "core.workspace.kinds": "ArtifactKind artifact_kinds find_kind register_kind",
        "core.workspace.locks": "file_lock single_instance",
        "core.workspace.manifests": (
            "Artifact MANIFEST_FILE MOST_MANIFEST_BYTES Manifest damaged_files describe_files "
            "fingerprint_of_files hash_file library_versions manifest_text parse_manifest "
            "read_manifest write_manifest"
        ),
        "core.workspace.names": "check_name expand_path",
        "core.workspace.workspace": "Draft Workspace",
    },
    "core.objectives": {
        "core.objectives.objective": "Objective ObjectiveSettings Vocabulary",
        "core.objectives.registry": "OBJECTIVES create_objective stored_sequence_length",
    },
    "core.report": {
        "core.report.page": "report_page write_report",
        "core.report.settings": "list_settings read_settings settings_file",
    },
}


class EarlierNames(MetaPathFinder, Loader):
    """Imports a module under its earlier name."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in _MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_MODULES[spec.name])
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has given the module the specification of its earlier name.
        if module.__spec__ and (spec := self._specs.pop(module.__spec__.name, None)):
            module.__spec__ = spec


def find_earlier_names() -> None:
    """Lets imports look for earlier names, before a package's folder is searched for them."""
    if not any(isinstance(finder, EarlierNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, EarlierNames())


def members_of(package: str) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`, which finds its earlier members."""
    homes = {name: home for home, names in _MEMBERS[package].items() for name in names.split()}
    return imported_on_use(package, homes)


def imported_on_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`, which imports members from their modules."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return find
