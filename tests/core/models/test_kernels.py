"""Hand-written gradients compared with automatic differentiation, and dropout's masks."""

from __future__ import annotations

import pytest

from tests.engines import ENGINES, run_on

GRADIENTS = """
import json
import keras
import numpy as np
from keras import ops
from core.backends import kernels

generator = np.random.default_rng(0)
def random(*shape):
    return ops.convert_to_tensor(generator.normal(0, 1.5, shape).astype(np.float32))

def plain_norm(x, scale, bias):
    mean = ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(x - mean), axis=-1, keepdims=True)
    return (x - mean) / ops.sqrt(variance + 1e-5) * scale + bias

# Three blocks of queries, and a document that ends within one.
STARTS = np.where(np.arange(300) < 170, 0, 170)[None].repeat(2, 0).astype(np.int32)

def documents_together(query, key, value):
    return kernels.attention(query, key, value, None, 0, None, causal=True, text_starts=STARTS)

def documents_apart(*heads):
    return ops.concatenate([plain_attention(*[h[:, :170] for h in heads]),
                            plain_attention(*[h[:, 170:] for h in heads])], axis=1)

def plain_attention(query, key, value):
    key, value = ops.repeat(key, 2, axis=2), ops.repeat(value, 2, axis=2)
    logits = ops.einsum("blnd,bmnd->bnlm", query, key) / np.sqrt(8).astype(np.float32)
    later = np.triu(np.full((query.shape[1],) * 2, -1e9, np.float32), 1)
    mixed = ops.einsum("bnlm,bmnd->blnd", ops.softmax(logits + later), value)
    return ops.reshape(mixed, (2, -1, 32))

pairs = {
    "dense": (kernels.dense, lambda x, w, b: ops.matmul(x, w) + b,
              (random(3, 5, 8), random(8, 6), random(6))),
    "wide_dense": (kernels.dense, lambda x, w, b: ops.matmul(x, w) + b,
                   (random(2, 3, 256), random(256, 256), random(256))),
    "layer_norm": (lambda x, s, b: kernels.layer_norm(x, s, b, 1e-5), plain_norm,
                   (random(3, 5, 8), random(8), random(8))),
    "gelu": (kernels.gelu, lambda x: 0.5 * x * (1 + ops.erf(x / np.sqrt(2).astype(np.float32))),
             (random(4, 50),)),
    "gelu_tanh": (kernels.gelu_tanh, lambda x: 0.5 * x * (1 + ops.tanh(
        np.float32(np.sqrt(2 / np.pi)) * (x + 0.044715 * x * x * x))), (random(4, 50),)),
    "silu": (kernels.silu, lambda x: x / (1 + ops.exp(-x)), (random(4, 50),)),
    "causal_attention": (documents_together, documents_apart,
                         (random(2, 300, 4, 8), random(2, 300, 2, 8), 0.3 * random(2, 300, 2, 8))),
    "rms_norm": (lambda x, s: kernels.rms_norm(x, s, 1e-6),
                 lambda x, s: x / ops.sqrt(ops.mean(ops.square(x), -1, keepdims=True) + 1e-6) * s,
                 (random(3, 5, 8), random(8))),
}

def gradients(function, arguments):
    def loss(*arguments):
        outputs = function(*arguments)
        weights = np.cos(np.arange(int(np.prod(outputs.shape)))).astype(np.float32)
        return ops.sum(outputs * ops.reshape(weights, outputs.shape))
    if keras.backend.backend() == "jax":
        import jax
        return jax.grad(loss, argnums=tuple(range(len(arguments))))(*arguments)
    import tensorflow as tf
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        value = loss(*arguments)
    return tape.gradient(value, arguments)

def largest(ones, others):
    pairs = zip(ones, others, strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)

print(json.dumps({
    name: [largest([ours(*arguments)], [plain(*arguments)]),
           largest(gradients(ours, arguments), gradients(plain, arguments))]
    for name, (ours, plain, arguments) in pairs.items()
}))
"""

