"""Writes the README.md of a repository."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from core.config.options import title_of
from core.config.train import TrainConfig
from core.families import title_of_family
from core.finetuning.saving import is_classifier
from core.hub.client import parse_hub_id
from core.publishing.card_cleaning import count_of, describe_cleaning, mapping
from core.publishing.card_evaluations import describe_evaluations, stored_results
from core.publishing.card_notes import CardNotes
from core.publishing.classifier_card import classifier_card
from core.publishing.facts import ModelFacts, corpus_of
from core.publishing.markdown import Markdown, code, escape_markup, table
from core.report.titles import accuracy_title
from core.workspace.manifests import Manifest

if TYPE_CHECKING:
    from huggingface_hub import CardData, EvalResult

CURVES_FILE = "curves.png"
LOG_FILE = "training_log.jsonl"

_TASKS = {
    "encoder": ("fill-mask", "Fill-mask"),
    "decoder": ("text-generation", "Text generation"),
    "encoder-decoder": ("text2text-generation", "Text-to-text generation"),
}
_CLASSES = {
    "encoder": "AutoModelForMaskedLM",
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
_OBJECTIVES = {
    "mlm": "masked language modelling (predicting masked tokens)",
    "clm": "causal language modelling (predicting the next token)",
    "span_corruption": "span corruption (predicting masked spans)",
    "denoising": "denoising (restoring corrupted text)",
}
_ALGORITHMS = {
    "unigram": "Unigram",
    "sentencepiece_unigram": "SentencePiece-style Unigram",
    "byte_level_bpe": "byte-level BPE",
    "wordpiece": "WordPiece",
}
_HYPERPARAMETERS = (
    "preset", "optimizer", "learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio",
    "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "muon_momentum",
    "adam_learning_rate_ratio", "max_grad_norm", "per_replica_batch_size",
    "gradient_accumulation_steps", "hidden_dropout_prob", "attention_probs_dropout_prob",
    "mlm_probability", "whole_word_mask", "intra_document_masking", "mean_noise_span_length",
    "poisson_lambda", "permute_sentence_ratio", "dtype_policy", "seed",
)  # fmt: skip
_ONLY_WITH = {
    "muon_momentum": ("optimizer", "muon"),
    "adam_learning_rate_ratio": ("optimizer", "muon"),
    "mean_noise_span_length": ("objective", "span_corruption"),
    "poisson_lambda": ("objective", "denoising"),
    "permute_sentence_ratio": ("objective", "denoising"),
    "whole_word_mask": ("objective", "mlm"),
}
_STUDIO = "Pretrain Studio"
# A mask that Python and a shell take as it is within quotes.
_QUOTABLE = re.compile(r"[^\s`\"'\\$!]{1,40}")


def model_card(facts: ModelFacts, notes: CardNotes) -> str:
    """Returns the card of a pretrained or a fine-tuned model."""
    from huggingface_hub import ModelCardData

    if is_classifier(facts.folder):
        return classifier_card(facts, notes)

    kind = facts.architecture.kind
    results = [*_eval_results(facts), *stored_results(facts.evaluations, _TASKS[kind])]
    base = parse_hub_id(str(facts.config.get("checkpoint") or ""))
    data = ModelCardData(
        language=notes.languages or None,
        license=notes.license or None,
        library_name="transformers",
        pipeline_tag=_TASKS[kind][0],
        base_model=base[0] if base else None,
        datasets=_all_datasets(facts),
        tags=[facts.architecture.model_type, "pretrain-studio"],
        model_name=notes.name if results else None,
        eval_results=results or None,
        parameters=facts.parameters,
    )
    sections = [
        f"# {notes.name}",
        notes.description,
        _about_model(facts),
        _section("Use", _use_of_model(facts, notes)),
        _section("Evaluation", _evaluations(facts)),
        _section("Text", _about_texts(facts, notes.license)),
        _section("Tokenizer", _scorecard(facts.tokenizer_manifest)),
        _section("Training", _training(facts)),
        _section("Provenance", _provenance(facts)),
    ]
    return _card(data, sections)


def tokenizer_card(manifest: Manifest | None, notes: CardNotes) -> str:
    from huggingface_hub import ModelCardData

    corpus = corpus_of(manifest)
    data = ModelCardData(
        language=notes.languages or None,
        license=notes.license or None,
        library_name="transformers",
        datasets=_datasets(corpus),
        tags=["tokenizer", "pretrain-studio"],
    )
    use = (
        "```python\nfrom transformers import AutoTokenizer\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({notes.arguments})\n```\n\n"
        f"In {_STUDIO}:\n\n```sh\npython -m core shards --tokenizer {notes.reference}\n```"
    )
    sections = [
        f"# {notes.name}",
        notes.description,
        f"A tokenizer trained with {_STUDIO}." if manifest else "A tokenizer.",
        _section("Use", use),
        _section("Scorecard", _scorecard(manifest)),
        _section("Text", _about_text(corpus, manifest, notes.license)),
        _section("Provenance", _table(_versions_and(manifest))),
    ]
    return _card(data, sections)


def shards_card(manifest: Manifest, notes: CardNotes) -> str:
    """Returns the dataset card of shards."""
    from huggingface_hub import DatasetCardData

    counts = manifest.counts
    corpus = corpus_of(manifest)
    data = DatasetCardData(
        language=notes.languages or None,
        license=notes.license or None,
        pretty_name=notes.name,
        source_datasets=_datasets(corpus),
        tags=["tfrecord", "pretrain-studio"],
    )
    layout = (
        "TFRecord files in `train/` and `validation/`, named `dataset-{shard}-{records}.tfrecord`. "
        "Each record is a `tf.train.Example` whose feature `input_ids` contains a sequence of "
        "token ids"
        + ("." if manifest.config.get("record_format") == "int64" else " as little-endian bytes.")
        + " `manifest.json` has the size and SHA-256 of each file; `tokenizer/` is the tokenizer."
    )
    rows = [
        ("Sequence length", _whole(counts.get("row_length"))),
        ("Training sequences", _whole(counts.get("train_rows"))),
        ("Validation sequences", _whole(counts.get("validation_rows"))),
        ("Training tokens", _whole(counts.get("train_tokens"))),
        ("Vocabulary", _whole(counts.get("vocab_size"))),
        ("Objective", code(manifest.config.get("objective", "mlm"))),
    ]
    sections = [
        f"# {notes.name}",
        notes.description,
        f"Text as sequences of token ids, ready for training. Built with {_STUDIO}.",
        _section("Use", f"```sh\npython -m core train --shards {notes.reference}\n```\n\n{layout}"),
        _section("Figures", _table(rows)),
        _section("Text", _about_text(corpus, manifest, notes.license)),
        _section("Cleaning", describe_cleaning(counts.get("cleaning"))),
        _section("Provenance", _table(_versions_and(manifest))),
    ]
    return _card(data, sections)


def _card(data: CardData, sections: Iterable[str]) -> str:
    body = "\n\n".join(section for section in sections if section)
    return f"---\n{data.to_yaml()}\n---\n\n{body}\n"


def _eval_results(facts: ModelFacts) -> list[EvalResult]:
    """Returns the header's metrics, unless measured elsewhere."""
    from huggingface_hub import EvalResult

    if not facts.config:
        return []
    task, task_name = _TASKS[facts.architecture.kind]
    datasets = _datasets(facts.corpus)
    metrics = (
        ("loss", "Validation loss", "eval_loss"),
        ("loss", "Unigram baseline", "frequency_baseline_loss"),
        ("perplexity", "Perplexity", "eval_perplexity"),
        ("accuracy", "Accuracy", "eval_accuracy"),
    )
    whole = ", ".join(facts.sources) or (datasets[0] if datasets else _text_name(facts.corpus))
    parts = [("", whole, datasets)]
    parts += [(f"/{name}", name, _datasets(facts.corpora[name])) for name in facts.sources]
    return [
        EvalResult(
            task_type=task,
            task_name=task_name,
            dataset_type=dataset_ids[0]
            if dataset_ids and not (facts.sources and not part)
            else "text",
            dataset_name=f"Held out of {text}",
            dataset_split="validation",
            metric_type=kind,
            metric_name=name,
            metric_value=round(float(facts.figures[figure + part]), 6),
        )
        for part, text, dataset_ids in parts
        for kind, name, figure in metrics
        if figure + part in facts.figures
    ]


