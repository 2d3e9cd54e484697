"""Test server for the part of Google Cloud Storage's JSON API that gcsfs uses.

gcsfs connects to the server that STORAGE_EMULATOR_HOST names. Requests to unsupported routes are
recorded in `unknown_requests`, which tests expect to be empty.

Source: https://cloud.google.com/storage/docs/json_api/v1
"""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
import time
from datetime import UTC, datetime
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

BUCKET = "bucket"
_PAGE_SIZE = 1000


class _Objects(dict[str, bytes]):
    """Contents by key; each assignment gives the key a newer generation.

    Attributes:
        generations: By key: microseconds since 1970, distinct and increasing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generations: dict[str, int] = {}
        self._newest = 0

    def __setitem__(self, key: str, content: bytes) -> None:
        self._newest = max(self._newest + 1, time.time_ns() // 1000)
        self.generations[key] = self._newest
        super().__setitem__(key, content)


class QuietServer(ThreadingHTTPServer):
    """Doesn't report clients that hang up: tests kill them."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


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
        lock: Held while an object is checked and written.
    """

    def __init__(self, handler: type[BucketHandler] | None = None) -> None:
        self.files = _Objects()
        self.lock = threading.RLock()
        self.requests: list[str] = []
        self.unknown_requests: list[str] = []
        self.refused: set[str] = set()
        self.read_only = False
        self.spoiled: set[str] = set()
        self.uploads: dict[str, tuple[str, bytearray, dict[str, str]]] = {}
        bound = type("Handler", (handler or BucketHandler,), {"bucket": self})
        self._server = QuietServer(("127.0.0.1", 0), bound)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()

    def store(self, key: str, content: bytes) -> None:
        """Stores a file, corrupted if its key is in `spoiled`."""
        self.files[key] = content[:-1] + b"?" if key in self.spoiled else content

    def generation(self, key: str) -> str:
        """Returns an object's generation; 0 if there is no such object."""
        return str(self.files.generations[key] if key in self.files else 0)

    def describe(self, key: str) -> dict[str, Any]:
        """Builds the metadata of a file."""
        content = self.files[key]
        written = datetime.fromtimestamp(self.files.generations[key] / 1e6, UTC)
        updated = written.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {
            "kind": "storage#object",
            "name": key,
            "bucket": BUCKET,
            "size": str(len(content)),
            "md5Hash": base64.b64encode(md5(content).digest()).decode(),
            "generation": self.generation(key),
            "metageneration": "1",
            "updated": updated,
            "timeCreated": updated,
        }


