"""The number of Python frames between a layer and its matmul; each slows down tracing."""

from __future__ import annotations

from tests.engines import run_on

# Three of them belong to TensorFlow.
MOST_FRAMES = 6

_SCRIPT = """
import inspect, json, sys
import tensorflow as tf
from core.models.layers import Attention, Initializers
from core.architecture.options import BlockOptions

options = BlockOptions(8, 2, 4, 16, "gelu", 0.0, 0.0, 1e-5)
attention = Attention(options, Initializers(0, 0.02), name="attention")
attention.build((None, None, 8))
counts, call = [], inspect.unwrap(Attention.call).__code__

def profile(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "matmul":
        count, frame = 0, frame.f_back
        while frame and frame.f_code is not call:
            count, frame = count + 1, frame.f_back
        if frame:
            counts.append(count)

sys.setprofile(profile)
attention(tf.ones((1, 3, 8)))
sys.setprofile(None)
print(json.dumps(counts))
"""


def test_few_frames_lie_between_attention_and_its_matmuls() -> None:
    query_key_value, *others = run_on("tensorflow", _SCRIPT)
    assert query_key_value <= MOST_FRAMES
    assert others, "the output projection"
