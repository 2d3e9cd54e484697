"""The stages' options, one pydantic model per stage."""

from core.config.analyse import AnalyseConfig
from core.config.base import StageConfig, config_error, describe_expected, fingerprint_of
from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.config.evaluate import EvaluateConfig
from core.config.finetune import FinetuneConfig
from core.config.named_source import NamedSource
from core.config.options import (
    AUTOMATIC,
    DTYPES,
    HUB_ID_PATTERN,
    LICENSES,
    Dtype,
    Family,
    FittedPresetName,
    Size,
    choices_of,
    field_extra,
    flag_of,
    help_of,
    option,
    option_label,
    plain_type,
    settled,
    split_names,
    split_references,
    title_of,
)
from core.config.preflight import PreflightConfig
from core.config.pretrain import PretrainConfig
from core.config.push import PushConfig
from core.config.quickstart import QuickstartConfig
from core.config.shards import ShardConfig
from core.config.source import SourceConfig
from core.config.source_file import is_source_file, load_sources
from core.config.source_flags import with_named_sources
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig, TrainPresetName
from core.config.values import changed_values, load_config_file

__all__ = [
    "AUTOMATIC",
    "DTYPES",
    "HUB_ID_PATTERN",
    "LICENSES",
    "AnalyseConfig",
    "CleanConfig",
    "CorpusConfig",
    "Dtype",
    "EvaluateConfig",
    "Family",
    "FinetuneConfig",
    "FittedPresetName",
    "NamedSource",
    "PreflightConfig",
    "PretrainConfig",
    "PushConfig",
    "QuickstartConfig",
    "ShardConfig",
    "Size",
    "SourceConfig",
    "StageConfig",
    "TokenizerConfig",
    "TrainConfig",
    "TrainPresetName",
    "changed_values",
    "choices_of",
    "config_error",
    "describe_expected",
    "field_extra",
    "fingerprint_of",
    "flag_of",
    "help_of",
    "is_source_file",
    "load_config_file",
    "load_sources",
    "option",
    "option_label",
    "plain_type",
    "settled",
    "split_names",
    "split_references",
    "title_of",
    "with_named_sources",
]