class BucketHandler(BaseHTTPRequestHandler):
    """Answers the requests for objects of one server."""

    bucket: BucketServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, query = self._asked()
        if path == f"/storage/v1/b/{BUCKET}/o":
            self._list(query)
        elif key := self._key(path, r"(?:/download)?/storage/v1"):
            media = query.get("alt") == "media" or path.startswith("/download")
            self._send(key, query, media)
        else:
            self._answer_unknown(path)

    def do_POST(self) -> None:
        path, query = self._asked()
        body = self._body()
        kind = query.get("uploadType")
        if path != f"/upload/storage/v1/b/{BUCKET}/o":
            self._answer_unknown(path)
        elif "upload_id" in query:
            self._continue_upload(query["upload_id"], body)
        elif kind == "resumable":
            self._begin_upload(query.get("name") or json.loads(body)["name"], query)
        elif kind == "media":
            self._store(query["name"], body, query)
        else:
            self._store(*_multipart(body), query)

    def do_PUT(self) -> None:
        path, query = self._asked()
        body = self._body()
        if path == f"/upload/storage/v1/b/{BUCKET}/o" and "upload_id" in query:
            self._continue_upload(query["upload_id"], body)
        else:
            self._answer_unknown(path)

    def do_DELETE(self) -> None:
        path, query = self._asked()
        if "upload_id" in query:
            self.bucket.uploads.pop(query["upload_id"], None)
            self._answer(499)
            return
        key = self._key(path, "/storage/v1")
        with self.bucket.lock:
            if key not in self.bucket.files:
                self._answer_missing()
            elif not self._matches(key, query):
                self._answer_conflict()
            else:
                del self.bucket.files[key]
                self._answer(204)

    def log_message(self, format: str, *arguments: object) -> None:
        """Suppresses the request log."""

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        self.bucket.requests.append(f"{self.command} {parts.path}")
        return parts.path, {name: values[-1] for name, values in parse_qs(parts.query).items()}

    def _body(self) -> bytes:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if len(body) < size:
            raise ConnectionAbortedError("the client hung up within a request")
        return body

    def _key(self, path: str, root: str) -> str:
        match = re.fullmatch(rf"{root}/b/{BUCKET}/o/([^/]+)", path)
        return unquote(match[1]) if match else ""

    def _matches(self, key: str, query: dict[str, str]) -> bool:
        """Checks the precondition of a request."""
        return query.get("ifGenerationMatch") in (None, self.bucket.generation(key))

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        limit = min(int(query.get("maxResults", _PAGE_SIZE)), _PAGE_SIZE)
        with self.bucket.lock:
            is_folder = {}
            for key in self.bucket.files:
                folder, found, _ = key.removeprefix(prefix).partition(delimiter or "\0")
                if key.startswith(prefix):
                    is_folder[prefix + folder + found] = bool(found)
            after = base64.urlsafe_b64decode(query.get("pageToken", "")).decode()
            left = sorted(name for name in is_folder if name > after)
            page = left[:limit]
            folders = [name for name in page if is_folder[name]]
            items = [self.bucket.describe(name) for name in page if not is_folder[name]]
        answer = {"kind": "storage#objects", "items": items, "prefixes": folders}
        if left[limit:]:
            answer["nextPageToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
        self._answer_json(answer)

    def _send(self, key: str, query: dict[str, str], media: bool) -> None:
        with self.bucket.lock:
            content = self.bucket.files.get(key)
            generation = self.bucket.generation(key)
            description = {} if content is None else self.bucket.describe(key)
        # The answer is sent without the lock: a frozen client may never read it.
        if content is None or query.get("generation", generation) != generation:
            self._answer_missing()
        elif query.get("ifGenerationMatch", generation) != generation:
            self._answer_conflict()
        elif media:
            self._send_content(content)
        else:
            self._answer_json(description)

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

    def _begin_upload(self, key: str, query: dict[str, str]) -> None:
        if not self._matches(key, query):
            self._answer_conflict()
            return
        number = uuid4().hex
        self.bucket.uploads[number] = (key, bytearray(), query)
        location = f"{self.bucket.url}/upload/storage/v1/b/{BUCKET}/o?upload_id={number}"
        self._answer(200, headers={"Location": location})

    def _continue_upload(self, number: str, body: bytes) -> None:
        if number not in self.bucket.uploads:
            self._answer_missing()
            return
        key, content, query = self.bucket.uploads[number]
        given, _, total = self.headers["Content-Range"].removeprefix("bytes ").partition("/")
        start = len(content) if given == "*" else int(given.partition("-")[0])
        if start <= len(content):
            content[start:] = body
        if total.isdigit() and len(content) >= int(total):
            self._store(key, bytes(content), query)
        else:
            kept = {"Range": f"bytes=0-{len(content) - 1}"} if content else {}
            self._answer(308, headers=kept)

    def _store(self, key: str, content: bytes, query: dict[str, str]) -> None:
        if self.bucket.read_only or key in self.bucket.refused:
            self._answer(403, b'{"error": {"code": 403, "message": "no write access"}}')
            return
        with self.bucket.lock:
            if self._matches(key, query):
                self.bucket.store(key, content)
                self._answer_json(self.bucket.describe(key))
            else:
                self._answer_conflict()

    def _answer_missing(self) -> None:
        self._answer(404, b'{"error": {"code": 404, "message": "Not Found"}}')

    def _answer_conflict(self) -> None:
        message = "At least one of the pre-conditions you specified did not hold."
        self._answer_json({"error": {"code": 412, "message": message}}, 412)

    def _answer_unknown(self, path: str) -> None:
        self.bucket.unknown_requests.append(f"{self.command} {path}")
        self._answer(404, b'{"error": {"code": 404, "message": "unknown route"}}')

    def _answer_json(self, value: Any, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

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
    first, _, rest = body.partition(b"\n")
    boundary, end = first.rstrip(b"\r"), b"\r\n" if first.endswith(b"\r") else b"\n"
    metadata, _, content = rest.partition(end + boundary + end)
    name = json.loads(metadata.partition(2 * end)[2])["name"]
    return name, content.partition(2 * end)[2].rpartition(end + boundary + b"--")[0]
