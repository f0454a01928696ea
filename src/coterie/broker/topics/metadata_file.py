"""One JSON document that survives `kill -9`: the file holds the old document or the new one, whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from coterie.base.errors import CoterieError
from coterie.storage.disk import Disk

VERSION = 1


class UnreadableMetadata(CoterieError):
    """The file is there and cannot be understood; `str()` is the sentence for the user."""


class MetadataFile:
    """Where the document lies. Reads and writes it, and knows nothing of what it says."""

    def __init__(self, disk: Disk, directory: str, name: str) -> None:
        self._disk = disk
        self.path = f"{directory}/{name}"
        self._last: bytes | None = None

    def load(self) -> dict[str, Any] | None:
        """Return the document, None if there never was one. Raises `UnreadableMetadata`."""
        if not self._disk.exists(self.path):
            return None
        try:
            self._last = self._disk.load(self.path)
            document = json.loads(self._last)
        except (ValueError, OSError) as error:
            raise UnreadableMetadata(f"{self.path} cannot be read: {error}") from error
        if not isinstance(document, dict) or document.get("version") != VERSION:
            advice = "use the Coterie that wrote it, or another directory"
            raise UnreadableMetadata(f"{self.path} is not of version {VERSION}; {advice}")
        del document["version"]
        return document

    def save(self, document: Mapping[str, Any], topics: Iterable[str] | None = None) -> None:
        """Put the document in place of the last, with these topics if any, on disk before this returns.

        The topics are JSON texts already: there may be thousands, and one of them has changed. Raises
        OSError, after putting the last one back: what is refused must not come true at the next start.
        """
        head = json.dumps({"version": VERSION, **document}, indent=1)
        if topics is None:
            text = head.encode()
        else:
            lines = (head.removesuffix("\n}"), ',\n "topics": [\n  ', ",\n  ".join(topics), "\n ]\n}")
            text = "".join(lines).encode()
        try:
            self._disk.save(self.path, text, sync=True)
        except OSError:
            with suppress(OSError):
                self._put_back()
            raise
        self._last = text

    def _put_back(self) -> None:
        if self._last is None:
            self._disk.remove(self.path)
        else:
            self._disk.save(self.path, self._last, sync=True)