NARROW = """
import json
import jax
import jax.numpy as jnp
import numpy as np
from core.backends import kernels

generator = np.random.default_rng(0)
def random(*shape):
    return jnp.asarray(generator.normal(0, 1, shape), jnp.bfloat16)

def dense(x, kernel): return kernels.dense(x, kernel)
def rows(x, table): return kernels.tied_logits(x, table)
def plain_dense(x, kernel): return x @ kernel
def plain_rows(x, table): return x @ table.T

def furthest(narrow, wide):
    wide = np.asarray(wide)
    return float(np.abs(np.asarray(narrow, np.float32) - wide).max() / np.abs(wide).max())

def compare(ours, plain, x, kernel):
    wide = [one.astype(jnp.float32) for one in (x, kernel)]
    def loss(function):
        return lambda *arguments: jnp.sum(jnp.sin(function(*arguments).astype(jnp.float32)))
    narrow = jax.grad(loss(ours), (0, 1))(x, kernel)
    compiled = jax.jit(ours).lower(x, kernel).compile().as_text()
    shape = ",".join(map(str, kernel.shape))
    return {
        "value": furthest(ours(x, kernel), plain(*wide)),
        "gradients": [furthest(*p) for p in zip(narrow, jax.grad(loss(plain), (0, 1))(*wide))],
        "dtypes": sorted({str(one.dtype) for one in narrow}),
        "widened": f"f32[{shape}]" in compiled,
    }

print(json.dumps({
    f"{name} {count}": compare(ours, plain, random(count, 40), random(*shape))
    for name, ours, plain, shape in (
        ("dense", dense, plain_dense, (40, 56)), ("rows", rows, plain_rows, (56, 40)))
    for count in (1, 5)
}))
"""

DROPOUT = """
import json
from hashlib import sha256
import keras
import numpy as np
from keras import ops
from core.backends import kernels

ones = ops.ones((40, 50, 60))
outputs = [np.asarray(kernels.dropout(ones, 0.1, np.array([seed, step], "int32")))
           for seed, step in ((1, 0), (1, 1), (2, 0))]
dropped = [output == 0 for output in outputs]
neighbours = np.corrcoef(dropped[0].ravel()[:-1], dropped[0].ravel()[1:])[0, 1]
print(json.dumps({
    "mask": sha256(dropped[0].tobytes()).hexdigest(),
    "kept": float(outputs[0].max()),
    "shares": [float(one.mean()) for one in dropped],
    "both": [float((dropped[0] & other).mean()) for other in dropped[1:]],
    "neighbours": float(neighbours),
    "rows": float(dropped[0].mean(axis=(1, 2)).std()),
}))
"""


PIECES = """
import json
import keras
import numpy as np
from keras import ops
from core.backends import kernels

generator = np.random.default_rng(0)
def random(dtype, *shape):
    return ops.cast(generator.normal(0, 1, shape).astype(np.float32), dtype)

labels = generator.integers(0, 23, (4, 7)).astype(np.int32)
weights = generator.random((4, 7)).astype(np.float32)
weights[1, 2:] = 0
whole = kernels.MAX_LOGITS_PER_CHUNK

def compute(arguments):
    bias = arguments[2] if len(arguments) == 3 else None
    return kernels.summed_cross_entropy(*arguments[:2], bias, labels, weights)

def with_gradients(arguments):
    if keras.backend.backend() == "jax":
        import jax
        loss, found = jax.jit(jax.value_and_grad(compute))(arguments)
    else:
        import tensorflow as tf
        @tf.function(autograph=False)
        def run(*arguments):
            with tf.GradientTape() as tape:
                tape.watch(arguments)
                loss = compute(arguments) / 3.0
            return loss * 3.0, [3.0 * one for one in tape.gradient(loss, arguments)]
        loss, found = run(*arguments)
    found = [np.asarray(ops.cast(one, "float32")) for one in found]
    judged = kernels.evaluate_batch(*arguments[:2], None if len(arguments) < 3 else arguments[2],
                           labels, weights)
    return [float(loss), np.asarray(judged).tolist(), found]

def compare(*arguments):
    found = {}
    for count, most in ((1, whole), (2, 4 * 4 * 23), (3, 4 * 3 * 23), (7, 1)):
        kernels.MAX_LOGITS_PER_CHUNK = most
        assert kernels.count_chunks(4, 7, 23) == count
        found[count] = with_gradients(arguments)
    loss, judged, gradients = found.pop(1)
    assert judged[0] == loss or abs(judged[0] - loss) < 1e-4 * loss
    apart = []
    for other_loss, other_judged, others in found.values():
        scale = [np.abs(one).max() for one in gradients]
        apart.append([
            abs(other_loss / loss - 1),
            abs(np.array(other_judged) / np.array(judged) - 1).max(),
            max(np.abs(a - b).max() / s for a, b, s in zip(gradients, others, scale)),
        ])
    return np.max(apart, axis=0).tolist()

print(json.dumps({
    f"{dtype}, {'bias' if bias else 'no bias'}": compare(
        random(dtype, 4, 7, 8), random(dtype, 23, 8), *([random("float32", 23)] if bias else []))
    for dtype in ("float32", "bfloat16") for bias in (True, False)
}))
"""

