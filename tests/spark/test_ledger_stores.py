"""The ledger on the object stores of Google and of Azure, by options alone.

Google's is played by the small S3, whose API that client speaks but for the condition's name.
COTERIE_TEST_AZURE=HOST:PORT is Azurite (`interop/run.sh ledger_azure`), which has the emulator's account.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate

import pytest
from deltalake import DeltaTable

from coterie.spark.ledger.ledger import Ledger
from coterie.spark.ledger.outcome import Outcome

from .small_s3 import small_s3
from .test_ledger import rows

AZURITE = os.environ.get("COTERIE_TEST_AZURE")
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and the key that every emulator of Azure's store has."""
VERSION = "2021-08-06"


def written_and_read_back(table, options):
    """Two batches that overlap, then four writers at once; each record is there once."""
    ledger = Ledger(table, group="g", storage_options=options)

    assert ledger.append(rows((0, 0, 5))) == Outcome(5, 0, 0)
    assert ledger.append(rows((0, 2, 8))) == Outcome(3, 3, 0)

    def write(number):
        another = Ledger(table, group="g", storage_options=options)
        for first in (0, 3):
            another.append(rows((0, 8, 12), (1 + number, first, first + 5)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    found = DeltaTable(table, storage_options=options).to_pyarrow_table()
    return sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


EACH = [(0, offset) for offset in range(12)] + [(n, offset) for n in range(1, 5) for offset in range(8)]


def test_a_table_in_google_s_store_is_written_by_the_options_alone():
    """Without the condition of a PUT writers that race would overwrite each other's commits."""
    with small_s3() as store:
        assert written_and_read_back("gs://bucket/tables/delays", store.google_options) == EACH


def make_container(address):
    """Make the container of the tests; it may be there."""
    date = formatdate(usegmt=True)
    signed = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{VERSION}\n"
    signed += f"/{ACCOUNT}/{ACCOUNT}/box\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    server = http.client.HTTPConnection(address)
    headers = {"x-ms-date": date, "x-ms-version": VERSION, "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    server.request("PUT", f"/{ACCOUNT}/box?restype=container", headers=headers)
    assert server.getresponse().status in (201, 409)
    server.close()


@pytest.mark.skipif(AZURITE is None, reason="COTERIE_TEST_AZURE names no server")
@pytest.mark.parametrize("place", ["az://box/{}", f"abfss://box@{ACCOUNT}.dfs.core.windows.net/{{}}"])
def test_a_table_in_azure_s_store_is_written_by_the_options_alone(place, monkeypatch):
    assert AZURITE is not None
    make_container(AZURITE)
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://{AZURITE}")
    options = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT}
    options |= {"AZURE_STORAGE_ACCOUNT_KEY": KEY}

    assert written_and_read_back(place.format(uuid.uuid4()), options) == EACH