def _all_datasets(facts: ModelFacts) -> list[str] | None:
    dataset_ids = [name for corpus in facts.corpora.values() for name in _datasets(corpus) or []]
    return list(dict.fromkeys(dataset_ids)) or None


def _about_model(facts: ModelFacts) -> str:
    family = title_of_family(facts.architecture.model_type)
    begins = f"A {family} model ({facts.size}) with {_short(facts.parameters)} parameters"
    if not facts.config:
        return f"{begins}."
    whence, knowledge = _origin(str(facts.config.get("checkpoint") or ""))
    done, planned = int(facts.figures.get("num_train_steps", 0)), facts.planned_steps
    still = (
        f"\n\n**Training continues**: this is step {done:,} of {planned:,}."
        if done < planned
        else ""
    )
    learned = _OBJECTIVES.get(facts.objective) or escape_markup(facts.objective)
    return (
        f"{begins}, {whence} with {_STUDIO} on {_text_name(facts.corpus)}. The objective was "
        f"{learned}. {knowledge}{still}"
    )


def _origin(checkpoint: str) -> tuple[str, str]:
    if not checkpoint:
        leanings = "including its errors and biases"
        return "trained from scratch", f"It has learned only from that text, {leanings}."
    known = parse_hub_id(checkpoint)
    source = f"[{known[0]}](https://hf.co/{known[0]})" if known else "another checkpoint"
    leanings = "including the errors and biases of both"
    knowledge = f"It has also learned from the checkpoint's training text, {leanings}."
    return f"trained further from {source}", knowledge


