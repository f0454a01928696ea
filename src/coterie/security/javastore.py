"""Java's keystores, read without Java: JKS by ourselves, PKCS#12 by the package cryptography (an extra).

`store(data, password)` returns what is in there, as PEM that Python's ssl takes.
"""

from __future__ import annotations

import hashlib
from base64 import encodebytes
from dataclasses import dataclass, field

from coterie.base.errors import Corrupt, CoterieError

JKS_MAGIC = b"\xfe\xed\xfe\xed"
SEQUENCE = 0x30
JKS_KEY, JKS_CERTIFICATE = 1, 2
SALT_BYTES = DIGEST_BYTES = 20


class UnreadableStore(CoterieError):
    """A Java keystore that cannot be opened: another password, or another format. Says what to do."""


@dataclass(slots=True)
class KeyStore:
    """What a keystore holds, as PEM."""

    certificates: list[str] = field(default_factory=list)
    """Those of a key first, in their chain's order."""
    keys: list[str] = field(default_factory=list, repr=False)

    @property
    def trusted(self) -> str:
        """All certificates."""
        return "".join(self.certificates)

    @property
    def identity(self) -> str:
        """The key and its chain."""
        return "".join([*self.keys[:1], *self.certificates])


def is_store(data: bytes) -> bool:
    """Return whether these bytes are a keystore of Java's and not PEM, whatever its file is called."""
    return data[:4] == JKS_MAGIC or data[:1] == bytes([SEQUENCE])


def store(data: bytes, password: str) -> KeyStore:
    """Return the KeyStore of a keystore's bytes, JKS or PKCS#12, or raise UnreadableStore."""
    try:
        return jks(data, password) if data[:4] == JKS_MAGIC else pkcs12(data, password)
    except (Corrupt, IndexError, ValueError) as error:  # DER of another shape than a store's
        raise UnreadableStore(f"this is no keystore that can be read: {error}") from error


def pem(label: str, der: bytes) -> str:
    """Return DER as PEM."""
    return f"-----BEGIN {label}-----\n{encodebytes(der).decode()}-----END {label}-----\n"


# JKS: Java's own format.


class Bytes:
    """Reads numbers and strings from the front of a JKS."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        """Return so many bytes."""
        taken = self.data[self.at : self.at + count]
        if len(taken) != count:
            raise Corrupt("keystore", at=self.at, expected=f"{count} more bytes")
        self.at += count
        return taken

    def number(self, size: int) -> int:
        """Return a number of so many bytes."""
        return int.from_bytes(self.take(size), "big")

    def der_value(self) -> bytes:
        """Return the content of the next value in DER."""
        self.take(1)
        size = self.number(1)
        return self.take(self.number(size - 0x80) if size > 0x80 else size)

    def certificate(self, version: int) -> str:
        """Return a certificate, before which newer files name its type."""
        if version == 2:
            self.take(self.number(2))
        return pem("CERTIFICATE", self.take(self.number(4)))


def jks(data: bytes, password: str) -> KeyStore:
    """Return the KeyStore of a JKS."""
    secret = password.encode("utf-16-be")
    body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.sha1(secret + b"Mighty Aphrodite" + body).digest() != digest:
        raise UnreadableStore("the keystore's password is another one, or its file is damaged")
    found, source = KeyStore(), Bytes(body)
    source.take(4)
    version = source.number(4)
    for _ in range(source.number(4)):
        kind = source.number(4)
        source.take(source.number(2) + 8)  # its name, and when it was made
        if kind == JKS_KEY:
            key = opened(octets_of(source.take(source.number(4))), secret)
            found.keys.append(pem("PRIVATE KEY", key))
            chain = [source.certificate(version) for _ in range(source.number(4))]
            found.certificates[:0] = chain
        elif kind == JKS_CERTIFICATE:
            found.certificates.append(source.certificate(version))
        else:
            raise UnreadableStore("the keystore holds something else than certificates and private keys")
    return found


def octets_of(der: bytes) -> bytes:
    """Return the encrypted part of an EncryptedPrivateKeyInfo; its algorithm stands before."""
    info = Bytes(Bytes(der).der_value())
    info.der_value()
    return info.der_value()


def opened(sealed: bytes, secret: bytes) -> bytes:
    """Return a private key that JKS has sealed: a stream of SHA-1 digests over it, and one to check by."""
    salt, body, check = sealed[:SALT_BYTES], sealed[SALT_BYTES:-DIGEST_BYTES], sealed[-DIGEST_BYTES:]
    stream, last = bytearray(), salt
    while len(stream) < len(body):
        last = hashlib.sha1(secret + last).digest()
        stream += last
    plain = bytes(one ^ other for one, other in zip(body, stream, strict=False))
    if hashlib.sha1(secret + plain).digest() != check:
        raise UnreadableStore("the password of the private key is not the keystore's; make them the same")
    return plain


# PKCS#12, the format that keytool writes since Java 9.


def pkcs12(data: bytes, password: str) -> KeyStore:
    """Return the KeyStore of a PKCS#12: a key, its certificate, then the other certificates in order."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ImportError:
        raise UnreadableStore(
            "it is a PKCS#12, which needs the package cryptography: pip install 'coterie[keystores]';"
            " or make it a JKS: keytool -importkeystore -srckeystore OLD -destkeystore NEW -deststoretype JKS"
        ) from None
    try:
        held = load_pkcs12(data, password.encode())
    except UnsupportedAlgorithm as error:
        raise UnreadableStore(f"the keystore is encrypted in a way that is not known here: {error}") from None
    except ValueError as error:
        if "password" not in str(error):
            raise
        raise UnreadableStore("the keystore's password is another one, or its file is damaged") from None
    found = KeyStore()
    if held.key is not None:
        key = held.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        found.keys.append(key.decode())
    first = [] if held.cert is None else [held.cert]
    for one in [*first, *held.additional_certs]:
        found.certificates.append(one.certificate.public_bytes(Encoding.PEM).decode())
    return found
