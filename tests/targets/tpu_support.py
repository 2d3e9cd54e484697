"""Signs a test in at the server that plays Google's side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.targets.tpu_server import TOKEN_PATH, TpuServer

PROJECT, ZONE = "my-project", "us-central1-a"


def sign_in(server: TpuServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets application default credentials, and the addresses of the API and of the bucket."""
    pytest.importorskip(
        "google.auth", reason="google-auth is missing: pip install -r requirements-cloud.txt"
    )
    values = {
        "GOOGLE_APPLICATION_CREDENTIALS": str(_write_key(server, folder)),
        "STUDIO_TPU_ENDPOINT": server.url,
        "STORAGE_EMULATOR_HOST": server.url,
        # The detection of zonal buckets goes past the emulator, to Google.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "NO_GCE_CHECK": "true",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def _write_key(server: TpuServer, folder: Path) -> Path:
    """Writes the key of a service account, whose tokens come from the server."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / "key.json"
    values = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key": key.decode(),
        "client_email": "me@my-project.iam.gserviceaccount.com",
        "token_uri": f"{server.url}{TOKEN_PATH}",
    }
    path.write_text(json.dumps(values), "utf-8")
    return path
