"""Runs the commands that use a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Generator
from typing import Any

from core.cli.output import EXIT_DONE, workspace_of
from core.errors import ConfigError
from core.inference.classification import classify, tag
from core.inference.generation import generate_stream
from core.inference.masks import fill_mask
from core.inference.models import force_cpu
from core.inference.scoring import perplexity


def run_fill_mask(options: argparse.Namespace) -> int:
    if not options.text:
        raise ConfigError(
            "The text to fill is missing",
            expected="a text with a mask token",
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
        for mask in group:
            print(f"{mask['score']:8.4f}  {mask['token_str']!r:16}  {mask['sequence']}")
    return EXIT_DONE


def run_generate(options: argparse.Namespace) -> int:
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


def run_perplexity(options: argparse.Namespace) -> int:
    force_cpu()
    scores = perplexity(
        options.model, options.text, workspace=workspace_of(options), dtype=options.dtype
    )
    if options.json:
        print(json.dumps(scores, ensure_ascii=False))
        return EXIT_DONE
    for token in scores["tokens"]:
        loss = "-" if token["loss"] is None else f"{token['loss']:.3f}"
        print(f"{loss:>8}  {token['token_str']!r}")
    kind = "perplexity" if scores["kind"] == "exact" else "pseudo-perplexity"
    print(f"{kind} {scores['perplexity']:.2f}, {scores['loss']:.3f} nats per token")
    return EXIT_DONE


def run_classify(options: argparse.Namespace) -> int:
    force_cpu()
    classes = classify(
        options.model,
        options.text,
        text_pair=options.text_pair,
        workspace=workspace_of(options),
        dtype=options.dtype,
    )
    if options.json:
        print(json.dumps(classes, ensure_ascii=False))
        return EXIT_DONE
    for candidate in classes:
        print(f"{candidate['score']:8.4f}  {candidate['label']}")
    return EXIT_DONE


def run_tag(options: argparse.Namespace) -> int:
    force_cpu()
    tagged_words = tag(
        options.model, options.text, workspace=workspace_of(options), dtype=options.dtype
    )
    if options.json:
        print(json.dumps(tagged_words, ensure_ascii=False))
        return EXIT_DONE
    for tagged in tagged_words:
        print(f"{tagged['score']:8.4f}  {tagged['tag']:12}  {tagged['word']}")
    return EXIT_DONE
