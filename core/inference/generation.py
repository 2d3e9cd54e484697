"""Generates text with a key-value cache; greedily, as transformers' `generate` does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.options import Dtype
from core.artifacts.locating import locate_model
from core.artifacts.model_tokenizer import MOST_TOKENS, load_tokenizer
from core.errors import ConfigError
from core.inference.generation_config import LogitsProcessor, read_generation_config
from core.inference.models import (
    check_finite,
    choose_backend,
    keep,
    load_model,
    read_compatible,
    read_out,
)
from core.inference.packing import bucket_size
from core.inference.precision import choose_dtype
from core.inference.sampling import Sampler, Sampling, check_whole_number
from core.tokenizer.roles import without_lone_surrogates
from core.workspace.workspace import Workspace

# Powers of two: few shapes are compiled.
_SHORTEST_PROMPT = 16
_SHORTEST_CACHE = 64
MOST_NEW_TOKENS = 4096
_MASK = "<mask>"
_UNFINISHED_CHARACTER = "\N{REPLACEMENT CHARACTER}"

TextStream = Generator[str, None, dict[str, Any]]


def generate(
    model: str | Path,
    prompt: str,
    *,
    max_new_tokens: int = 50,
    do_sample: bool = True,
    temperature: float = 1.0,
    top_k: int | None = 0,
    top_p: float = 1.0,
    seed: int = 0,
    workspace: Workspace | None = None,
    dtype: Dtype = "float32",
) -> dict[str, Any]:
    """Generates text from a prompt.

    What the model's `generation_config.json` says applies, except for the arguments and beams.

    Args:
        model: Name in the workspace, folder, run's checkpoint (`RUN@best`), or Hub id.
        prompt: T5 and BART fill its `<mask>`s.
        max_new_tokens: 1 to 4096.
        temperature: 0 to 100; 0 is greedy.
        top_k: 0 or None: all tokens.
        top_p: In (0, 1].
        dtype: auto uses bfloat16 if faster.

    Returns:
        `text` (new), `generated_text` (GPT-2: with the prompt), `token_ids`, `num_prompt_tokens`,
        `num_new_tokens`, and `finish_reason`: `eos`, `length` or `positions` (none left).

    Raises:
        ConfigError: An unsuitable argument or model.
        CheckpointError, TokenizerError, HubError: The model can't be loaded.
    """
    stream = generate_stream(
        model,
        prompt,
        max_new_tokens=max_new_tokens,
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        workspace=workspace,
        dtype=dtype,
    )
    return read_out(stream)


def generate_stream(
    model: str | Path,
    prompt: str,
    *,
    max_new_tokens: int = 50,
    do_sample: bool = True,
    temperature: float = 1.0,
    top_k: int | None = 0,
    top_p: float = 1.0,
    seed: int = 0,
    workspace: Workspace | None = None,
    dtype: Dtype = "float32",
) -> TextStream:
    """Yields pieces of `generate`'s text as they come; returns its result.

    Raises:
        StudioError: Before the first piece.
    """
    sampling = Sampling(do_sample, temperature, top_k, top_p, seed)
    folder = locate_model(model, workspace)
    writer: TextGenerator = keep(folder, dtype, TextGenerator)
    return writer.write(prompt, max_new_tokens, sampling)


class TextGenerator:
    """A generative model with its tokenizer. Thread-safe."""

    def __init__(self, folder: Path, dtype: Dtype = "float32") -> None:
        kinds = ("decoder", "encoder-decoder")
        self.architecture = read_compatible(folder, kinds, "doesn't write")
        self.tokenizer = load_tokenizer(folder, self.architecture.vocab_size)
        self.config = read_generation_config(folder, self.architecture)
        self._folder = folder
        self._dtype = dtype
        self._lock = threading.Lock()

    def write(self, prompt: str, max_new_tokens: int, sampling: Sampling) -> TextStream:
        """Checks the request; see `generate_stream`."""
        check_whole_number("max_new_tokens", max_new_tokens, 1, MOST_NEW_TOKENS, "50, say")
        if isinstance(prompt, str):
            prompt = without_lone_surrogates(prompt)
        ids = self._encode(prompt)
        return self._stream(prompt, ids, max_new_tokens, Sampler(sampling))

    def read(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """Computes a decoder's logits after each token, float32 (tokens, V)."""
        with self._lock:
            logits = np.asarray(self._call(self._padded(ids)))[0, : len(ids)].astype(np.float32)
        check_finite(logits, self._folder)
        return logits

    @property
    def _continues(self) -> bool:
        return self.architecture.kind == "decoder"

    def _encode(self, prompt: str) -> NDArray[np.int32]:
        if not isinstance(prompt, str) or not prompt.strip():
            raise ConfigError(
                "The prompt is empty",
                expected="some text to continue",
                received=repr(prompt) if isinstance(prompt, str) else type(prompt).__name__,
                fix="write a few words",
                field="prompt",
            )
        if len(self.tokenizer.sentinel_ids()) and self.tokenizer.mask_token != _MASK:
            prompt = with_sentinels(prompt)
        encode = self.tokenizer.encode_beginning if self._continues else self.tokenizer.encode
        ids = encode(prompt)
        longest = self.architecture.max_seq_length - int(self._continues)
        longest = min(longest, MOST_TOKENS)
        if not 0 < len(ids) <= longest:
            raise ConfigError(
                "The prompt is too long for this model" if len(ids) else "The prompt has no tokens",
                expected=f"from 1 to {longest} tokens",
                received=f"{len(ids)} tokens",
                fix="shorten the prompt" if len(ids) else "write words from the model's vocabulary",
                field="prompt",
            )
        return ids

    def _stream(
        self, prompt: str, ids: NDArray[np.int32], max_new_tokens: int, sampler: Sampler
    ) -> TextStream:
        before = ids.tolist() if self._continues else []
        text, new_ids, reason = _GrowingText(self._decode, before), [], "length"
        first = before or [self.config.first_token]
        processor = LogitsProcessor(self.config, first, ids.tolist(), len(first) + max_new_tokens)
        for token in self._tokens(ids, max_new_tokens, sampler, processor):
            new_ids.append(token)
            if token in self.config.eos_token_id:
                reason = "length" if processor.forces_end else "eos"
                break
            if piece := text.add(token):
                yield piece
        else:
            reason = "length" if len(new_ids) == max_new_tokens else "positions"
        if piece := text.finish():
            yield piece
        return {
            "generated_text": prompt + text.shown if self._continues else text.shown,
            "text": text.shown,
            "token_ids": new_ids,
            "num_prompt_tokens": len(ids),
            "num_new_tokens": len(new_ids),
            "finish_reason": reason,
        }

    def _tokens(
        self,
        ids: NDArray[np.int32],
        max_new_tokens: int,
        sampler: Sampler,
        processor: LogitsProcessor,
    ) -> Generator[int, None, None]:
        done = len(ids) if self._continues else 1
        count = min(max_new_tokens, self.architecture.max_seq_length - done)
        # The last token is never fed back.
        slots = bucket_size(done + count - 1, _SHORTEST_CACHE, self.architecture.max_seq_length)
        cache, token = self._start(ids, slots)
        logits, cache = self._advance(token, cache)
        for number in range(1, count + 1):
            last = np.asarray(logits)[0, -1]
            check_finite(last, self._folder)
            token = sampler.choose(processor(last))
            if number < count and token not in self.config.eos_token_id:
                # Computed while the caller decodes this token.
                logits, cache = self._advance(token, cache)
            yield token
            processor.add(token)

    def _advance(self, token: int, cache: Any) -> tuple[Any, Any]:
        with self._lock:
            logits, new = self._predict_next(np.array([[token]], np.int32), cache)
            return logits, self._extend_cache(cache, new)

    def _start(self, ids: NDArray[np.int32], slots: int) -> tuple[Any, int]:
        """Returns the initial cache and the first token."""
        with self._lock:
            if not self._continues:
                return self._start_cache(self._padded(ids), slots), self.config.first_token
            cache = self._start_cache({"input_ids": np.zeros((1, 1), np.int32)}, slots)
            if len(ids) > 1:
                cache = self._fill(self._padded(ids[:-1])["input_ids"], cache)
                # New tokens overwrite the padding in the cache.
                cache = {**cache, "positions": np.array([len(ids) - 1], np.int32)}
            return cache, int(ids[-1])

    def _padded(self, ids: NDArray[np.int32]) -> dict[str, NDArray[np.int32]]:
        length = bucket_size(len(ids), _SHORTEST_PROMPT, self.architecture.max_seq_length)
        row = np.full((1, length), self.architecture.pad_token_id, np.int32)
        row[0, : len(ids)] = ids
        mask = (np.arange(length) < len(ids)).astype(np.int32)[None, :]
        return {"input_ids": row, "attention_mask": mask}

    @cached_property
    def _model(self) -> Any:
        """Loaded on first use: a bad request fails at once."""
        choose_backend()
        return load_model(self._folder, choose_dtype(self._dtype, self.architecture, tokens=1))

    @cached_property
    def _start_cache(self) -> Callable[..., Any]:
        return self._compiled("start_cache")

    @cached_property
    def _fill(self) -> Callable[..., Any]:
        return self._compiled("fill_cache")

    @cached_property
    def _call(self) -> Callable[..., Any]:
        return self._compiled("call")

    @cached_property
    def _predict_next(self) -> Callable[..., Any]:
        return self._compiled("predict_next")

    @cached_property
    def _extend_cache(self) -> Callable[..., Any]:
        model = self._model
        from core.backends.compilation import compile_function

        return compile_function(model.extend_cache, donated=(0,))

    def _compiled(self, method: str) -> Callable[..., Any]:
        model = self._model
        from core.backends.compilation import compile_method

        return compile_method(model, method)

    def _decode(self, ids: Sequence[int]) -> str:
        """Decodes text tokens and T5's sentinels."""
        shown_tokens = [token for token in ids if token not in self._unseen]
        return self.tokenizer.decode(shown_tokens, skip_special=False)

    @cached_property
    def _unseen(self) -> frozenset[int]:
        special, sentinels = self.tokenizer.special_ids, self.tokenizer.sentinel_ids()
        return frozenset(special.tolist()) - frozenset(sentinels.tolist())


class _GrowingText:
    """Decodes tokens as they come; holds back incomplete characters."""

    def __init__(self, decode: Callable[[Sequence[int]], str], before: list[int]) -> None:
        self._decode = decode
        self._ids = list(before)
        self._start = len(decode(before)) if before else 0
        self.shown = ""

    def add(self, token: int) -> str:
        self._ids.append(token)
        return self._show(self._text().rstrip(_UNFINISHED_CHARACTER))

    def finish(self) -> str:
        return self._show(self._text())

    def _text(self) -> str:
        return self._decode(self._ids)[self._start :]

    def _show(self, text: str) -> str:
        piece = text[len(self.shown) :]
        self.shown += piece
        return piece


def with_sentinels(prompt: str) -> str:
    """Replaces masks by `<extra_id_0>` and so on."""
    first, *others = prompt.split(_MASK)
    return first + "".join(f"<extra_id_{number}>{text}" for number, text in enumerate(others))