# The fused attention kernel is cuDNN's and needs a GPU; here, XLA's implementation replaces it.
FUSED = """
import json
import jax
import jax.numpy as jnp
import numpy as np
from core.backends.jax import kernels as kernels_jax
from core.backends import kernels

kernels_jax.FUSED_ATTENTION = "xla"
cpus, has_tensor_cores = jax.devices(), kernels_jax.has_tensor_cores
widest_fused_head = kernels_jax.widest_fused_head
kernels_jax.widest_fused_head = lambda: 8
calls = []
fused = jax.nn.dot_product_attention
jax.nn.dot_product_attention = lambda *heads, **mask: calls.append(1) or fused(*heads, **mask)

class Gpu:
    platform = "gpu"
    compute_capability = "9.0"
    class client:
        platform_version = "PJRT C API cuda 13000"

class Older(Gpu):
    compute_capability = "7.5"

class OtherMaker(Gpu):
    compute_capability = "gfx90a"
    class client:
        platform_version = "PJRT C API rocm 60300"

keys = jax.random.split(jax.random.key(0), 3)
def heads(length, dtype=jnp.bfloat16):
    return [jax.random.normal(key, (2, length, 3, 8), dtype) for key in keys]

def results(query, key, value, **options):
    def loss(*arguments):
        mixed = kernels.attention(*arguments, None, 0.0, None, **options)
        return jnp.sum(jnp.sin(mixed.astype(jnp.float32)))
    every = jax.value_and_grad(loss, (0, 1, 2))(query, key, value)
    return [np.asarray(one, np.float32) for one in jax.tree.leaves(every)]

def differences(**options):
    kernels_jax.has_tensor_cores = lambda: False
    apart = results(*heads(6), **options)
    kernels_jax.has_tensor_cores = lambda: True
    together = results(*heads(6), **options)
    return [float(np.abs(a - b).max()) for a, b in zip(apart, together, strict=True)]

found = {"scaled": differences(), "unscaled": differences(scaled=False), "taken": len(calls)}
query, key, value = heads(6)
bias, seed = jnp.zeros((1, 1, 1, 6)), jnp.array([1, 2])
kernels.attention(query, key, value, bias, 0.0, None)
kernels.attention(query, key, value, None, 0.1, seed)
kernels.attention(query[:, :5], key, value, None, 0.0, None)
kernels.attention(*heads(6, jnp.float32), None, 0.0, None)
kernels.attention(*[jnp.tile(one, 2) for one in heads(6)], None, 0.0, None)
starts = jnp.zeros((2, 6), jnp.int32)
kernels.attention(query, key, value, None, 0.0, None, causal=True, text_starts=starts)
found["not_taken"] = len(calls) - found["taken"]
found["causal"] = differences(causal=True)
found["taken_causal"] = len(calls) - found["taken"]
found["cores"] = []
for device in (Gpu, Older, OtherMaker, cpus[0]):
    jax.devices = lambda: [device]
    found["cores"].append(has_tensor_cores())
found["widest"] = []
for device in (Gpu, Older):
    jax.devices = lambda: [device]
    found["widest"].append(widest_fused_head())
print(json.dumps(found))
"""


