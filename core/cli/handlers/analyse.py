"""Runs the command `analyse`."""

from __future__ import annotations

import argparse
import json

from core.cli.fields import config_values
from core.cli.output import (
    EXIT_DONE,
    workspace_of,
)
from core.config.analyse import AnalyseConfig
from core.corpus.sampling import Limits
from core.corpus.statistics import analyse_corpus
from core.corpus.statistics_text import lines_of


def run_analyse(options: argparse.Namespace) -> int:
    config = AnalyseConfig.parse(config_values(options, AnalyseConfig))
    statistics = analyse_corpus(
        config.corpus,
        workspace_of(options),
        tokenizer=config.tokenizer,
        limits=Limits(config.sample_mb * 1_000_000, config.sample_seconds),
    )
    if options.json:
        print(json.dumps(statistics.to_dict(), ensure_ascii=False))
        return EXIT_DONE
    for line in lines_of(statistics):
        print(line)
    return EXIT_DONE
