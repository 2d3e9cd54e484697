"""Runs the command `corpora`."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict

from core.cli.output import EXIT_DONE
from core.corpus.open_corpora import SAMPLE_DOCUMENTS, find_corpora, list_languages


def list_corpora(options: argparse.Namespace) -> int:
    if not options.language:
        languages = list_languages()
        if options.json:
            print(json.dumps(languages, ensure_ascii=False))
            return EXIT_DONE
        for code, name in languages.items():
            print(f"{code}  {name}")
        return EXIT_DONE
    corpora = find_corpora(options.language)
    if options.json:
        print(json.dumps([asdict(corpus) for corpus in corpora], ensure_ascii=False))
        return EXIT_DONE
    for corpus in corpora:
        config = ["--dataset-config", corpus.dataset_config] if corpus.dataset_config else []
        flags = ["--dataset-name", corpus.dataset_name, *config, "--limit", str(SAMPLE_DOCUMENTS)]
        access = "; asks for a login and the acceptance of terms" if corpus.gated else ""
        print(f"{corpus.title}: {corpus.about}")
        print(f"  {corpus.size}; licence: {corpus.licence}{access}; {corpus.source}")
        print(f"  studio tokenizer {shlex.join(flags)}\n")
    return EXIT_DONE
