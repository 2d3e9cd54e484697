"""Test server for the part of Google Cloud Storage's JSON API that gcsfs uses.

gcsfs connects to the server that STORAGE_EMULATOR_HOST names. Requests to unsupported routes are
recorded in `unknown_requests`, which tests expect to be empty.

Source: https://cloud.google.com/storage/docs/json_api/v1
"""

from __future__ import annotations

import base64
import json
import re
import threading
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "bucket"


class BucketServer:
    """Serves one bucket on a free local port, until closed.

    Attributes:
        url: Value for STORAGE_EMULATOR_HOST.
        files: File contents by key.
        requests: Method and path of each request so far.
        unknown_requests: Requests to unsupported routes.
        refused: Keys whose uploads are answered with 403.
        read_only: Whether all uploads are answered with 403.
        spoiled: Keys whose content is corrupted when stored.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.unknown_requests: list[str] = []
        self.refused: set[str] = set()
        self.read_only = False
        self.spoiled: set[str] = set()
        self.uploads: dict[str, tuple[str, bytearray]] = {}
        handler = type("Handler", (_Handler,), {"bucket": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()

    def store(self, key: str, content: bytes) -> None:
        """Stores a file, corrupted if its key is in `spoiled`."""
        self.files[key] = content[:-1] + b"?" if key in self.spoiled else content

    def describe(self, key: str) -> dict[str, Any]:
        """Builds the metadata of a file."""
        content = self.files[key]
        return {
            "kind": "storage#object",
            "name": key,
            "bucket": BUCKET,
            "size": str(len(content)),
            "md5Hash": base64.b64encode(md5(content).digest()).decode(),
            "generation": "1",
            "updated": "2026-01-01T00:00:00.000Z",
            "timeCreated": "2026-01-01T00:00:00.000Z",
        }


class _Handler(BaseHTTPRequestHandler):
    bucket: BucketServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, query = self._asked()
        if path == f"/storage/v1/b/{BUCKET}/o":
            self._list(query)
        elif key := self._key(path, r"(?:/download)?/storage/v1"):
            self._send(key, media=query.get("alt") == "media" or path.startswith("/download"))
        else:
            self._answer_unknown(path)

    def do_POST(self) -> None:
        path, query = self._asked()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path != f"/upload/storage/v1/b/{BUCKET}/o":
            self._answer_unknown(path)
        elif "upload_id" in query:
            self._continue_upload(query["upload_id"], body)
        elif query.get("uploadType") == "resumable":
            self._begin_upload(json.loads(body)["name"])
        else:
            self._store(*_multipart(body))

    def do_DELETE(self) -> None:
        path, _ = self._asked()
        key = self._key(path, "/storage/v1")
        if key and self.bucket.files.pop(key, None) is not None:
            self._answer(204)
        else:
            self._answer_missing()

    def log_message(self, format: str, *arguments: object) -> None:
        """Suppresses the request log."""

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        self.bucket.requests.append(f"{self.command} {parts.path}")
        return parts.path, {name: values[-1] for name, values in parse_qs(parts.query).items()}

    def _key(self, path: str, root: str) -> str:
        match = re.fullmatch(rf"{root}/b/{BUCKET}/o/([^/]+)", path)
        return unquote(match[1]) if match else ""

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        keys = [key for key in sorted(self.bucket.files) if key.startswith(prefix)]
        items, folders = [], set()
        for key in keys:
            rest = key.removeprefix(prefix)
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                items.append(self.bucket.describe(key))
        self._answer_json({"items": items, "prefixes": sorted(folders)})

    def _send(self, key: str, media: bool) -> None:
        if key not in self.bucket.files:
            self._answer_missing()
        elif media:
            self._send_content(self.bucket.files[key])
        else:
            self._answer_json(self.bucket.describe(key))

    def _send_content(self, content: bytes) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            self._answer(200, content)
            return
        start = int(asked[1])
        end = min(int(asked[2] or len(content)), len(content) - 1)
        if start >= len(content):
            self._answer(416)
            return
        where = {"Content-Range": f"bytes {start}-{end}/{len(content)}"}
        self._answer(206, content[start : end + 1], where)

    def _begin_upload(self, key: str) -> None:
        number = str(len(self.bucket.uploads))
        self.bucket.uploads[number] = (key, bytearray())
        location = f"{self.bucket.url}/upload/storage/v1/b/{BUCKET}/o?upload_id={number}"
        self._answer(200, headers={"Location": location})

    def _continue_upload(self, number: str, body: bytes) -> None:
        key, content = self.bucket.uploads[number]
        content += body
        total = int(self.headers["Content-Range"].rpartition("/")[2])
        if len(content) < total:
            self._answer(308, headers={"Range": f"bytes=0-{len(content) - 1}"})
        else:
            self._store(key, bytes(content))

    def _store(self, key: str, content: bytes) -> None:
        if self.bucket.read_only or key in self.bucket.refused:
            self._answer(403, b'{"error": {"code": 403, "message": "no write access"}}')
            return
        self.bucket.store(key, content)
        self._answer_json(self.bucket.describe(key))

    def _answer_missing(self) -> None:
        self._answer(404, b'{"error": {"code": 404, "message": "Not Found"}}')

    def _answer_unknown(self, path: str) -> None:
        self.bucket.unknown_requests.append(f"{self.command} {path}")
        self._answer(404, b'{"error": {"code": 404, "message": "unknown route"}}')

    def _answer_json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(
        self, status: int, content: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _multipart(body: bytes) -> tuple[str, bytes]:
    """Parses the key and content of a multipart upload."""
    boundary, _, rest = body.partition(b"\n")
    metadata, _, content = rest.partition(b"\n" + boundary + b"\n")
    name = json.loads(metadata.partition(b"\n\n")[2])["name"]
    return name, content.partition(b"\n\n")[2].removesuffix(b"\n" + boundary + b"--")
