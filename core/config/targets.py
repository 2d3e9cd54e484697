"""Kinds of targets: places where a run is executed on another machine.

Addresses, errors, help and the fields of the web app's form follow from these declarations. A pool
is the addresses of its members with spaces between them; each member executes one run at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from core.config.topologies import TOPOLOGIES


@dataclass(frozen=True)
class TargetField:
    """A part of an address that the form asks for; kinds may share one of the same name.

    Attributes:
        name: The parameter's name in the address; for the first field any name.
        without: The meaning of an address without the parameter, "1" or "0" of a check box.
    """

    name: str
    title: str
    help: str
    example: str = ""
    control: Literal["text", "menu", "box"] = "text"
    choices: tuple[str, ...] = ()
    chosen: str = ""
    is_required: bool = False
    without: str = ""


@dataclass(frozen=True)
class TargetKind:
    """A kind of target.

    Attributes:
        opener: Module and class of `core.targets.target.Target`, imported when it is needed.
        form: The address, for people.
        fields: The first one is what follows the scheme.
        is_host: Whether what follows the scheme is a host, and is not encoded.
        needs_bucket: Whether the mirror has to be in a bucket that the user names.
        is_billed: Whether a machine costs money until it is deleted.
        has_queue: Whether runs wait there for their turn, as many as are sent.
    """

    title: str
    opener: str
    form: str
    fields: tuple[TargetField, ...]
    is_host: bool = False
    needs_bucket: bool = False
    is_billed: bool = True
    has_queue: bool = False


_HOST = TargetField(
    "host", "Host", "As for the ssh command.", example="user@host:22", is_required=True
)
_PYTHON = TargetField("python", "Interpreter", "Empty: packages are installed there.")
_GPU = TargetField("gpu", "GPU", "Number of the only one to use; empty: all.", "0")
# The first one is that of an address without any.
NOTEBOOK_ACCELERATORS = ("any", "gpu", "tpu")
# Kaggle's client's names. It takes others for these if they are retired; the first one is none.
KAGGLE_ACCELERATORS = (
    "cpu", "TpuV5E8", "TpuV6E8", "NvidiaTeslaT4", "NvidiaTeslaT4Highmem", "NvidiaL4", "NvidiaL4X1",
    "NvidiaTeslaA100", "NvidiaH100", "NvidiaRtxPro6000",
)  # fmt: skip
_PREEMPTIBLE = "Cheaper; a preempted run continues on a new one."

TARGETS = {
    "ssh": TargetKind(
        "SSH machine",
        "core.targets.ssh_target:SshTarget",
        "ssh://[user@]host[:port]",
        (_HOST, _GPU, _PYTHON),
        is_host=True,
        is_billed=False,
    ),
    "slurm": TargetKind(
        "Slurm cluster",
        "core.targets.slurm_target:SlurmTarget",
        "slurm://[user@]login-host?partition=…&time=…",
        (
            _HOST,
            TargetField("partition", "Partition", "Empty: the default one."),
            TargetField("gres", "GPUs", "Of each node.", "gpu:1"),
            TargetField("time", "Time limit", "A longer run goes on in the next job.", "04:00:00"),
            TargetField("account", "Account", "If the cluster asks for one."),
            TargetField("nodes", "Nodes", "Machines that train together.", "1"),
            TargetField("module", "Modules", "Loaded first, such as one with Python."),
            TargetField(
                "folder", "Folder", "Shared by all nodes; empty: in your home.", "~/studio"
            ),
            _PYTHON,
        ),
        is_host=True,
        is_billed=False,
        has_queue=True,
    ),
    "hf": TargetKind(
        "Hugging Face Jobs",
        "core.targets.hf:JobsTarget",
        "hf://flavor",
        (
            TargetField(
                "flavor",
                "Flavour",
                "Kind of machine, with its price.",
                control="menu",
                is_required=True,
            ),
            TargetField("namespace", "Namespace", "Account that pays; empty: yours."),
        ),
    ),
    "tpu": TargetKind(
        "Cloud TPU",
        "core.targets.tpu:TpuTarget",
        "tpu://type?zone=…&project=…",
        (
            TargetField(
                "type",
                "TPU type",
                "And number of cores or chips.",
                control="menu",
                choices=tuple(TOPOLOGIES),
                chosen="v5e-8",
                is_required=True,
            ),
            TargetField(
                "zone", "Zone", "Has your quota for this type.", "us-west4-a", is_required=True
            ),
            TargetField("spot", "Spot", _PREEMPTIBLE, control="box", without="1"),
            TargetField("project", "Project", "Empty: that of your credentials."),
        ),
        needs_bucket=True,
    ),
    "sky": TargetKind(
        "Other cloud (SkyPilot)",
        "core.targets.sky:SkyTarget",
        "sky://resources",
        (
            TargetField(
                "resources", "Resources", "Accelerator and count.", "A100:1", is_required=True
            ),
            TargetField("cloud", "Cloud", "Such as gcp or aws; empty: the cheapest."),
            TargetField("use_spot", "Spot", _PREEMPTIBLE, control="box", without="0"),
        ),
        needs_bucket=True,
    ),
    "kaggle": TargetKind(
        "Kaggle",
        "core.targets.kaggle_target:KaggleTarget",
        "kaggle://accelerator",
        (
            TargetField(
                "shape",
                "Accelerator",
                "Your account decides which ones you may use.",
                control="menu",
                choices=KAGGLE_ACCELERATORS,
                chosen="TpuV5E8",
                is_required=True,
            ),
            TargetField("hours", "Hours", "Of a session, whose end a stop waits for.", "9"),
        ),
        is_billed=False,
    ),
    "notebook": TargetKind(
        "Notebook (Colab, Kaggle, Jupyter)",
        "core.targets.notebook_target:NotebookTarget",
        "notebook://accelerator",
        (
            TargetField(
                "accelerator",
                "Accelerator",
                "Without it, the notebook ends with an error.",
                control="menu",
                choices=NOTEBOOK_ACCELERATORS,
                chosen=NOTEBOOK_ACCELERATORS[0],
                is_required=True,
            ),
        ),
        needs_bucket=True,
        is_billed=False,
    ),
}

_ADDRESS = rf"({'|'.join(TARGETS)})://\S*"
PATTERN = rf"^$|^{_ADDRESS}( {_ADDRESS})*$"
_FORMS = [kind.form for kind in TARGETS.values()]
EXPECTED = f"{', '.join(_FORMS[:-1])} or {_FORMS[-1]}"


def members_of(target: str) -> list[str]:
    """Lists the addresses of a pool's members; of another target, its own."""
    return target.split()


def has_queue(target: str) -> bool:
    """Returns whether a target takes any number of runs, and executes them as it has room."""
    kinds = [TARGETS.get(urlsplit(address).scheme) for address in members_of(target)]
    return len(kinds) == 1 and kinds[0] is not None and kinds[0].has_queue


def place_of_target(target: str) -> str:
    """Returns the hosts, flavors or types in a target, without users: gpu-box?gpu=0, a100-large."""
    return ", ".join(_place_of(address) for address in members_of(target))


def _place_of(address: str) -> str:
    parts = urlsplit(address)
    gpus = parse_qs(parts.query).get("gpu", [])
    return "?gpu=".join([parts.netloc.rpartition("@")[2], *gpus[:1]])
