"""The commands that use a model: fill-mask, generate, perplexity, classify and tag."""

from __future__ import annotations

import argparse
from typing import Any

from core.cli.parser import add_command
from core.config.options import DTYPES


def add_fill_mask(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Fill the masks of a text."
    parser = add_command(commands, common, "fill-mask", about, "inference:run_fill_mask")
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="text with one or more mask tokens")
    parser.add_argument("--top-k", "--top_k", type=int, default=5, help="predictions per mask")
    _add_dtype(parser)


def add_generate(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Continue a text, or fill in its masked spans."
    parser = add_command(commands, common, "generate", about, "inference:run_generate")
    parser.add_argument("words", nargs="*", metavar="MODEL PROMPT")
    _add_model(parser)
    parser.add_argument("--prompt", "--text", dest="text", default="", help="text to continue")
    for name, kind, default, text in (
        ("max-new-tokens", int, 50, "maximum number of new tokens"),
        ("temperature", float, 1.0, "sampling temperature; 0: always the most probable token"),
        ("top-k", int, 0, "sample from this many most probable tokens; 0: all"),
        ("top-p", float, 1.0, "sample from the most probable tokens with this total probability"),
        ("seed", int, 0, "random seed; the same seed gives the same text"),
    ):
        spellings = dict.fromkeys([f"--{name}", f"--{name.replace('-', '_')}"])
        shown = f"{text} (default: {default})"
        parser.add_argument(*spellings, type=kind, default=default, help=shown)
    _add_dtype(parser)


def add_perplexity(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Compute a text's perplexity, and the loss of each token."
    parser = add_command(commands, common, "perplexity", about, "inference:run_perplexity")
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="text to score")
    _add_dtype(parser)


def add_classify(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Classify a text, or a pair of texts, with a fine-tuned model."
    parser = add_command(commands, common, "classify", about, "inference:run_classify")
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="text to classify")
    parser.add_argument(
        "--text-pair", "--text_pair", default="", help="second text, for a model of pairs"
    )
    _add_dtype(parser)


def add_tag(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Tag the words of a text with a fine-tuned model."
    parser = add_command(commands, common, "tag", about, "inference:run_tag")
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="words, separated by spaces")
    _add_dtype(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    about = "model name, folder, run's checkpoint (RUN@best) or Hub id"
    parser.add_argument("--model", default="", help=about)


def _add_dtype(parser: argparse.ArgumentParser) -> None:
    about = "precision of the computation; auto: bfloat16 if this machine computes faster in it"
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help=about)
