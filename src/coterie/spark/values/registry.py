"""Schemas of a registry, by id and by subject: Confluent's server, or a file. What an id names never changes,
so it is kept on disk for all processes of the user, and read there while the registry is away.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen

from coterie.arrow.folders import own_folder
from coterie.base.errors import CoterieError
from coterie.spark.values.unknown_ids import QuestionAllowance, UnknownIds

ANSWER_S = 10.0
CONFIRMED_WITHIN_S, LEFT_ALONE_S = 2.0, 60.0
"""So long is waited to hear that a schema is still the one, and so long not asked again if nobody answers."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
MOST_BYTES = 16 << 20
MOST_REFERENCES = 16
"""How deep schemas may refer to each other: deeper are those that refer to themselves."""
LATEST = "latest"

log = logging.getLogger("coterie.spark")


class UnknownSchema(CoterieError):
    """The registry has no schema by this id, subject or version: it says so itself."""


class RegistryRefused(CoterieError):
    """The registry does not let us ask, or answers with what is no schema. Check its address and the user."""


class RegistryAway(CoterieError):
    """The registry did not answer for as long as a task waits for records (kafkaConsumer.pollTimeoutMs)."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as the registry has it."""

    text: str
    kind: str = "AVRO"
    """AVRO, PROTOBUF or JSON."""
    references: tuple[tuple[str, str], ...] = ()
    """The names and texts of the schemas that it refers to, first things first."""
    id: int = -1

    def to_json(self) -> dict[str, Any]:
        """Return the schema as it is kept on disk."""
        return {"schema": self.text, "schemaType": self.kind, "references": self.references, "id": self.id}

    @classmethod
    def of_json(cls, kept: Mapping[str, Any]) -> Schema:
        """Return the schema that was kept on disk; raises KeyError, TypeError or ValueError for others."""
        references = tuple((str(name), str(text)) for name, text in kept["references"])
        return cls(str(kept["schema"]), str(kept["schemaType"]), references, int(kept["id"]))


@dataclass(frozen=True, slots=True)
class Registry:
    """Where a registry is and who asks it; goes to executors with the tasks."""

    urls: tuple[str, ...]
    """`http(s)://` of its servers, one of which is asked, or one `file:` that has all schemas."""
    user_info: str = field(default="", repr=False)
    """`name:password`."""
    token: str = field(default="", repr=False)
    ca_location: str = ""
    """The file of the authorities to trust (PEM); nothing: those of the system."""

    @property
    def is_file(self) -> bool:
        """Whether this is a file and no server."""
        return self.urls[0].startswith("file:")