def _use_of_model(facts: ModelFacts, notes: CardNotes) -> str:
    kind = facts.architecture.kind
    mask = facts.tokenizer.mask_token if facts.tokenizer else None
    if kind == "encoder" and mask and _QUOTABLE.fullmatch(mask):
        text = _example(facts.corpus, mask)
        call = f'fill = pipeline("fill-mask", {notes.arguments})\nprint(fill("{text}"))'
        ours = f'python -m core fill-mask {notes.reference} "{text}"'
    elif kind == "decoder":
        call = f'write = pipeline("text-generation", {notes.arguments})\nprint(write("The"))'
        ours = f'python -m core generate {notes.reference} "The"'
    else:
        return (
            f"```python\nfrom transformers import {_CLASSES[kind]}, AutoTokenizer\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({notes.arguments})\n"
            f"model = {_CLASSES[kind]}.from_pretrained({notes.arguments})\n```\n\n"
            f"In {_STUDIO}:\n\n"
            f'```sh\npython -m core generate {notes.reference} "The"\n```'
        )
    return (
        f"```python\nfrom transformers import pipeline\n\n{call}\n```\n\n"
        f"In {_STUDIO}:\n\n```sh\n{ours}\n```"
    )


def _example(corpus: Mapping[str, Any], mask: str) -> str:
    docs = corpus.get("source") == "docs"
    return f"Returns the {mask} of the array." if docs else f"This is the {mask} of the day."


def _evaluations(facts: ModelFacts) -> str:
    parts = (_evaluation(facts), describe_evaluations(facts.evaluations))
    return "\n\n".join(filter(None, parts))


