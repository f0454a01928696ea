"""`python -m bench.spark.avro_libraries`: values of Avro to Arrow columns on one core, by library.

Installs the libraries that the lock does not have into `.cache`. polars and polars-avro read files: values of
one schema, one behind the other, are the block of one. cavro's objects are not made columns.
"""

from __future__ import annotations

import datetime
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pyruhvro

from bench.kafka import CACHE
from bench.machine import describe
from bench.spark.schema_values import SCHEMA, flight
from coterie.spark.values.avro import Avro

OTHERS = ("cavro==1.0.0", "polars==2.1.0", "polars-avro==0.13.0")
VALUES, ROUNDS = 30_000, 9
SYNC = bytes(16)


def main() -> None:
    """Measure each library, and print a table."""
    others = CACHE / "avro-libraries"
    if not (others / ".complete").exists():
        words = [sys.executable, "-m", "pip", "install", "-q", "--target", str(others), *OTHERS]
        subprocess.run(words, check=True)
        (others / ".complete").touch()
    sys.path.append(str(others))
    print(f"{datetime.date.today()}, {describe()['processor']}\n\n| library | million values/s |\n|---|---|")
    for name, work in libraries().items():
        took = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            work()
            took.append(time.perf_counter() - began)
        print(f"| {name} | {VALUES / statistics.median(took) / 1e6:.2f} |", flush=True)


def libraries() -> dict[str, Callable[[], Any]]:
    """Return what each library is to do."""
    import cavro
    import polars
    import polars_avro

    text, rng = json.dumps(SCHEMA), random.Random(1)
    parsed = fastavro.parse_schema(json.loads(text))
    values = [written(parsed, flight(number, rng)) for number in range(VALUES)]
    file, kind, objects = file_of(values, text), Avro.of(text).type, cavro.Schema(SCHEMA)
    return {
        f"fastavro {version('fastavro')}, value by value": lambda: pa.array(
            [fastavro.schemaless_reader(BytesIO(one), parsed, None) for one in values], kind
        ),
        "cavro 1.0.0, value by value": lambda: [objects.binary_decode(one) for one in values],
        "polars 2.1.0, as a file": lambda: polars.read_avro(BytesIO(file)).to_arrow(),
        "polars-avro 0.13.0, as a file": lambda: polars_avro.read_avro(BytesIO(file)).to_arrow(),
        f"pyruhvro {version('pyruhvro')}": lambda: pyruhvro.deserialize_array(values, text),
    }


def written(schema: Any, value: dict[str, Any]) -> bytes:
    """Return a value's bytes."""
    body = BytesIO()
    fastavro.schemaless_writer(body, schema, value)
    return body.getvalue()


def file_of(values: list[bytes], schema: str) -> bytes:
    """Return a container file with the values in one block."""
    body, named = b"".join(values), {"avro.schema": schema, "avro.codec": "null"}
    meta = b"".join(long(len(one)) + one.encode() for pair in named.items() for one in pair)
    return b"Obj\1" + long(2) + meta + long(0) + SYNC + long(len(values)) + long(len(body)) + body + SYNC


def long(number: int) -> bytes:
    """Return a number that is not negative as Avro writes it."""
    left, made = number << 1, bytearray()
    while left > 0x7F:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*made, left])


if __name__ == "__main__":
    main()
