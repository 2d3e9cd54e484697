"""The choice of backend and device from the settings and the hardware."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from core.backends import devices
from core.backends.devices import (
    Choice,
    Devices,
    Hardware,
    choose,
    estimate_devices,
    find_hardware,
    reporting_lost_processes,
)
from core.backends.selection import count_devices
from core.backends.tensorflow.devices import resolver_arguments
from core.config.train import TrainConfig
from core.errors import ConfigError, DeviceError, ProcessLostError
from tests.engines import run_on
from tests.ports import free_port

_NOTHING = Hardware(gpus=(), tpus=(), jax_gpu=False, jax_tpu=False)
_GPU = Hardware(gpus=("/dev/nvidia0",), tpus=(), jax_gpu=True, jax_tpu=False)
_BARE_GPU = Hardware(gpus=("/dev/nvidia0",), tpus=(), jax_gpu=False, jax_tpu=False)
_AMD_GPU = Hardware(gpus=("/dev/kfd",), tpus=(), jax_gpu=False, jax_tpu=False)
_TPU = Hardware(gpus=(), tpus=("/dev/accel0",), jax_gpu=False, jax_tpu=True)

# Starts a distributed run of one process; the argument holds environment variables to set.
_JOIN = """
import json, os, signal, sys, time
import jax
from core.config import TrainConfig
from core.backends.selection import select_backend

os.environ.update(json.loads(sys.argv[1]))
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(True))
select_backend(
    TrainConfig(device="cpu", num_processes=1, process_id=0, coordinator_address=sys.argv[2]))
os.kill(os.getpid(), signal.SIGTERM)
deadline = time.monotonic() + 5
while not heard and time.monotonic() < deadline:
    time.sleep(0.01)
print(json.dumps([bool(heard), jax.config.read("jax_cuda_visible_devices")]))
"""


_PRECISION = """
import json
from core.backends.jax import kernels as kernels_jax
from core.backends import precision
from core.backends.devices import Devices

measured = []
precision._gain = lambda *_: measured.append(1) or 1.0
gpu = Devices("jax", "gpu", 1, "a GPU", None, "asked for")
chosen = []
for has_cores in (True, False):
    kernels_jax.has_tensor_cores = lambda: has_cores
    chosen.append([*precision.choose_precision(gpu), len(measured)])