def _evaluation(facts: ModelFacts) -> str:
    figures = facts.figures
    if "eval_loss" not in figures:
        return ""
    rows = [
        ("Validation loss", Markdown(f"**{figures['eval_loss']:.4f}** nats")),
        ("Unigram baseline", _nats(figures.get("frequency_baseline_loss"))),
        ("Perplexity", _number(figures.get("eval_perplexity"))),
        (
            accuracy_title({"objective": facts.objective}),
            _percent(figures.get("eval_accuracy")),
        ),
        ("At step", _whole(figures.get("best_step"))),
    ]
    gain = _gain(figures)
    about = "From its `eval_results.json`; the method of measurement is unknown."
    if facts.config:
        about = "Measured on held-out text"
        if facts.objective == "mlm":
            about += ", with fixed masks and the published 15 % of masked tokens"
        about += "."
    baseline = (
        " The unigram baseline is the loss of predicting from token counts alone."
        if "frequency_baseline_loss" in figures
        else ""
    )
    drawn = any("eval_loss" in row.values for row in facts.log)
    picture = (
        f"![Training and validation loss by step, with the unigram baseline]({CURVES_FILE})\n\n"
        f"All metrics by step are in [{LOG_FILE}]({LOG_FILE})."
    )
    return "\n\n".join(
        filter(None, [f"{about}{baseline}{gain}", _table(rows), picture if drawn else ""])
    )


def _gain(figures: Mapping[str, float]) -> str:
    if "frequency_baseline_loss" not in figures:
        return ""
    gain = figures["frequency_baseline_loss"] - figures["eval_loss"]
    return f" The model is {gain:.2f} nats below it." if gain > 0 else " The model is not below it."


def _about_texts(facts: ModelFacts, license: str) -> str:
    """Describes the text; of a mixture, each source with its share and its validation loss."""
    if not facts.sources:
        return _about_text(facts.corpus, facts.shards, license)
    figures = facts.figures
    rows = [
        (name, _percent(figures.get(f"share/{name}")), _number(figures.get(f"epoch/{name}")),
         _nats(figures.get(f"eval_loss/{name}")))
        for name in facts.sources
    ]  # fmt: skip
    head = ("source", "share of the training", "epochs", "validation loss")
    parts = [f"A mixture of several texts:\n\n{table(head, rows)}"]
    for name, manifest in facts.sources.items():
        if about := _about_text(facts.corpora[name], manifest, license):
            parts.append(f"### {escape_markup(name)}\n\n{about}")
    return "\n\n".join(parts)


def _about_text(corpus: Mapping[str, Any], manifest: Manifest | None, license: str) -> str:
    if not corpus:
        return ""
    counts = manifest.counts if manifest else {}
    rows = [
        ("Source", Markdown(_text_name(corpus))),
        ("Configuration", code(corpus.get("dataset_config")) if _datasets(corpus) else ""),
        *(
            (f"Training documents of {name}", count_of(source, "train_documents"))
            for name, source in mapping(counts.get("sources")).items()
        ),
        ("Training documents", _whole(counts.get("train_documents"))),
        ("Held-out documents", _whole(counts.get("validation_documents"))),
        ("Training tokens", _whole(counts.get("train_tokens"))),
    ]
    own = f"`{license}`" if license else "not stated"
    note = (
        f"Licence of this repository: {own}. The training text has its own terms; check them "
        "before you use this repository."
    )
    return f"{_table(rows)}\n\n{note}"


def _scorecard(manifest: Manifest | None) -> str:
    if manifest is None:
        return ""
    scores = manifest.counts
    where = "held-out text" if scores.get("scored_on") == "validation" else "training text"
    algorithm = str(manifest.config.get("algorithm", ""))
    rows = [
        ("Algorithm", _ALGORITHMS.get(algorithm, algorithm)),
        ("Tokens", _whole(scores.get("vocab_size"))),
        ("Tokens per word", _number(scores.get("tokens_per_word"))),
        ("Bytes per token", _number(scores.get("bytes_per_token"))),
        ("Unknown", _percent(scores.get("unknown_share"))),
        ("Measured on", where if "tokens_per_word" in scores else ""),
    ]
    return _table(rows)


