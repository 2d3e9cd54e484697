"""The command `corpora`."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict
from typing import Any

from core.cli.output import EXIT_DONE
from core.cli.parser import add_command


def add_corpora(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "List well-known open corpora by language; downloads nothing."
    parser = add_command(commands, common, "corpora", about, _list_corpora)
    about = "name or code, such as norwegian or no; empty: list the languages"
    parser.add_argument("language", nargs="?", default="", help=about)


def _list_corpora(options: argparse.Namespace) -> int:
    from core.corpus.open_corpora import SAMPLE_DOCUMENTS, find_corpora, list_languages

    if not options.language:
        languages = list_languages()
        if options.json:
            print(json.dumps(languages, ensure_ascii=False))
            return EXIT_DONE
        for code, name in languages.items():
            print(f"{code}  {name}")
        return EXIT_DONE
    found = find_corpora(options.language)
    if options.json:
        print(json.dumps([asdict(one) for one in found], ensure_ascii=False))
        return EXIT_DONE
    for one in found:
        config = ["--dataset-config", one.dataset_config] if one.dataset_config else []
        flags = ["--dataset-name", one.dataset_name, *config, "--limit", str(SAMPLE_DOCUMENTS)]
        access = "; asks for a login and the acceptance of terms" if one.gated else ""
        print(f"{one.title}: {one.about}")
        print(f"  {one.size}; licence: {one.licence}{access}; {one.source}")
        print(f"  studio tokenizer {shlex.join(flags)}\n")
    return EXIT_DONE
