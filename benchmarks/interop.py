"""Our checkpoints before transformers 4.57, and its TensorFlow and Flax files before us.

transformers 4.57 wants packages that the studio can't have beside its own, so it lives elsewhere:

    python3 -m venv /tmp/v457
    /tmp/v457/bin/pip install "transformers==4.57.*" torch==2.13.0 "huggingface_hub<1" \
        tensorflow tf-keras flax
    python -m benchmarks.interop /tmp/v457/bin/python
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.core.models.families import FAMILIES, LENGTH, PAD, VOCAB_SIZE
from tests.engines import ENGINES, run_on

WRITE = """
import sys
from pathlib import Path
import numpy as np
from core.models import hf
from core.models.registry import create_model
from tests.core.models.families import FAMILIES, small_architecture
folder = Path(sys.argv[1])
for family in FAMILIES:
    architecture = small_architecture(family)
    model = create_model(architecture, seed=7)
    generator = np.random.default_rng(0)
    for variable in model.trainable_variables:
        noise = generator.normal(0, 0.05 if family == "t5" else 0.2, variable.shape)
        variable.assign(variable.numpy() + noise.astype(np.float32))
    (folder / family).mkdir()
    hf.write_model(folder / family, model, architecture)
"""
SAY = """
import json, sys
from pathlib import Path
import numpy as np
from keras import ops
from core.models import hf
from tests.core.models.families import FAMILIES
folder = Path(sys.argv[1])
arrays = dict(np.load(folder / "inputs.npz"))
for family in FAMILIES:
    said = np.load(folder / family / "said4.npz")
    found = {}
    for kind in said.files:
        place = folder / family / ("" if kind == "torch" else kind)
        for path, value in hf.read_weights(place).items():
            assert np.array_equal(value, hf.read_weights(folder / family)[path]), path
        if (family, kind) == ("roberta", "TF"):
            continue  # TensorFlow's class takes padding to be token 1, whatever the config says.
        logits = ops.convert_to_numpy(hf.load_model(place)(arrays))
        real = arrays["attention_mask"] == 1
        if family in ("t5", "bart"):
            real = np.ones_like(real)
        found[kind] = float(np.abs(logits - said[kind])[real].max())
    print(family, found, file=sys.stderr)
    assert max(found.values()) < 1e-4, (family, found)
    (folder / family / f"{sys.argv[2]}.json").write_text(json.dumps(found))
"""


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "inputs.npz", **_inputs())
        run_on("jax", WRITE, folder)
        script = Path(__file__).with_name("transformers4.py")
        subprocess.run([sys.argv[1], str(script), str(folder)], check=True)
        for engine in ENGINES:
            run_on(engine, SAY, folder, engine)
            for family in FAMILIES:
                found = json.loads((folder / family / f"{engine}.json").read_text())
                differences = ", ".join(f"{kind} {value:.1e}" for kind, value in found.items())
                print(f"{engine:10} {family:10} largest difference of logits: {differences}")


def _inputs() -> dict[str, Any]:
    generator = np.random.default_rng(1)
    ids = generator.integers(5, VOCAB_SIZE, (3, LENGTH)).astype(np.int32)
    ids[1, 9:] = PAD
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).astype(np.int32),
        "decoder_input_ids": generator.integers(5, VOCAB_SIZE, (3, LENGTH)).astype(np.int32),
    }


if __name__ == "__main__":
    main()
