"""Java's keystores: what keytool and OpenSSL wrote is read, and hostile bytes are refused."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.security.aes import cbc_decrypted
from coterie.security.javastore import UnreadableStore, is_store, store

FILES = Path(__file__).resolve().parents[2] / "data" / "tls"
NAMES = ("truststore.jks", "truststore.p12", "client.jks", "client.p12")
STORES = {name: FILES.joinpath(name).read_bytes() for name in NAMES}


def der(pem):
    return ssl.PEM_cert_to_DER_cert(pem)


@pytest.mark.parametrize("kind", ["jks", "p12"])
def test_a_truststore_holds_the_authority_s_certificate(kind):
    found = store(STORES[f"truststore.{kind}"], "changeit")

    assert der(found.trusted) == der(FILES.joinpath("authority.pem").read_text())
    assert found.keys == []


@pytest.mark.parametrize(("kind", "label"), [("jks", "PRIVATE KEY"), ("p12", "ENCRYPTED PRIVATE KEY")])
def test_a_keystore_holds_a_key_and_its_certificate(kind, label):
    found = store(STORES[f"client.{kind}"], "changeit")
    text = FILES.joinpath("client.pem").read_text()

    assert found.identity.startswith(f"-----BEGIN {label}-----")
    assert der(found.certificates[0]) == der(text[text.index("-----BEGIN CERTIFICATE") :])


@pytest.mark.parametrize("name", STORES)
def test_another_password_is_told(name):
    with pytest.raises(UnreadableStore, match="password is another one"):
        store(STORES[name], "changed")


def test_pem_is_no_store():
    assert not is_store(FILES.joinpath("authority.pem").read_bytes())
    assert all(map(is_store, STORES.values()))


@given(st.sampled_from([*STORES.values()]), st.integers(0, 1100), st.integers(0, 255), st.booleans())
def test_damaged_stores_are_refused_or_read_and_nothing_else(data, at, byte, cut):
    at %= len(data)
    damaged = data[:at] if cut else data[:at] + bytes([byte]) + data[at + 1 :]

    with suppress(UnreadableStore):
        store(damaged, "changeit")


def test_aes_decrypts_the_standard_s_example():
    """NIST SP 800-38A, F.2.6: CBC-AES256, its first block, here with a block of padding."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    sealed = bytes.fromhex("f58c4c04d6e5f1ba779eabfb5f7bfbd6")
    iv = bytes.fromhex("000102030405060708090a0b0c0d0e0f")

    with pytest.raises(ValueError, match="padding"):
        cbc_decrypted(sealed, key=key, iv=iv)
    padded = bytes(
        one ^ other
        for one, other in zip(bytes.fromhex("6bc1bee22e409f96e93d7e117393172a"), b"\x10" * 16, strict=True)
    )
    assert cbc_decrypted(sealed, key=key, iv=bytes(a ^ b for a, b in zip(iv, padded, strict=True))) == b""
