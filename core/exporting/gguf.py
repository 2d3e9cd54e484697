"""Writes a decoder as a GGUF file.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the package `gguf` has the names
of tensors and metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.architecture.options import BlockOptions, RotaryPositions
from core.artifacts.model_tokenizer import longest_sequence
from core.config.export import Quantization
from core.errors import ConfigError
from core.exporting.families import family_for_llama_cpp
from core.exporting.gguf_tokenizer import add_tokenizer
from core.families import weight_mappings
from core.models import hf
from core.models.rotary import frequency_factors
from core.tokenizer.loading import StudioTokenizer

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

# Values that share a scale.
_Q8_BLOCK = 32
# Architectures that rotate neighbouring values, instead of those of two halves of a head.
ROTATES_NEIGHBOURS = ("llama",)


def write_gguf(
    folder: Path,
    architecture: Architecture,
    tokenizer: StudioTokenizer,
    file: Path,
    quantization: Quantization,
    name: str,
) -> None:
    """Writes a checkpoint's weights, architecture and tokenizer as a GGUF file.

    Norms, biases and position embeddings stay in float32, as in llama.cpp's own files.

    Args:
        name: The model's name in the metadata.

    Raises:
        ConfigError: llama.cpp can't run the family.
        TokenizerError: llama.cpp can't represent the tokenizer.
    """
    from gguf import GGUFWriter

    family = family_for_llama_cpp(architecture)
    options = family.options(architecture)
    writer = GGUFWriter(str(file), family.gguf_architecture)
    writer.add_name(name)
    _add_dimensions(writer, architecture, longest_sequence(architecture, tokenizer), quantization)
    _add_blocks(writer, options.blocks)
    if options.rotary is not None:
        _add_rotary(writer, options.rotary, options.blocks.head_size)
    add_tokenizer(writer, tokenizer, architecture)
    for tensor, values in _tensors(folder, architecture, family.gguf_architecture):
        _add_tensor(writer, tensor, values, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_dimensions(
    writer: GGUFWriter, architecture: Architecture, length: int, quantization: Quantization
) -> None:
    from gguf import GGML_QUANT_VERSION, LlamaFileType

    types = {
        "f32": LlamaFileType.ALL_F32,
        "f16": LlamaFileType.MOSTLY_F16,
        "bf16": LlamaFileType.MOSTLY_BF16,
        "q8_0": LlamaFileType.MOSTLY_Q8_0,
    }
    writer.add_file_type(types[quantization])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_context_length(length)
    writer.add_vocab_size(architecture.vocab_size)
    writer.add_embedding_length(architecture.hidden_size)
    writer.add_block_count(architecture.num_hidden_layers)


def _add_blocks(writer: GGUFWriter, options: BlockOptions) -> None:
    writer.add_feed_forward_length(options.units)
    writer.add_head_count(options.heads)
    writer.add_head_count_kv(options.kv_heads or options.heads)
    writer.add_key_length(options.head_size)
    writer.add_value_length(options.head_size)
    if options.norm == "rms":
        writer.add_layer_norm_rms_eps(options.epsilon)
    else:
        writer.add_layer_norm_eps(options.epsilon)


def _add_rotary(writer: GGUFWriter, rotary: RotaryPositions, size: int) -> None:
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(rotary.theta)
    if rotary.scaling is None:
        return
    if writer.arch not in ROTATES_NEIGHBOURS:
        raise ConfigError(
            f"llama.cpp can't scale the rotary positions of the architecture {writer.arch}",
            expected="rope_type default",
            received=f"rope_type {rotary.scaling.rope_type}",
            fix="export it with ⟬--format⟭ onnx",
            field="model",
        )
    divisors = 1 / frequency_factors(size, rotary.theta, rotary.scaling)
    writer.add_tensor("rope_freqs.weight", divisors.astype(np.float32))
    if rotary.scaling.attention_factor:
        writer.add_rope_scaling_attn_factors(rotary.scaling.attention_factor)


def _tensors(
    folder: Path, architecture: Architecture, name: str
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yields names and values; matrices are (outputs, inputs)."""
    from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map

    numbers = {known: number for number, known in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(MODEL_ARCH(numbers[name]), architecture.num_hidden_layers)
    # Unlike a Conv1D of transformers, GGUF has each kernel transposed.
    mappings = [
        replace(mapping, transposed=mapping.path.endswith("/kernel"))
        for mapping in weight_mappings(architecture)
    ]
    for tensor, values in hf.tensors_of(hf.read_weights(folder, architecture), mappings).items():
        translated = names.get_name(tensor, try_suffixes=(".weight", ".bias"))
        assert translated is not None, tensor
        is_rotated = translated.endswith((".attn_q.weight", ".attn_k.weight"))
        if is_rotated and name in ROTATES_NEIGHBOURS:
            values = _with_pairs_as_neighbours(values, architecture.head_size)
        yield translated, values


def _with_pairs_as_neighbours(kernel: NDArray[Any], size: int) -> NDArray[Any]:
    """Reorders the outputs of each head, so that rotated pairs aren't D / 2 apart but adjacent."""
    heads = kernel.reshape(-1, 2, size // 2, kernel.shape[-1])
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(kernel.shape))


def _add_tensor(
    writer: GGUFWriter, name: str, values: NDArray[Any], quantization: Quantization
) -> None:
    from gguf import quants

    kind = _type_of(name, values, quantization)
    writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)


def _type_of(name: str, values: NDArray[Any], quantization: Quantization) -> GGMLQuantizationType:
    from gguf import GGMLQuantizationType

    if values.ndim == 1 or quantization == "f32" or name.startswith("position_embd"):
        return GGMLQuantizationType.F32
    if quantization == "q8_0" and values.shape[-1] % _Q8_BLOCK:
        return GGMLQuantizationType.F16
    return GGMLQuantizationType[quantization.upper()]
