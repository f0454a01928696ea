"""What the codecs refuse: more bytes than a batch may be, whatever the compressed ones claim."""

import pytest

from coterie.base.errors import Corrupt
from coterie.wire.records import compression
from coterie.wire.records.compression import CODECS, compress, decompress

COMPRESSIONS = [codec for codec in CODECS if codec != "none"]


@pytest.mark.parametrize("codec", COMPRESSIONS)
@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)) * 9, bytes(3_000_000)], ids=len)
def test_what_was_compressed_comes_back_however_far_it_was_compressed(codec, data):
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_bomb_is_refused_and_what_just_fits_is_not(codec, monkeypatch):
    monkeypatch.setattr(compression, "MOST_BYTES", 1_000_000)

    assert decompress(codec, compress(codec, bytes(1_000_000))) == bytes(1_000_000)
    with pytest.raises(Corrupt, match="expected at most 1000000 bytes"):
        decompress(codec, compress(codec, bytes(1_000_001)))


def test_a_snappy_block_cannot_claim_more_than_the_limit(monkeypatch):
    monkeypatch.setattr(compression, "MOST_BYTES", 30_000)

    with pytest.raises(Corrupt, match="claims 32768 bytes"):
        decompress("snappy", compress("snappy", bytes(32_768)))


@pytest.mark.parametrize("codec", COMPRESSIONS)
def test_damage_is_corrupt_however_much_room_there_is(codec):
    whole = compress(codec, b"some text, again " * 30)

    with pytest.raises(Corrupt):
        decompress(codec, b"\x17" + whole[1:-3])