class Schemas:
    """What a registry has, as far as it was asked; one for all tasks of a process."""

    def __init__(self, registry: Registry, folder: Path | None = None) -> None:
        self.registry = registry
        self._known: dict[int, Schema] = {}
        self._folder = folder or kept_folder(registry)
        self._unknown = UnknownIds(self._folder)
        self._questions = QuestionAllowance()
        self._left_alone_until_s = 0.0
        """Until then what is kept is taken as it is: the registry did not answer."""
        self._tls: ssl.SSLContext | None = None

    def by_id(self, schema_id: int, *, wait_s: float) -> Schema:
        """Return the schema of an id: kept, and still that of the registry if it answers; or asked for, again
        and again for so long.

        Raises UnknownSchema, RegistryRefused or RegistryAway.
        """
        if schema_id in self._known:
            return self._known[schema_id]
        kept = self._kept(str(schema_id))
        found = self._new(schema_id, wait_s) if kept is None else self._confirmed(kept)
        self._known[schema_id] = found
        return found

    def _new(self, schema_id: int, wait_s: float) -> Schema:
        """Return the schema of an id that is not kept here."""
        said = self._unknown.said_of(schema_id)
        if said is not None:
            raise UnknownSchema(said)
        self._questions.take()
        try:
            found = self._asked_until(schema_id, time.monotonic() + wait_s)
        except UnknownSchema as error:
            self._unknown.add(schema_id, str(error))
            raise
        self._keep(found, str(schema_id))
        return found

    def _confirmed(self, kept: Schema) -> Schema:
        """Return a schema that is kept here as the registry has it now, if it says anything: one that was
        made anew has other schemas by the same ids.
        """
        if time.monotonic() < self._left_alone_until_s:
            return kept
        try:
            found = self._schema_of(self._get(f"/schemas/ids/{kept.id}", CONFIRMED_WITHIN_S), kept.id)
        except UnknownSchema:  # it was deleted, and records that it wrote are still there
            return kept
        except (OSError, RegistryRefused):
            self._left_alone_until_s = time.monotonic() + LEFT_ALONE_S
            return kept
        if found != kept:
            log.warning(
                "schema %s of %s is another than the one that was kept in %s, which is emptied: has the"
                " registry been made anew? Values of the old one are read wrongly, or not at all",
                kept.id, self._where, self._folder,
            )  # fmt: skip
            self._forget_kept()
            self._keep(found, str(kept.id))
        return found

    def _forget_kept(self) -> None:
        """Remove all that is kept on disk of this registry."""
        for one in () if self._folder is None else self._folder.iterdir():
            with suppress(OSError):
                one.unlink()

    def latest(self, subject: str, version: str = LATEST) -> Schema:
        """Return a version of a subject; while nobody answers the one of the last time, if that is kept.

        Raises UnknownSchema, RegistryRefused, or OSError if nobody answers.
        """
        name = "subject-" + hashlib.sha256(f"{subject} {version}".encode()).hexdigest()[:32]
        try:
            answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}")
        except OSError as error:
            kept = self._kept(name)
            if kept is None:
                raise
            log.warning("schema %s of %s is that of the last time: %s", kept.id, subject, error)
            return kept
        found = self._schema_of(answer, int(answer.get("id", -1)))
        for one in (name, str(found.id)):
            self._keep(found, one)
        return found

    def _asked_until(self, schema_id: int, until: float) -> Schema:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return self._schema_of(self._get(f"/schemas/ids/{schema_id}"), schema_id)
            except OSError as error:
                if time.monotonic() + pause_s > until:
                    raise RegistryAway(f"schema {schema_id} is not kept here, and {error}") from error
                log.warning("schema %s is not kept here, and is asked for again: %s", schema_id, error)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _schema_of(self, answer: Mapping[str, Any], schema_id: int) -> Schema:
        try:
            references = tuple(dict(self._references(answer, MOST_REFERENCES)).items())
            return Schema(str(answer["schema"]), answer.get("schemaType") or "AVRO", references, schema_id)
        except (KeyError, TypeError, AttributeError) as error:
            raise RegistryRefused(f"{self._where} answers with what is no schema: {error!r}") from error

    def _references(self, answer: Mapping[str, Any], deep: int) -> Iterator[tuple[str, str]]:
        """Yield the names and texts of what a schema refers to, each behind what it refers to itself."""
        for one in answer.get("references") or ():
            if not deep:
                raise RegistryRefused(f"{self._where} has schemas that refer to each other without an end")
            found = self._get(f"/subjects/{quote(one['subject'], safe='')}/versions/{one['version']}")
            yield from self._references(found, deep - 1)
            yield one["name"], found["schema"]

    @property
    def _where(self) -> str:
        return f"the schema registry {', '.join(self.registry.urls)}"

    def _get(self, path: str, within_s: float = ANSWER_S) -> dict[str, Any]:
        """Return an answer of the first server that has one. Raises UnknownSchema if all that answer have
        nothing there: one may be behind the others; OSError where none answers.
        """
        if self.registry.is_file:
            return of_file(self.registry.urls[0], path)
        tried, unknown = [], None
        for url in self.registry.urls:
            try:
                return self._asked(url.rstrip("/") + path, within_s)
            except OSError as error:
                tried.append(f"{url}: {getattr(error, 'reason', error)}")
            except UnknownSchema as error:
                unknown = error
        if unknown is not None:
            raise unknown
        raise OSError(f"no schema registry answers ({'; '.join(tried)})")

    def _asked(self, url: str, within_s: float) -> dict[str, Any]:
        asked = Request(url, headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"})
        authorization = ""
        if self.registry.user_info:
            shown = base64.b64encode(self.registry.user_info.encode()).decode()
            authorization = f"Basic {shown}"
        elif self.registry.token:
            authorization = f"Bearer {self.registry.token}"
        if authorization:  # to nobody whom the registry names
            asked.add_unredirected_header("Authorization", authorization)
        if self._tls is None and url.startswith("https:"):
            self._tls = ssl.create_default_context(cafile=self.registry.ca_location or None)
        try:
            with urlopen(asked, timeout=within_s, context=self._tls) as answer:
                body = answer.read(MOST_BYTES)
        except HTTPError as error:
            with error:
                refuse(error.code, error.read(MOST_BYTES), url)
            raise OSError(f"it answered {error.code}") from None
        except HTTPException as error:  # no HTTP, or an answer that was cut off
            raise OSError(f"its answer is none: {error!r}") from error
        return object_of(body, url)

    def _kept(self, name: str) -> Schema | None:
        """Return the schema that is kept on disk by a name; None where none is, or not what was put there."""
        if self._folder is None:
            return None
        try:
            return Schema.of_json(json.loads((self._folder / f"{name}.json").read_text("utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep(self, schema: Schema, name: str) -> None:
        if self._folder is None:
            return
        made = self._folder / f".{name}-{os.getpid()}"
        try:
            made.write_text(json.dumps(schema.to_json()), "utf-8")
            made.replace(self._folder / f"{name}.json")
        except OSError as error:  # a full or read-only disk costs another question, and nothing else
            log.info("schema %s is not kept: %s", schema.id, error)


@lru_cache(maxsize=16)
def schemas_of(registry: Registry) -> Schemas:
    """Return the schemas of a registry as far as this process knows them."""
    return Schemas(registry)


def kept_folder(registry: Registry) -> Path | None:
    """Return the folder where a registry's schemas are kept on this machine; None where they are not."""
    if registry.is_file or not hasattr(os, "getuid"):
        return None
    parent = Path(tempfile.gettempdir()) / f"coterie-schemas-{os.getuid()}"
    folder = parent / hashlib.sha256("\n".join(registry.urls).encode()).hexdigest()[:32]
    try:
        return folder if own_folder(parent) and own_folder(folder) else None
    except OSError:
        return None


def object_of(body: bytes, url: str) -> dict[str, Any]:
    """Return the JSON object that a server has answered with; raises OSError for one that was cut off, and
    RegistryRefused for anything else.
    """
    try:
        found = json.loads(body)
    except ValueError as error:
        if len(body) < MOST_BYTES and (not body or body.lstrip().startswith(b"{")):
            raise OSError(f"its answer ends after {len(body)} bytes, in the middle") from error
        found = None
    if not isinstance(found, dict):
        raise RegistryRefused(f"{url} answers with no JSON object: is a schema registry there?")
    return found


def refuse(status: int, body: bytes, url: str) -> None:
    """Raise UnknownSchema or RegistryRefused for an answer that is the registry's last word."""
    if status >= 500 or status in (408, 429):
        return
    code: Any = None
    try:
        answer = json.loads(body)
        said, code = str(answer["message"]), answer.get("error_code")
    except (ValueError, KeyError, TypeError, AttributeError):
        said = body.decode(errors="replace").strip()[:200]
    if status == 404 and code in (None, 404):  # of what stands before the registry, and not its own word
        return
    if status == 404:
        raise UnknownSchema(f"{url}: {said or 'not found'}")
    hint = "; set schema.registry.basic.auth.user.info" if status in (401, 403) else ""
    raise RegistryRefused(f"{url} refused with {status}: {said}{hint}")


def of_file(url: str, path: str) -> dict[str, Any]:
    """Return the answer of a registry's server, of a file `{"subjects": {"flights-value": [{"id": 1, …}]}}`.

    The versions of a subject are counted from 1, in their order; `schema` may be JSON itself, not a text.
    """
    name = url.removeprefix("file:").removeprefix("//")
    try:
        subjects = json.loads(Path(name).read_text("utf-8"))["subjects"]
        every = {subject: [with_text(one) for one in versions] for subject, versions in subjects.items()}
        by_id = {one["id"]: one for versions in every.values() for one in versions}
    except OSError as error:
        raise OSError(f"{name} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RegistryRefused(f'{name} is no file like {{"subjects": {{…}}}}: {error!r}') from error
    match [unquote(part) for part in path.split("/")[1:]]:
        case ["schemas", "ids", number] if int(number) in by_id:
            return by_id[int(number)]
        case ["subjects", subject, "versions", version] if versions := every.get(subject):
            place = len(versions) if version == LATEST else int(version)
            if 1 <= place <= len(versions):
                return versions[place - 1]
    raise UnknownSchema(f"{name} has nothing at {path}")


def with_text(one: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of a file with its text."""
    schema = one["schema"]
    return {**one, "schema": schema if isinstance(schema, str) else json.dumps(schema), "id": int(one["id"])}
