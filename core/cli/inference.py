"""The commands that use a model: fill-mask, generate, perplexity, classify and tag."""

from __future__ import annotations

import argparse
import json
from collections.abc import Generator
from typing import Any

from core.cli.output import EXIT_DONE, workspace_of
from core.cli.parser import add_command
from core.config.options import DTYPES
from core.errors import ConfigError


def add_fill_mask(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Fill the masks of a text."
    parser = add_command(commands, common, "fill-mask", about, _run_fill_mask)
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="text with one or more mask tokens")
    parser.add_argument("--top-k", "--top_k", type=int, default=5, help="predictions per mask")
    _add_dtype(parser)


def _run_fill_mask(options: argparse.Namespace) -> int:
    from core.inference.masks import fill_mask
    from core.inference.models import force_cpu

    if not options.text:
        raise ConfigError(
            "The text to fill is missing",
            expected="a text with a mask token",
            received="nothing",
            fix="write the text after the model, or give it with --text",
            field="text",
        )
    force_cpu()
    predictions = fill_mask(
        options.model,
        options.text,
        options.top_k,
        workspace=workspace_of(options),
        dtype=options.dtype,
    )
    if options.json:
        print(json.dumps(predictions, ensure_ascii=False))
        return EXIT_DONE
    nested = predictions if predictions and isinstance(predictions[0], list) else [predictions]
    for number, group in enumerate(nested):
        if number:
            print()
        for one in group:
            print(f"{one['score']:8.4f}  {one['token_str']!r:16}  {one['sequence']}")
    return EXIT_DONE


def add_generate(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Continue a text, or fill in its masked spans."
    parser = add_command(commands, common, "generate", about, _run_generate)
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


def _run_generate(options: argparse.Namespace) -> int:
    from core.inference.generation import generate_stream
    from core.inference.models import force_cpu

    force_cpu()
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "dtype")
    stream = generate_stream(
        options.model,
        options.text,
        workspace=workspace_of(options),
        **{name: getattr(options, name) for name in names},
    )
    result = _print_as_it_comes(stream, silent=options.json)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    return EXIT_DONE


def _print_as_it_comes(stream: Generator[str, None, dict[str, Any]], *, silent: bool) -> Any:
    while True:
        try:
            piece = next(stream)
        except StopIteration as end:
            print("" if silent else "\n", end="", flush=True)
            return end.value
        print("" if silent else piece, end="", flush=True)


def add_perplexity(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Compute a text's perplexity, and the loss of each token."
    parser = add_command(commands, common, "perplexity", about, _run_perplexity)
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="text to score")
    _add_dtype(parser)


def _run_perplexity(options: argparse.Namespace) -> int:
    from core.inference.models import force_cpu
    from core.inference.scoring import perplexity

    force_cpu()
    found = perplexity(
        options.model, options.text, workspace=workspace_of(options), dtype=options.dtype
    )
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
        return EXIT_DONE
    for one in found["tokens"]:
        loss = "-" if one["loss"] is None else f"{one['loss']:.3f}"
        print(f"{loss:>8}  {one['token_str']!r}")
    kind = "perplexity" if found["kind"] == "exact" else "pseudo-perplexity"
    print(f"{kind} {found['perplexity']:.2f}, {found['loss']:.3f} nats per token")
    return EXIT_DONE


def add_classify(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Classify a text, or a pair of texts, with a fine-tuned model."
    parser = add_command(commands, common, "classify", about, _run_classify)
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="text to classify")
    parser.add_argument(
        "--text-pair", "--text_pair", default="", help="second text, for a model of pairs"
    )
    _add_dtype(parser)


def _run_classify(options: argparse.Namespace) -> int:
    from core.inference.classification import classify
    from core.inference.models import force_cpu

    force_cpu()
    found = classify(
        options.model,
        options.text,
        text_pair=options.text_pair,
        workspace=workspace_of(options),
        dtype=options.dtype,
    )
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
        return EXIT_DONE
    for one in found:
        print(f"{one['score']:8.4f}  {one['label']}")
    return EXIT_DONE


def add_tag(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Tag the words of a text with a fine-tuned model."
    parser = add_command(commands, common, "tag", about, _run_tag)
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="words, separated by spaces")
    _add_dtype(parser)


def _run_tag(options: argparse.Namespace) -> int:
    from core.inference.classification import tag
    from core.inference.models import force_cpu

    force_cpu()
    found = tag(options.model, options.text, workspace=workspace_of(options), dtype=options.dtype)
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
        return EXIT_DONE
    for one in found:
        print(f"{one['score']:8.4f}  {one['tag']:12}  {one['word']}")
    return EXIT_DONE


def _add_model(parser: argparse.ArgumentParser) -> None:
    about = "model name, folder, run's checkpoint (RUN@best) or Hub id"
    parser.add_argument("--model", default="", help=about)


def _add_dtype(parser: argparse.ArgumentParser) -> None:
    about = "precision of the computation; auto: bfloat16 if this machine computes faster in it"
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help=about)