# A TPU's kernel, interpreted on the CPU.
SPLASH = """
import json
from functools import partial
import jax
import jax.numpy as jnp
import numpy as np
from core.backends import kernels
from core.backends.jax import splash
from core.backends.jax.mesh import DeviceMesh

jax.config.update("jax_num_cpu_devices", 2)
compiled = splash.attention
attention = partial(compiled, interpret=True)
generator = np.random.default_rng(0)
def random(*shape):
    return jnp.asarray(generator.standard_normal(shape, np.float32))

query, key, value = random(2, 1024, 4, 8), random(2, 1024, 2, 8), random(2, 1024, 2, 8)
places = np.arange(1024)
starts = np.stack([np.where(places < 300, 0, 300), np.where(places < 700, 0, 700)]).astype(np.int32)
direction = random(2, 1024, 32)

def results(starts, mesh=None):
    def loss(query, key, value, starts):
        options = {"causal": True, "text_starts": starts}
        mixed = kernels.attention(query, key, value, None, 0.0, None, **options)
        return jnp.sum(mixed * direction)
    step, inputs = jax.value_and_grad(loss, (0, 1, 2)), (query, key, value, starts)
    if mesh:
        step, inputs = mesh.within(step), jax.device_put(inputs, mesh.rows())
    return jax.jit(step)(*inputs)

def difference(these, those):
    pairs = zip(jax.tree.leaves(these), jax.tree.leaves(those), strict=True)
    return max(float(jnp.abs(a - b).max()) for a, b in pairs)

plain = {"documents": results(starts), "one": results(None)}
taken = []
splash.applies, splash.attention = (
    splash.fits, lambda *heads, **rest: taken.append(1) or attention(*heads, **rest))
found = {name: difference(results(starts if name == "documents" else None), plain[name])
         for name in plain}
found["taken"] = len(taken)
mesh = DeviceMesh(jax.devices()[:2], "data")
found["two devices"] = difference(results(starts, mesh), plain["documents"])
found["documents matter"] = difference(*plain.values())
splash.attention = compiled
found["differs"] = splash.differs_by(interpret=True)
splash.attention = lambda *heads, interpret: attention(*heads[:4], None)
found["ignored documents differ"] = splash.differs_by()
found["fits"] = [splash.fits(length) for length in (512, 1024, 1100, 2048)]
print(json.dumps(found))
"""


@pytest.mark.slow(10)
def test_kernel_of_tpus_keeps_documents_apart() -> None:
    found = run_on("jax", SPLASH)
    assert found["taken"] > 0
    assert max(found["documents"], found["one"], found["two devices"]) < 1e-4
    assert found["documents matter"] > 0.1
    assert found["differs"] < 1e-4
    assert found["ignored documents differ"] > 0.1, "the check at the start tells"
    assert found["fits"] == [False, True, False, True]


@pytest.mark.slow(3)
def test_fused_attention_matches_plain_attention_if_available() -> None:
    found = run_on("jax", FUSED)
    assert found["taken"] == 2
    assert found["not_taken"] == 0
    assert max(*found["scaled"], *found["unscaled"], *found["causal"]) < 0.03
    assert found["taken_causal"] == 1, "but not with documents, which it would ignore"
    assert found["cores"] == [True, False, False, False]
    assert found["widest"] == [256, 128]


@pytest.mark.slow(3)
@pytest.mark.parametrize("engine", ENGINES)
def test_hand_written_gradients_match_automatic_differentiation(engine: str) -> None:
    for name, (values, gradients) in run_on(engine, GRADIENTS).items():
        assert values < 2e-6, name
        assert gradients < 2e-5, name


@pytest.mark.slow(5)
@pytest.mark.parametrize("engine", ENGINES)
def test_chunked_logits_have_the_same_losses_and_gradients(engine: str) -> None:
    for name, apart in run_on(engine, PIECES).items():
        exact = name.startswith("float32")
        assert max(apart[:2]) < (1e-5 if exact else 1e-3), name
        assert apart[2] < (1e-5 if exact else 0.02), name


def test_bfloat16_matmuls_are_accurate_and_widen_no_weights_on_cpu() -> None:
    for name, found in run_on("jax", NARROW).items():
        assert found["value"] < 0.01, name
        assert max(found["gradients"]) < 0.05, name
        assert found["dtypes"] == ["bfloat16"], name
        assert not found["widened"], name


def test_dropout_has_its_rate_and_equal_masks_on_both_backends() -> None:
    found = [run_on(engine, DROPOUT) for engine in ENGINES]
    assert found[0] == found[1]
    one = found[0]
    assert one["kept"] == pytest.approx(1 / 0.9)
    assert one["shares"] == pytest.approx([0.1] * 3, abs=0.003)
    # Other seeds and other steps drop independently, and so do neighbouring values and rows.
    assert one["both"] == pytest.approx([0.01] * 2, abs=0.001)
    assert abs(one["neighbours"]) < 0.01
    assert one["rows"] < 2 * (0.1 * 0.9 / (50 * 60)) ** 0.5