print(json.dumps(chosen))
"""


def _choose(hardware: Hardware, **values: str) -> Choice:
    return choose(TrainConfig(**values), hardware)


def test_devices_of_inference_follow_the_defaults_of_training() -> None:
    training, inference = TrainConfig(), devices.AutomaticDevices()
    for name in devices.DeviceOptions.__annotations__:
        assert getattr(inference, name) == getattr(training, name), name


@pytest.mark.parametrize(
    ("hardware", "engine", "kind"),
    [(_NOTHING, "tensorflow", "cpu"), (_GPU, "jax", "gpu"), (_TPU, "jax", "tpu")],
)
def test_auto_selects_tensorflow_on_cpu_and_jax_on_accelerators(
    hardware: Hardware, engine: str, kind: str
) -> None:
    choice = _choose(hardware)
    assert (choice.engine, choice.kind) == (engine, kind)


def test_requested_backend_uses_the_available_device() -> None:
    assert _choose(_NOTHING, engine="jax").kind == "cpu"
    assert _choose(_GPU, engine="tensorflow").kind == "gpu"
    assert _choose(_TPU, engine="tensorflow").kind == "cpu"


def test_requested_cpu_is_used_although_there_is_a_gpu() -> None:
    choice = _choose(_GPU, device="cpu")
    assert (choice.engine, choice.kind) == ("tensorflow", "cpu")


def test_missing_gpu_package_is_named_as_the_reason_for_using_the_cpu() -> None:
    choice = _choose(_BARE_GPU)
    assert choice.kind == "cpu" and "GPU" in choice.reason and "jax[cuda" in choice.reason


def test_amd_gpu_needs_the_rocm_package() -> None:
    assert "jax[rocm" in _choose(_AMD_GPU).reason
    with pytest.raises(DeviceError, match=r"jax\[rocm"):
        _choose(_AMD_GPU, device="gpu")


@pytest.mark.parametrize("device", ["gpu", "tpu"])
def test_missing_accelerator_is_an_error_with_the_searched_paths(
    device: str,
) -> None:
    with pytest.raises(DeviceError, match=rf"No usable {device.upper()}.*/dev/") as raised:
        _choose(_NOTHING, device=device)
    assert raised.value.field == "device"


def test_requested_gpu_without_its_package_is_an_error() -> None:
    with pytest.raises(DeviceError, match="isn't installed"):
        _choose(_BARE_GPU, device="gpu")


def test_tensorflow_can_use_a_tpu_by_name_or_the_local_one() -> None:
    named = {"engine": "tensorflow", "device": "tpu", "tpu_name": "grpc://10.0.0.2:8470"}
    for hardware, values in ((_NOTHING, named), (_TPU, {**named, "tpu_name": "local"})):
        choice = _choose(hardware, **values)
        assert (choice.engine, choice.kind) == ("tensorflow", "tpu")
    with pytest.raises(DeviceError, match="no TPU"):
        _choose(_NOTHING, **{**named, "tpu_name": "local"})


def test_resolver_arguments_match_the_original_example() -> None:
    assert resolver_arguments(TrainConfig()) == {"tpu": "local", "zone": None, "project": None}
    config = TrainConfig(tpu_name="node", tpu_zone="europe-west4-a", gcp_project="mine")
    assert resolver_arguments(config) == {
        "tpu": "node",
        "zone": "europe-west4-a",
        "project": "mine",
    }


def test_tensorflow_tpu_resolver_accepts_the_arguments() -> None:
    address = run_on(
        "tensorflow",
        """
        import json
        import tensorflow as tf
        from core.config import TrainConfig
        from core.backends.tensorflow.devices import resolver_arguments
        arguments = resolver_arguments(TrainConfig(tpu_name="grpc://10.0.0.2:8470"))
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(**arguments)
        print(json.dumps(resolver.master()))
        """,
    )
    assert address == "grpc://10.0.0.2:8470"


def test_fsdp_and_several_hosts_select_jax() -> None:
    assert _choose(_NOTHING, sharding="fsdp").engine == "jax"
    assert _choose(_NOTHING, coordinator_address="10.0.0.1:1234", num_processes="2").engine == "jax"
    with pytest.raises(ConfigError, match="TensorFlow doesn't support") as raised:
        TrainConfig(engine="tensorflow", sharding="fsdp")
    assert raised.value.field == "sharding"
    assert _choose(_NOTHING, engine="tensorflow", num_processes="2").engine == "tensorflow"
    with pytest.raises(DeviceError, match="can't share a TPU between processes"):
        _choose(_NOTHING, engine="tensorflow", device="tpu", num_processes="2")


@pytest.mark.parametrize("engine", ["tensorflow", "jax"])
def test_number_of_simulated_devices_is_the_requested_one(engine: str) -> None:
    count, line = run_on(
        engine,
        """
        import json, os
        from core.config import TrainConfig
        from core.backends.selection import select_backend
        config = TrainConfig(device="cpu", engine=os.environ["KERAS_BACKEND"], num_devices=4)
        devices = select_backend(config)
        print(json.dumps([devices.count, devices.describe()]))
        """,
    )
    assert count == 4
    assert "4 CPU" in line


@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_gpu_unusable_by_tensorflow_is_ignored_unless_requested(device: str) -> None:
    what, why = run_on(
        "tensorflow",
        """
        import json, os, sys
        from core.config import TrainConfig
        from core.errors import DeviceError
        from core.backends import devices, selection
        os.environ["CUDA_VISIBLE_DEVICES"] = "99"  # So there is none, to TensorFlow.
        devices._GPU_GLOBS = ("/dev/null",)
        config = TrainConfig(engine="tensorflow", device=sys.argv[1])
        try:
            found = selection.select_backend(config)
            print(json.dumps([found.kind, found.reason]))
        except DeviceError as error:
            print(json.dumps([error.field, str(error)]))
        """,
        device,
    )
    expected = {"auto": ("cpu", "TensorFlow can't use it"), "gpu": ("device", "found no GPU")}
    assert what == expected[device][0]
    assert expected[device][1] in why


def test_processes_that_fail_to_connect_are_an_error_with_instructions() -> None:
    said = run_on(
        "jax",
        """
        import json
        from core.config import TrainConfig
        from core.errors import DeviceError
        from core.backends import selection
        from core.backends.jax import devices
        devices._JOIN_SECONDS = 2
        config = TrainConfig(
            device="cpu", num_processes=2, process_id=0, coordinator_address="not an address")
        try:
            selection.select_backend(config)
        except DeviceError as error:
            print(json.dumps([error.field, str(error)]))
        """,
    )
    assert said[0] == "coordinator_address"
    assert "same command on every host" in said[1]


def test_process_of_a_distributed_run_still_receives_sigterm() -> None:
    heard, _ = run_on("jax", _JOIN, "{}", f"127.0.0.1:{free_port()}")
    assert heard


def test_process_with_an_explicit_id_under_slurm_keeps_all_gpus() -> None:
    slurm = {"JOB_ID": "7", "STEP_NODELIST": "a", "NTASKS": "1", "PROCID": "0", "LOCALID": "0"}
    said = {f"SLURM_{name}": value for name, value in slurm.items()}
    _, visible = run_on("jax", _JOIN, json.dumps(said), f"127.0.0.1:{free_port()}")
    assert visible == "all"


def test_device_count_follows_from_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "find_hardware", lambda: _NOTHING)
    for values, count in (
        ({"device": "cpu"}, 1),
        ({"device": "tpu"}, 1),
        ({"device": "tpu", "num_processes": 4, "engine": "jax"}, 4),
        ({"device": "cpu", "num_devices": 4}, 4),
        ({"device": "tpu", "num_devices": 4, "num_processes": 2, "engine": "jax"}, 8),
    ):
        assert count_devices(TrainConfig(**values)) == count


def test_device_count_is_estimated_from_the_hardware() -> None:
    gpus = replace(_GPU, gpus=("/dev/nvidia0", "/dev/nvidia1"))
    named = {"engine": "tensorflow", "device": "tpu", "tpu_name": "grpc://10.0.0.2:8470"}
    for hardware, values, count in (
        (_NOTHING, {}, 1),
        (_NOTHING, {"device": "cpu", "num_devices": 4}, 4),
        (_NOTHING, named, 1),
        (gpus, {}, 2),
        (gpus, {"num_devices": 1}, 1),
        (gpus, {"device": "cpu"}, 1),
        (gpus, {"num_processes": 4}, 8),
        (gpus, {"engine": "tensorflow", "device": "gpu"}, 2),
        (gpus, {"engine": "tensorflow"}, 1),
    ):
        assert estimate_devices(TrainConfig(**values), hardware) == count


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 3), ("", 0), ("-1", 0), ("2", 1), ("0,1", 2), ("0,1,2,3", 3)]
)
def test_gpus_hidden_by_cuda_visible_devices_are_not_counted(
    visible: str | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / f"nvidia{number}").touch()
    monkeypatch.setattr(devices, "_GPU_GLOBS", (f"{tmp_path}/nvidia[0-9]*",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert len(find_hardware().gpus) == count


@pytest.mark.parametrize(("plugins", "found"), [((), ()), (("json",), ("/dev/null",))])
def test_wsl_gpu_counts_if_jax_has_its_gpu_package(
    monkeypatch: pytest.MonkeyPatch, plugins: tuple[str, ...], found: tuple[str, ...]
) -> None:
    assert devices._GPU_GLOBS[-1] == devices._WSL_GPU == "/dev/dxg"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_WSL_GPU", "/dev/null")
    monkeypatch.setattr(devices, "_GPU_GLOBS", ("/dev/null",))
    monkeypatch.setattr(devices, "_JAX_GPU_PLUGINS", plugins)
    assert find_hardware().gpus == found


def test_accelerator_that_jax_platforms_excludes_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for hardware in (_GPU, _TPU):
        choice = choose(TrainConfig(), replace(hardware, jax_on_cpu=True))
        assert choice.kind == "cpu" and "JAX_PLATFORMS" in choice.reason
    for platforms, stays in (("cpu", True), ("cpu,cuda", True), ("cuda,cpu", False), ("", False)):
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        assert find_hardware().jax_on_cpu == stays


def test_jax_may_use_the_cpu_beside_its_configured_accelerators() -> None:
    platforms, kind = run_on(
        "jax",
        """
        import json
        import jax
        from core.config import TrainConfig
        from core.errors import DeviceError
        from core.backends import devices, selection
        jax.config.update("jax_platforms", "cuda")
        devices._GPU_GLOBS, devices._JAX_GPU_PLUGINS = ("/dev/null",), ("jax",)
        try:
            selection.select_backend(TrainConfig(device="gpu"))
        except DeviceError:
            pass  # There is none.
        cpus = jax.local_devices(backend="cpu")
        print(json.dumps([jax.config.jax_platforms, cpus[0].platform]))
        """,
    )
    assert (platforms, kind) == ("cuda,cpu", "cpu")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told")
@pytest.mark.parametrize("own_settings", ["", "MALLOC_ARENA_MAX"])
def test_jax_on_cpu_keeps_freed_memory_unless_the_user_set_malloc_options(
    own_settings: str,
) -> None:
    code = """
        import ctypes, json, os, resource, sys
        from core.config import TrainConfig
        from core.backends.selection import select_backend
        if sys.argv[1]:
            os.environ[sys.argv[1]] = "8"
        select_backend(TrainConfig(shards="none", engine="jax", device="cpu"))
        libc, size = ctypes.CDLL(None), 256 << 20
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            place = libc.malloc(size)
            ctypes.memset(place, 1, size)
            libc.free(place)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        print(json.dumps(faults * resource.getpagesize() / size))
    """
    share_taken_anew = run_on("jax", code, own_settings)
    # With pages of 2 MiB there are few page faults in any case.
    assert share_taken_anew > 0.001 if own_settings else share_taken_anew < 0.1


def test_keras_on_another_backend_is_an_error() -> None:
    message = run_on(
        "jax",
        """
        import json, keras
        from core.config import TrainConfig
        from core.errors import DeviceError
        from core.backends.selection import select_backend
        try:
            select_backend(TrainConfig(engine="tensorflow", device="cpu"))
        except DeviceError as error:
            print(json.dumps(str(error)))
        """,
    )
    assert "already runs Keras on jax" in message and "set engine to 'jax'" in message


def test_description_names_backend_device_memory_and_reason() -> None:
    line = run_on(
        "tensorflow",
        """
        import json
        from core.config import TrainConfig
        from core.backends.selection import select_backend
        print(json.dumps(select_backend(TrainConfig(device="cpu")).describe()))
        """,
    )
    assert line.startswith("TensorFlow on 1 CPU") and "GB" in line and "requested" in line


def test_precision_is_measured_only_on_gpus_without_bfloat16_tensor_cores() -> None:
    made_for_it, other = run_on("jax", _PRECISION)
    assert made_for_it[0] == "mixed_bfloat16" and "tensor cores" in made_for_it[1]
    assert (other[0], made_for_it[2], other[2]) == ("float32", 0, 1)


class JaxRuntimeError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("processes", "error", "is_told"),
    [
        (2, JaxRuntimeError("UNAVAILABLE: Connection closed by peer"), True),
        (2, ValueError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"), True),
        (2, ValueError("UNKNOWN is no device"), False),
        (2, JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes"), False),
        (1, JaxRuntimeError("UNAVAILABLE: Connection closed by peer"), False),
    ],
)
def test_only_connection_errors_of_distributed_runs_are_reported_as_a_lost_process(
    processes: int, error: Exception, is_told: bool
) -> None:
    shared = Devices("jax", "cpu", processes, "a CPU", None, "asked for", processes)
    told = ProcessLostError if is_told else type(error)
    with pytest.raises(told, match=str(error)), reporting_lost_processes(shared):
        raise error
