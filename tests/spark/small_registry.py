"""A small schema registry over HTTP: what Confluent's answers to who asks for a schema."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import fastavro

USER = "reader:its password"


class SmallRegistry:
    """Schemas, each with an id of its own, and the versions of subjects."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        """The paths that were asked for."""
        self.away = False
        """Whether who asks is answered 503."""
        self.closed = False
        """Whether only `USER` may ask."""
        self.before: dict[str, Any] | None = None
        """What something before the registry says instead, with 404."""
        self.url = ""

    def register(self, subject: str, schema: Any, **more: Any) -> int:
        """Register a schema as the next version of a subject; return its id."""
        schema_id = 100 + len(self.schemas)
        self.schemas[schema_id] = {"schema": json.dumps(schema), **more}
        self.subjects.setdefault(subject, []).append(schema_id)
        return schema_id

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, Any] | str]:
        """Return the status and what is said: an object, or a text that is cut off or none."""
        self.asked.append(path)
        if self.away:
            return 503, {"error_code": 50003, "message": "away"}
        if self.before is not None:
            return 404, self.before
        if self.closed and authorization != f"Basic {base64.b64encode(USER.encode()).decode()}":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        match path.split("/")[1:]:
            case ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, self.schemas[int(number)]
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                versions = self.subjects[subject]
                place = len(versions) if version == "latest" else int(version)
                if place <= len(versions):
                    schema_id = versions[place - 1]
                    where = {"subject": subject, "version": place, "id": schema_id}
                    return 200, {**where, **self.schemas[schema_id]}
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def running_registry() -> Iterator[SmallRegistry]:
    """A registry that answers within the block."""
    registry = SmallRegistry()

    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, said = registry.answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write((said if isinstance(said, str) else json.dumps(said)).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def written(schema_id: int, schema: Any, value: Any) -> bytes:
    """Return a value in the wire format."""
    body = BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
    body.seek(5)
    fastavro.schemaless_writer(body, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return body.getvalue()
