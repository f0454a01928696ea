"""Java's keystores: what keytool and OpenSSL wrote is read, and hostile bytes are refused."""

from __future__ import annotations

import ssl
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, pkcs12
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize("kind", ["jks", "p12"])
def test_a_keystore_holds_a_key_and_its_certificate(kind):
    found = store(STORES[f"client.{kind}"], "changeit")
    text = FILES.joinpath("client.pem").read_text()

    assert found.identity.startswith("-----BEGIN PRIVATE KEY-----")
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


def test_a_pkcs12_that_java_wrote_before_2021_is_read_too():
    """Its key and certificate are encrypted with 3DES and RC2."""
    assert store(FILES.joinpath("old.p12").read_bytes(), "changeit").identity.count("BEGIN") == 2


def test_the_chain_of_a_pkcs12_keeps_its_order():
    key = ec.generate_private_key(ec.SECP256R1())
    chain = [certificate(key, name) for name in ("leaf", "between", "root")]
    written = pkcs12.serialize_key_and_certificates(
        b"us", key, chain[0], chain[1:], BestAvailableEncryption(b"changeit")
    )

    found = store(written, "changeit")

    assert [der(one) for one in found.certificates] == [one.public_bytes(Encoding.DER) for one in chain]
    assert len(found.keys) == 1


def certificate(key, name):
    named, begun = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), datetime(2026, 1, 1)
    builder = x509.CertificateBuilder(named, named, key.public_key(), 1, begun, begun + timedelta(days=1))
    return builder.sign(key, SHA256())


def test_without_its_extra_a_pkcs12_is_refused_with_what_to_install_and_jks_is_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization.pkcs12", None)

    with pytest.raises(UnreadableStore, match=r"pip install 'coterie\[keystores\]'"):
        store(STORES["client.p12"], "changeit")
    assert store(STORES["client.jks"], "changeit").keys
