"""Commands that run exported models in other programs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODELFILE = "Modelfile"
ONNX_FOLDER = "onnx"
OPENVINO_FOLDER = "openvino"
# transformers.js's names of number formats, and their parts of the files' names.
ONNX_DTYPES = {"f32": ("fp32", ""), "f16": ("fp16", "_fp16"), "q8_0": ("q8", "_quantized")}

# Pipelines of transformers and transformers.js, by the kind of model, or of classifier.
PIPELINES = {
    "encoder": "fill-mask",
    "decoder": "text-generation",
    "encoder-decoder": "text2text-generation",
    "sequence": "text-classification",
    "token": "token-classification",
}

_TRANSFORMERS = """\
from transformers import pipeline
print(pipeline("{task}", {model})({prompt}))"""
_PIPELINE = """\
import {{pipeline}} from "@huggingface/transformers";
const run = await pipeline("{task}", {folder});
console.log(await run({prompt}));"""
_SCRIPT = """\
import numpy, tokenizers, {package}
folder = {folder}
tokenizer = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
ids = numpy.array([tokenizer.encode({prompt}).ids])
inputs = {{"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0,
          "position_ids": numpy.arange(ids.size)[None]}}
{run}
print({shown})"""
# The encoder's part, then the decoder's, or that of the only graph.
_ONNX_RUNTIME = (
    """\
encoder = onnxruntime.InferenceSession(folder + "/onnx/encoder_model{ending}")
needed = {{name: inputs[name] for name in ("input_ids", "attention_mask")}}
states = encoder.run(None, needed)[0]
""",
    """\
session = onnxruntime.InferenceSession(folder + "/onnx/{graph}{ending}")
for each in session.get_inputs():
    if each.name.startswith("past_key_values"):
        inputs[each.name] = numpy.zeros((1, each.shape[1], 0, each.shape[3]), "float32")
needed = {{each.name: inputs[each.name] for each in session.get_inputs()}}
logits = session.run(["logits"], needed)[0]""",
)
# Some CPUs would compute in bfloat16 by default.
_OPENVINO = (
    """\
encoder = openvino.compile_model(
    folder + "/openvino/encoder_model.xml", "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}}
)
needed = {{name: inputs[name] for name in ("input_ids", "attention_mask")}}
states = encoder(needed)[0]
""",
    """\
session = openvino.compile_model(
    folder + "/openvino/{graph}.xml", "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}}
)
for each in session.inputs:
    if each.any_name.startswith("past_key_values"):
        _, heads, _, size = (each.get_max_length() for each in each.partial_shape)
        inputs[each.any_name] = numpy.zeros((1, heads, 0, size), "float32")
logits = session({{each.any_name: inputs[each.any_name] for each in session.inputs}})["logits"]""",
)
_STATES = """\
inputs = {{"encoder_hidden_states": states, "encoder_attention_mask": ids * 0 + 1,
          "use_cache_branch": numpy.array([False]), "input_ids": numpy.array([[{start}]])}}
"""


def model_commands(model: str, kind: str, prompt: str) -> dict[str, str]:
    """Returns the code or command for each program that runs a model as it is, by its name.

    Args:
        model: A folder, or a Hub id.
        kind: In PIPELINES.
    """
    if kind == "encoder-decoder":
        return {}  # transformers 5 has no pipeline for them.
    code = _TRANSFORMERS.format(task=PIPELINES[kind], model=_quoted(model), prompt=_quoted(prompt))
    serve = {"vLLM": f"vllm serve {shlex.quote(model)}"} if kind == "decoder" else {}
    return {"transformers": code, **serve}


def commands(folder: Path, counts: Mapping[str, Any]) -> dict[str, str]:
    """Returns the command for each program that runs an exported model, by its name."""
    if counts.get("format") == "onnx":
        place, prompt = _quoted(folder), _quoted(counts["prompt"])
        pipeline = _PIPELINE.format(task=counts["task"], folder=place, prompt=prompt)
        script = _script("onnxruntime", _ONNX_RUNTIME, folder, counts)
        return {"transformers.js": pipeline, "ONNX Runtime": script}
    if counts.get("format") == "openvino":
        return {"OpenVINO": _script("openvino", _OPENVINO, folder, counts)}
    file = shlex.quote(str(folder / counts["file"]))
    name = shlex.quote(folder.name.lower())
    modelfile = shlex.quote(str(folder / MODELFILE))
    return {
        "llama.cpp": f"llama-completion -m {file} -no-cnv -n 64 -p 'Once upon a time'",
        "Ollama": f"ollama create {name} -f {modelfile} && ollama run {name}",
    }


def _script(package: str, parts: tuple[str, str], folder: Path, counts: Mapping[str, Any]) -> str:
    """Returns a Python script that shows logits, or the most probable token at each position."""
    encode, decode = parts
    run, graph = decode, "model"
    if "start" in counts:
        run, graph = encode + _STATES + decode, "decoder_model_merged"
    ending = f"{ONNX_DTYPES[counts['quantization']][1]}.onnx"
    is_classifier = counts["task"].endswith("-classification")
    return _SCRIPT.format(
        package=package,
        folder=_quoted(folder),
        prompt=_quoted(counts["prompt"]),
        run=run.format(graph=graph, ending=ending, start=counts.get("start")),
        shown="logits" if is_classifier else "tokenizer.decode(logits[0].argmax(-1))",
    )


def _quoted(text: object) -> str:
    """Quotes a text for Python and JavaScript."""
    return json.dumps(str(text), ensure_ascii=False)
