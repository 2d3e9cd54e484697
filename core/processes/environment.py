"""Selects child processes' environment variables by allow list, to keep secrets out."""

from __future__ import annotations

import re
import site
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from core.messages.redaction import AUTH_VARIABLE, has_password
from core.processes import reporters

PASS_VARIABLE = "STUDIO_PASS_ENVIRONMENT"
TRUST_TOKENIZERS_VARIABLE = "STUDIO_TRUST_TOKENIZERS"

WEBHOOK_VARIABLE = "STUDIO_WEBHOOK_URL"
# The key of the one run that a machine executes from a mirror.
RUN_KEY_VARIABLE = "STUDIO_RUN_KEY"
# The demo's model.
MODEL_VARIABLE = "STUDIO_MODEL"
# The app's own, and those of reporters alone.
_WITHHELD = frozenset({AUTH_VARIABLE, "OAUTH_CLIENT_SECRET", WEBHOOK_VARIABLE, RUN_KEY_VARIABLE})

_SYSTEM = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "TMPDIR", "TEMP", "TMP",
    "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_NUMERIC", "LC_TIME",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV",
    "PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED",
    "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONNOUSERSITE", "PYTHONPYCACHEPREFIX", "PYTHONWARNINGS",
    "PYTHONFAULTHANDLER",
)  # fmt: skip
_THREADS_AND_MEMORY = (
    "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "OMP_PLACES", "OMP_DYNAMIC",
    "KMP_AFFINITY", "KMP_BLOCKTIME", "MKL_NUM_THREADS", "MKL_DYNAMIC", "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS", "RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM",
    "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC", "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_",
)  # fmt: skip
_BACKENDS = (
    "KERAS_BACKEND", "KERAS_HOME", "JAX_PLATFORMS", "JAX_PLATFORM_NAME", "JAX_ENABLE_X64",
    "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "XLA_FLAGS",
    "TF_XLA_FLAGS", "TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS",
)  # fmt: skip
# A demo's model process makes no Hub requests.
_FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME")
_ANONYMOUS = frozenset(
    (*_SYSTEM, *_THREADS_AND_MEMORY, *_BACKENDS, *_FOLDERS, TRUST_TOKENIZERS_VARIABLE)
)

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY")
_CERTIFICATES = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
_MODELS = frozenset(
    (
        *_PROXIES, *map(str.lower, _PROXIES), *_CERTIFICATES, "STUDIO_HOME", "STUDIO_ALLOWED_PATHS",
        "STUDIO_ALLOWED_HOSTS", "STUDIO_SHARED_WORKSPACE",
        PASS_VARIABLE, "TERM", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "SPACE_ID", "SYSTEM",
    )
)  # fmt: skip
_MODEL_PREFIXES = (
    "HF_", "HUGGING_FACE_", "HUGGINGFACE_", "HUGGINGFACEHUB_", "TRANSFORMERS_", "TOKENIZERS_",
    "KERAS_", "JAX_", "XLA_", "TF_", "TENSORFLOW_", "TORCH_", "PYTORCH_", "OPENVINO_", "OV_",
    "ONEDNN_", "DNNL_", "TBB_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_",
    "RAYON_", "ARROW_", "MALLOC_", "LC_", "LD_", "PYTHON", "XDG_", "CONDA_", "TPU_", "LIBTPU_",
    "PJRT_", "CLOUD_TPU_", "MEGASCALE_", "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NCCL_", "ROCM_",
    "ROCR_", "HIP_", "HSA_", "MIOPEN_", "RCCL_", "ONEAPI_", "SYCL_", "ZE_",
)  # fmt: skip
_RUNS = frozenset({"STORAGE_EMULATOR_HOST", "BOTO_CONFIG", "GCE_METADATA_HOST", "HOSTNAME"})
_RUN_PREFIXES = (
    "STUDIO_", "PG", "AWS_", "GOOGLE_", "GCLOUD_", "CLOUDSDK_", "GCS_", "GCSFS_", "AZURE_", "S3_",
    "FSSPEC_", "RAY_", "SKYPILOT_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "GLOO_",
)  # fmt: skip


def for_anonymous_users(environment: Mapping[str, str]) -> dict[str, str]:
    """Selects variables without secrets, also for readers of foreign files."""
    return {
        name: value
        for name, value in environment.items()
        if name in _ANONYMOUS and not has_password(value)
    }


def for_isolated_runs(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Selects variables of a foreign run: without secrets, logins of the user and the Hub.

    Args:
        home: An empty folder in place of the user's, which has their logins.
    """
    return {
        **{
            name: value
            for name, value in for_anonymous_users(environment).items()
            if name not in (*_FOLDERS, TRUST_TOKENIZERS_VARIABLE)
        },
        # Packages of the user's Python may lie in the other home.
        "PYTHONUSERBASE": site.getuserbase(),
        "HOME": str(home),
        "HF_HOME": str(home / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    }


def for_models(environment: Mapping[str, str]) -> dict[str, str]:
    return _selected(environment, _ANONYMOUS | _MODELS, _MODEL_PREFIXES)


def for_runs(environment: Mapping[str, str]) -> dict[str, str]:
    names = _ANONYMOUS | _MODELS | _RUNS
    return _selected(environment, names, (*_MODEL_PREFIXES, *_RUN_PREFIXES))


def for_supervisors(environment: Mapping[str, str]) -> dict[str, str]:
    """Selects variables for the worker, which starts the followers, and for supervisors."""
    prefixes = (*reporters.PREFIXES, WEBHOOK_VARIABLE, "KAGGLE_")
    return {**for_runs(environment), **_reporting(environment, prefixes)}


def for_reporters(environment: Mapping[str, str], service: str) -> dict[str, str]:
    """Selects variables for the process that reports to one service."""
    known = reporters.SERVICES.get(service)
    prefix = known.prefix if known else WEBHOOK_VARIABLE
    return {**for_runs(environment), **_reporting(environment, (prefix,))}


def _reporting(environment: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(prefixes)}


def for_parts(environment: Mapping[str, str], *, has_credentials: bool) -> dict[str, str]:
    """Selects variables for workers; credentials only if they use a bucket or the Hub."""
    return for_runs(environment) if has_credentials else for_anonymous_users(environment)


def _selected(
    environment: Mapping[str, str], names: frozenset[str], prefixes: tuple[str, ...]
) -> dict[str, str]:
    patterns = list(filter(None, re.split(r"[,\s]+", environment.get(PASS_VARIABLE, ""))))
    return {
        name: value
        for name, value in environment.items()
        if name not in _WITHHELD
        and (
            name in names
            or name.startswith(prefixes)
            or any(fnmatchcase(name, pattern) for pattern in patterns)
        )
    }
