"""The TLS context from files: what it trusts, and what it says about files that it cannot read."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from coterie.security.tls import BadCertificates, TlsFiles, tls_context

FILES = Path(__file__).resolve().parents[2] / "data" / "tls"
AUTHORITY, CLIENT = str(FILES / "authority.pem"), str(FILES / "client.pem")


def test_given_authorities_are_the_only_ones_that_are_trusted():
    for files in (
        TlsFiles(truststore=AUTHORITY),
        TlsFiles(truststore_text=Path(AUTHORITY).read_text()),
    ):
        context = tls_context(files)

        (trusted,) = context.get_ca_certs()
        assert trusted["subject"] == ((("commonName", "Coterie tests"),),)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_host_s_name_need_not_match_where_the_setting_says_so():
    context = tls_context(TlsFiles(truststore=AUTHORITY, check_hostname=False))

    assert not context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_a_certificate_of_ours_is_taken_with_its_key():
    tls_context(TlsFiles(truststore=AUTHORITY, keystore=CLIENT))


@pytest.mark.parametrize("kind", ["jks", "p12"])
def test_java_s_stores_are_as_good_as_pem(kind):
    context = tls_context(
        TlsFiles(
            truststore=str(FILES / f"truststore.{kind}"),
            truststore_password="changeit",
            keystore=str(FILES / f"client.{kind}"),
            keystore_password="changeit",
        )
    )

    (trusted,) = context.get_ca_certs()
    assert trusted["subject"] == ((("commonName", "Coterie tests"),),)


def test_a_key_and_its_chain_may_be_given_as_text():
    tls_context(TlsFiles(truststore=AUTHORITY, keystore_text=Path(CLIENT).read_text()))


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (TlsFiles(truststore="/nowhere/ca.pem"), "truststore /nowhere/ca.pem: No such file"),
        (TlsFiles(truststore=__file__), "cannot read the truststore"),
        (TlsFiles(truststore_text="not a certificate"), "cannot read the truststore"),
        (TlsFiles(keystore="/nowhere/us.pem"), "keystore /nowhere/us.pem: No such file"),
        (TlsFiles(keystore=AUTHORITY), "cannot read the keystore"),  # there is no key in it
        (TlsFiles(truststore="/nowhere/ca.jks"), "truststore /nowhere/ca.jks: No such file"),
        (TlsFiles(truststore=str(FILES / "truststore.jks")), "set ssl_truststore_password"),
        (
            TlsFiles(keystore=str(FILES / "client.p12"), keystore_password="changed"),
            "password is another one",
        ),
    ],
)
def test_what_cannot_be_read_is_named(files, why):
    with pytest.raises(BadCertificates, match=why):
        tls_context(files)