def _training(facts: ModelFacts) -> str:
    config, figures = {**facts.config, "objective": facts.objective}, facts.figures
    if not facts.config:
        return ""
    architecture = facts.architecture
    rows = [
        ("Objective", code(facts.objective)),
        ("Layers x hidden size", f"{architecture.num_hidden_layers} x {architecture.hidden_size}"),
        ("Attention heads", str(architecture.num_attention_heads)),
        ("Steps", _whole(figures.get("num_train_steps"))),
        ("Training tokens", _short(figures["tokens"]) if "tokens" in figures else ""),
        ("Device", facts.device),
        ("Time", _duration(figures.get("seconds") if facts.seconds is None else facts.seconds)),
        *((_title(name), code(config.get(name))) for name in _HYPERPARAMETERS
          if _matters(name, config)),
    ]  # fmt: skip
    return _table(rows)


def _matters(name: str, config: Mapping[str, Any]) -> bool:
    if name == "warmup_ratio" and config.get("warmup_steps") is not None:
        return False
    field, value = _ONLY_WITH.get(name, ("", None))
    return not field or config.get(field) == value


def _provenance(facts: ModelFacts) -> str:
    rows = [
        (f"Fingerprint of the {kind}", code(fingerprint))
        for kind, fingerprint in facts.fingerprints.items()
    ]
    return _table([*rows, *((name, version) for name, version in facts.versions.items())])


def _versions_and(manifest: Manifest | None) -> list[tuple[str, str]]:
    if manifest is None:
        return []
    made_from = [
        (f"Fingerprint of the {kind}", code(fingerprint))
        for kind, fingerprint in manifest.inputs.items()
    ]
    return [("Fingerprint", code(manifest.fingerprint)), *made_from, *manifest.versions.items()]


def _datasets(corpus: Mapping[str, Any]) -> list[str] | None:
    names = [
        str(source.get("dataset_name"))
        for source in _sources_of(corpus)
        if source.get("source") == "hub"
    ]
    dataset_ids = [name for name in names if "@" not in name and parse_hub_id(name)]
    return list(dict.fromkeys(dataset_ids)) or None


def _sources_of(corpus: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the named sources of a corpus, perhaps foreign, or the corpus itself."""
    sources = corpus.get("sources")
    if corpus.get("source") != "several" or not isinstance(sources, list | tuple):
        return [corpus]
    return [source for source in sources if isinstance(source, Mapping)]


def _text_name(corpus: Mapping[str, Any]) -> str:
    if corpus.get("source") == "several":
        named = [
            f"{_text_name(source)} ({escape_markup(source.get('name'))})"
            for source in _sources_of(corpus)
        ]
        return f"{len(named)} sources: {'; '.join(named)}"
    if datasets := _datasets(corpus):
        return f"[{datasets[0]}](https://hf.co/datasets/{datasets[0]})"
    return {
        "docs": "the documentation of installed Python packages",
        "files": "text files provided by its author",
        "corpus": "a cleaned corpus of its author",
    }.get(str(corpus.get("source")), "text without a description")


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return table(("", ""), [(name, value) for name, value in rows if value])


def _title(name: str) -> str:
    return title_of(name, TrainConfig.model_fields[name])


def _whole(value: Any) -> str:
    return "" if value is None else f"{int(value):,}"


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4g}"


def _nats(value: Any) -> str:
    return "" if value is None else f"{value:.4f} nats"


def _percent(value: Any) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _short(value: float) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if value >= size:
            return f"{value / size:.3g} {word}"
    return f"{value:.0f}"


def _duration(seconds: Any) -> str:
    if seconds is None:
        return ""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} seconds"
