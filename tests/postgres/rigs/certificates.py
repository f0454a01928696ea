"""Certificates for a server and for who connects to it, and a server that shows them."""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from bench.postgres import USER, Server
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

YEAR = datetime.timedelta(days=365)


class Authority:
    """Whoever signs certificates: its own is `root.crt` in a folder, beside those that it signs."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = folder / f"{name}.crt"
        signed = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._write(self.certificate, signed)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - YEAR)
            .not_valid_after(now + YEAR)
        )

    def _write(self, path: Path, builder: x509.CertificateBuilder) -> None:
        signed = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, *hosts: str) -> tuple[Path, Path]:
        """Return the files of a certificate and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key)
        if hosts:
            names = [
                x509.IPAddress(ip_address(one)) if one[0].isdigit() else x509.DNSName(one) for one in hosts
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate, file = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        self._write(certificate, builder)
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        file.chmod(0o600)
        return certificate, file


@contextmanager
def server_with(
    files: Mapping[str, Path], rules: str, settings: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Yield a server with these files by the names of its settings, which lets in whom the rules say."""
    server = Server(settings)
    server.prepare()
    data = server.directory / "data"
    for name, path in files.items():
        copy = data / path.name
        shutil.copy(path, copy)
        copy.chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(copy, USER, USER)
        server.settings[name] = path.name
    (data / "pg_hba.conf").write_text(rules)
    server.start()
    try:
        yield server
    finally:
        server.__exit__(None, None, None)
