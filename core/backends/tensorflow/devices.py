"""Starts TensorFlow on its devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.backends.devices import (
    LOCAL_TPU,
    Choice,
    Devices,
    Hardware,
    cpu_name,
    describe_unused,
    first_line,
    host_memory_bytes,
    is_multi_process,
    not_started,
    number_to_use,
    why_cpu,
)
from core.backends.imports import import_for
from core.backends.jax.devices import join_processes_on_cpu
from core.config.train import TrainConfig
from core.errors import DeviceError


def resolver_arguments(config: TrainConfig) -> dict[str, str | None]:
    """Returns `TPUClusterResolver`'s arguments."""
    return {
        "tpu": config.tpu_name,
        "zone": config.tpu_zone or None,
        "project": config.gcp_project or None,
    }


def start(choice: Choice, config: TrainConfig, hardware: Hardware) -> Devices:
    """Starts the chosen kind of device; the CPU if TensorFlow can't use a GPU that it may use.

    JAX connects several processes: TensorFlow's own servers let anyone who reaches them run code.
    """
    devices = _start_alone(choice, config, hardware)
    if not is_multi_process(config):
        return devices
    processes, process = join_processes_on_cpu(choice, config)
    return replace(devices, count=devices.count * processes, processes=processes, process=process)


def _start_alone(choice: Choice, config: TrainConfig, hardware: Hardware) -> Devices:
    if choice.kind == "tpu":
        return _start_on_tpu(choice, config)
    if choice.kind == "gpu" and config.device == "auto" and not _list_gpus(import_tensorflow()):
        choice = Choice("tensorflow", "cpu", why_cpu(config, hardware))
    if choice.kind == "cpu":
        return _start_on_cpu(choice, config, hide_gpus=bool(hardware.gpus))
    return _start_on_gpu(choice, config)


def _start_on_tpu(choice: Choice, config: TrainConfig) -> Devices:
    tf = import_tensorflow()
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(**resolver_arguments(config))
        if config.tpu_name != LOCAL_TPU:
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except Exception as error:
        raise not_started(choice, first_line(error)) from error
    if config.num_devices not in (None, strategy.num_replicas_in_sync):
        raise DeviceError(
            "TensorFlow always uses all cores of a TPU",
            expected=f"⟬num_devices={strategy.num_replicas_in_sync}⟭, or no ⟬num_devices⟭",
            received=f"⟬num_devices={config.num_devices}⟭",
            fix="leave ⟬num_devices⟭ empty, or set ⟬engine⟭ to jax",
            field="num_devices",
        )
    return Devices(
        engine="tensorflow",
        kind="tpu",
        count=strategy.num_replicas_in_sync,
        name=config.tpu_name,
        memory_bytes=None,
        reason=choice.reason,
        strategy=strategy,
    )


def _start_on_gpu(choice: Choice, config: TrainConfig) -> Devices:
    tf = import_tensorflow()
    gpus = _list_gpus(tf)
    if not gpus:
        raise not_started(choice, "TensorFlow found no GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    details = tf.config.experimental.get_device_details(gpus[0])
    used = number_to_use(choice, config, len(gpus))
    return Devices(
        engine="tensorflow",
        kind="gpu",
        count=used,
        name=details.get("device_name", "GPU"),
        memory_bytes=None,
        reason=choice.reason + describe_unused(len(gpus) - used),
        strategy=_mirrored(tf, "GPU", used),
    )


def _list_gpus(tf: Any) -> list[Any]:
    """Lists the GPUs that TensorFlow can use: none, unless built for them."""
    return list(tf.config.list_physical_devices("GPU"))


def _start_on_cpu(choice: Choice, config: TrainConfig, *, hide_gpus: bool) -> Devices:
    tf = import_tensorflow()
    used = config.num_devices or 1
    try:
        if hide_gpus:
            tf.config.set_visible_devices([], "GPU")
        if used > 1:
            parts = [tf.config.LogicalDeviceConfiguration() for _ in range(used)]
            tf.config.set_logical_device_configuration(
                tf.config.list_physical_devices("CPU")[0], parts
            )
    except RuntimeError as error:
        raise not_started(choice, str(error)) from error
    return Devices(
        engine="tensorflow",
        kind="cpu",
        count=used,
        name=cpu_name(),
        memory_bytes=host_memory_bytes("cpu"),
        reason=choice.reason,
        strategy=_mirrored(tf, "CPU", used),
    )


def _mirrored(tf: Any, kind: str, count: int) -> Any:
    if count == 1:
        return None
    return tf.distribute.MirroredStrategy([f"{kind}:{number}" for number in range(count)])


def import_tensorflow() -> Any:
    return import_for("tensorflow", "tensorflow")
