"""A small S3 over HTTP, for the object store client that writes tables: objects in memory, or another's.
What that client asks of Google's store is the same, but for the condition's name.

It knows what that client asks: conditional PUT, GET with ranges, HEAD, lists, multipart uploads. It can lose
the answer to a PUT that has taken effect, or the object itself, and have troubles by chance, as a real one
may. It is a process of its own (`python small_s3.py [BEHIND [LISTEN]]`, both HOST:PORT), as that client keeps
Python's lock while it waits.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

CONTROL = "/-control"
# What may befall a request, and what is said then; who lost an answer hears nothing.
SLOW_DOWN = 503, {}, b"<Error><Code>SlowDown</Code></Error>"
CONFLICT = 409, {}, b"<Error><Code>ConditionalRequestConflict</Code></Error>"
INTERNAL = 500, {}, b"<Error><Code>InternalError</Code></Error>"
REFUSED = {"503": SLOW_DOWN, "409": CONFLICT}
Answer = tuple[int, dict[str, str], bytes]


class Server(ThreadingHTTPServer):
    """The server. What it is to do, and what it has done, is asked of it by its control path."""

    daemon_threads = True

    request_queue_size = 128

    def __init__(self, behind: str | None, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        super().__init__(listen, Requests)
        self.behind = behind
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.state: dict[str, Any] = {
            "lose_answer": None,  # a pattern: the next such PUT is answered 500 after its effect
            "refuse": None,  # a pattern: such PUTs are answered 503 until it is another
            "lose_object": None,  # a pattern: what such requests have made is gone at once
            "lost": [],
            "deleted": [],
            # How likely each is to befall a request: "500" after a PUT's effect, "503" without any, "409"
            # instead of a PUT with a condition, "silence" after the effect.
            "troubles": {},
            "befallen": {},
        }
        self._chance = random.Random(0)

    def trouble(self, command: str, *, conditional: bool) -> str | None:
        """Return what befalls the next request, if anything."""
        can = {"500": command == "PUT", "409": command == "PUT" and conditional}
        with self.lock:
            for kind, likely in self.state["troubles"].items():
                if self._chance.random() < likely and can.get(kind, True):
                    befallen = self.state["befallen"]
                    befallen[kind] = befallen.get(kind, 0) + 1
                    return str(kind)
        return None


class Requests(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def answer(self) -> None:
        """Answer one request."""
        body, state = self.body(), self.server.state
        if self.path == CONTROL:
            state.update(json.loads(body or b"{}"))
            status, headers, said = 200, {}, json.dumps(state).encode()
        else:
            trouble = self.server.trouble(self.command, conditional="if-none-match" in self.headers)
            if state["refuse"] and self.command == "PUT" and re.search(state["refuse"], self.path):
                trouble = "503"
            status, headers, said = REFUSED.get(trouble or "") or self.told(self.command, self.path, body)
            if trouble == "silence":
                self.close_connection = True
                return
            if trouble == "500":
                status, headers, said = INTERNAL
        if state["lose_object"] and re.search(state["lose_object"], f"{self.command} {self.path}"):
            self.told("DELETE", urlsplit(self.path).path, b"")
        lose = state["lose_answer"] if self.command == "PUT" and status == 200 else None
        if lose and re.search(lose, self.path):
            state["lost"].append(self.path)
            state["lose_answer"] = None
            status, headers, said = INTERNAL
        if self.command == "POST" and self.path.endswith("?delete"):
            state["deleted"] += keys_in(body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "content-length" not in headers:
            self.send_header("content-length", str(len(said)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(said)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

    def told(self, command: str, path: str, body: bytes) -> Answer:
        """What whoever keeps the objects answers."""
        return (
            self.own(command, path, body) if self.server.behind is None else self.other(command, path, body)
        )

    def body(self) -> bytes:
        if "chunked" not in (self.headers.get("transfer-encoding") or ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        read = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            read += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return read

    def other(self, command: str, path: str, body: bytes) -> Answer:
        """The answer of the server behind."""
        assert self.server.behind is not None
        there = http.client.HTTPConnection(self.server.behind)
        left_out = ("transfer-encoding", "content-length", "expect")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        there.request(command, path, body, {**headers, "content-length": str(len(body))})
        answer = there.getresponse()
        said = answer.read()
        hop = ("transfer-encoding", "connection") + (() if self.command == "HEAD" else ("content-length",))
        kept = {name.lower(): value for name, value in answer.getheaders() if name.lower() not in hop}
        there.close()
        return answer.status, kept, said

    def own(self, command: str, path: str, body: bytes) -> Answer:
        """Our own answer."""
        parts = urlsplit(path)
        key, asked = unquote(parts.path), {name: one[0] for name, one in parse_qs(parts.query, True).items()}
        with self.server.lock:
            if command in ("PUT", "POST"):
                return self.take(key, asked, body)
            if command == "DELETE":
                self.server.objects.pop(key, None)
                return 204, {}, b""
            if "list-type" in asked:
                return 200, {}, self.listed(key, asked)
            return self.give(key)

    def take(self, key: str, asked: dict[str, str], body: bytes) -> Answer:
        """What comes: an object, or a part of one."""
        uploads, tag = self.server.uploads, {"etag": '"1"'}
        if "delete" in asked:
            for name in keys_in(body):
                self.server.objects.pop(f"{key.rstrip('/')}/{name}", None)
            gone = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in keys_in(body))
            return 200, {}, f"<DeleteResult>{gone}</DeleteResult>".encode()
        if "uploads" in asked:
            name = uuid.uuid4().hex
            uploads[name] = {}
            made = (
                f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            )
            return 200, {}, made.encode()
        if "partNumber" in asked:
            uploads[asked["uploadId"]][int(asked["partNumber"])] = body
            return 200, tag, b""
        if "uploadId" in asked:
            parts = uploads.pop(asked["uploadId"], None)  # none: it is asked again, as the answer was lost
            if parts is not None:
                self.server.objects[key] = b"".join(part for _, part in sorted(parts.items()))
            done = "<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
            return 200, {}, done.encode()
        conditional = "*" in self.headers.get_all("if-none-match", ())
        if (
            conditional or self.headers.get("x-goog-if-generation-match") == "0"
        ) and key in self.server.objects:
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        self.server.objects[key] = body
        return 200, tag, b""

    def give(self, key: str) -> Answer:
        """An object, or a part of one."""
        found = self.server.objects.get(key)
        if found is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        headers = {"etag": '"1"', "last-modified": formatdate(usegmt=True), "content-length": str(len(found))}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("range") or "")
        if wanted is None:
            return 200, headers, found
        first = int(wanted[1]) if wanted[1] else len(found) - int(wanted[2])
        last = min(int(wanted[2]) if wanted[1] and wanted[2] else len(found) - 1, len(found) - 1)
        headers["content-range"] = f"bytes {first}-{last}/{len(found)}"
        headers["content-length"] = str(last - first + 1)
        return 206, headers, found[first : last + 1]

    def listed(self, bucket: str, asked: dict[str, str]) -> bytes:
        """The objects of a bucket behind a prefix."""
        start = bucket.rstrip("/") + "/"
        prefix, behind = asked.get("prefix", ""), asked.get("start-after", "")
        names = sorted(key.removeprefix(start) for key in self.server.objects if key.startswith(start))
        names = [name for name in names if name.startswith(prefix) and name > behind]
        folders: set[str] = set()
        if asked.get("delimiter"):
            deeper = [name for name in names if "/" in name[len(prefix) :]]
            folders = {prefix + name[len(prefix) :].partition("/")[0] + "/" for name in deeper}
            names = [name for name in names if name not in deeper]
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self.server.objects[start + name])}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>1</ETag></Contents>"
            for name in names
        ) + "".join(
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def keys_in(body: bytes) -> list[str]:
    """Return what a request names that deletes several objects."""
    return [unescape(name) for name in re.findall("<Key>(.*?)</Key>", body.decode())]


@dataclass(frozen=True)
class SmallS3:
    """A running server, seen from the tests."""

    address: str

    @property
    def options(self) -> dict[str, str]:
        """What a table's storage_options say."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "hush",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def google_options(self) -> dict[str, str]:
        """The same, for a table in Google's store."""
        account = {"gcs_base_url": f"http://{self.address}", "disable_oauth": True}
        account |= {"client_email": "", "private_key": "", "private_key_id": ""}
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), "ALLOW_HTTP": "true"}

    def asked(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """Return what the server answers."""
        server = http.client.HTTPConnection(self.address)
        server.request(method, path, body, headers)
        said = server.getresponse().read()
        server.close()
        return said

    def control(self, **wanted: Any) -> dict[str, Any]:
        """Tell the server what to do; return what it has done."""
        state: dict[str, Any] = json.loads(self.asked("POST", CONTROL, json.dumps(wanted).encode()))
        return state


@contextmanager
def small_s3(behind: str | None = None) -> Iterator[SmallS3]:
    """A running server; `behind`, HOST:PORT, is another one that keeps the objects."""
    command = [sys.executable, str(Path(__file__)), *([behind] if behind else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield SmallS3(f"127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()


if __name__ == "__main__":
    behind, _, place = " ".join(sys.argv[1:]).partition(" ")
    host, _, port = place.rpartition(":")
    server = Server(behind or None, (host, int(port)) if place else ("127.0.0.1", 0))
    print(server.server_address[1], flush=True)
    server.serve_forever()
