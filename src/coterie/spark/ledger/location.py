"""Where a ledger's table is, and its one store: log and files are reached by the same library and options."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from coterie.client.errors import MissingLibrary
from coterie.spark.ledger.tables import LedgerError

OLDEST = (1, 6)
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
# What deltalake opens by itself, that several processes can see.
STORES = {"s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "hdfs"}
WAYS = {
    "wasb": "Azure takes that name no more: give abfss://{container}@{account}.dfs.core.windows.net{path}",
    "dbfs": "give the storage that lies behind it, such as s3://…, abfss://… or gs://…",
    "s3n": "give s3a://{rest}",
    "memory": "every process has a memory of its own",
}
UNSAFE = ("allow_unsafe_rename", "mount_allow_unsafe_rename", "aws_s3_allow_unsafe_rename")


def deltalake() -> Any:
    """Return the library, or raise MissingLibrary with what to install."""
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.fs
        import deltalake.transaction
    except ImportError as error:
        raise MissingLibrary("the ledger needs deltalake: pip install 'coterie[delta]'") from error
    major, minor = deltalake.__version__.split(".")[:2]
    if (int(major), int(minor)) < OLDEST:
        raise MissingLibrary(
            f"the ledger needs deltalake {'.'.join(map(str, OLDEST))} or newer, and this is"
            f" {deltalake.__version__}, which does not find what a commit notes of the account: pip install"
            " 'coterie[delta]'"
        )
    return deltalake


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """Where a table is. It travels to the tasks, so it holds no connection."""

    uri: str
    """A URL of an object store, or an absolute path."""
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, table: str, storage_options: Mapping[str, str] | None = None) -> "TableLocation":
        """Return the place of a table as users name it, or raise LedgerError with what to name instead."""
        options = {name: str(value) for name, value in (storage_options or {}).items()}
        place = cls(uri=located(os.fspath(table)), storage_options=tuple(options.items()))
        refuse_unsafe(place)
        return place

    @property
    def local(self) -> bool:
        """Whether it is a folder of this machine, or one that looks so."""
        return "://" not in self.uri

    def overlaps(self, other: "TableLocation") -> bool:
        """Return whether two tables are one, or one lies in the folder of the other."""
        folders = [f"{one.uri.rstrip('/')}/".replace("s3a://", "s3://", 1) for one in (self, other)]
        return folders[0].startswith(folders[1]) or folders[1].startswith(folders[0])

    @property
    def options(self) -> dict[str, str] | None:
        """What the library is given."""
        return dict(self.storage_options) or None

    def make(self) -> None:
        """Make the folder, if it is one. Tasks do not: where they find none, it is not the same."""
        if not self.local:
            return
        try:
            os.makedirs(self.uri, exist_ok=True)
        except OSError as error:
            raise LedgerError(
                f"a table cannot be made at {self.uri}: {error.strerror}; it is a folder"
            ) from error

    def table(self) -> Any | None:
        """Return the table as it is now; None if there is none yet."""
        library = deltalake()
        try:
            return library.DeltaTable(self.uri, storage_options=self.options)
        except library.exceptions.TableNotFoundError:
            return None

    def store(self) -> fs.PyFileSystem:
        """Return the table's files by their names in the table."""
        if self.local and not os.path.isdir(self.uri):
            raise LedgerError(
                f"there is no folder {self.uri} on this machine: a table must lie where the driver and all"
                " executors see the same files. Give an object store's URL (s3a://…, abfss://…, gs://…), or"
                " a folder that is mounted everywhere"
            )
        return fs.PyFileSystem(deltalake().fs.DeltaStorageHandler(self.uri, self.options))


def located(table: str) -> str:
    """Return an absolute path, or a URL that the library opens."""
    found = SCHEME.match(table)
    if found is None:
        return os.path.abspath(table)
    scheme = found[1].lower()
    parts = urlsplit(table)
    if scheme == "file":
        return of_file(table, parts.netloc, unquote(parts.path))
    if scheme in STORES and parts.netloc:
        return table
    way = WAYS.get(scheme.removesuffix("s") if scheme.startswith("wasb") else scheme)
    if way is None:
        known = ", ".join(f"{one}://" for one in sorted(STORES))
        raise LedgerError(f"no table can be at {table}: known are paths, file:///, {known}")
    raise LedgerError(f"no table can be at {table}: {way.format(**named_parts(parts.netloc, parts.path))}")


def of_file(table: str, host: str, path: str) -> str:
    """Return the path in a file: URL."""
    if host not in ("", "localhost") or not path.startswith("/"):
        raise LedgerError(f"no table can be at {table}: a file: URL names an absolute path, file:///folder")
    return os.path.normpath(path)


def named_parts(host: str, path: str) -> dict[str, str]:
    """Return the parts of a URL that an explanation may name."""
    container, _, account = host.rpartition("@")
    return {
        "container": container or "CONTAINER",
        "account": account.partition(".")[0] or "ACCOUNT",
        "path": path,
        "rest": host + path,
    }


def refuse_unsafe(place: TableLocation) -> None:
    """Raise LedgerError if commits would not be atomic: two writers could overwrite each other's."""
    given = {name.lower(): value.lower() for name, value in (*os.environ.items(), *place.storage_options)}
    unsafe = [name for name in UNSAFE if given.get(name) in ("true", "1", "yes", "on", "y")]
    unsafe += [name for name in ("conditional_put", "aws_conditional_put") if given.get(name) == "disabled"]
    if unsafe and not place.local:
        raise LedgerError(
            f"{', '.join(unsafe)} lets writers overwrite each other's commits, and the account with them:"
            " leave it out (deltalake commits by conditional requests, which S3, Azure and Google have)"
        )
