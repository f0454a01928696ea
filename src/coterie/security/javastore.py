"""Java's keystores, read without Java: JKS, and PKCS#12 as keytool and OpenSSL write it today. Pure.

`store(data, password)` returns what is in there, as PEM that Python's ssl takes. Keys of a PKCS#12 stay as
encrypted as they are: OpenSSL opens them with the same password.
"""

from __future__ import annotations

import hashlib
from base64 import encodebytes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from coterie.base.errors import Corrupt, CoterieError

__all__ = ["Store", "UnreadableStore", "is_store", "store"]

JKS_MAGIC = b"\xfe\xed\xfe\xed"
SEQUENCE = 0x30
JKS_KEY, JKS_CERTIFICATE = 1, 2
MOST_ROUNDS = 10_000_000
SALT_BYTES = DIGEST_BYTES = 20

# Object identifiers, as DER writes their contents.
DATA = bytes.fromhex("2a864886f70d010701")
ENCRYPTED_DATA = bytes.fromhex("2a864886f70d010706")
PLAIN_KEY = bytes.fromhex("2a864886f70d010c0a0101")
SHROUDED_KEY = bytes.fromhex("2a864886f70d010c0a0102")
CERTIFICATE = bytes.fromhex("2a864886f70d010c0a0103")
PBES2 = bytes.fromhex("2a864886f70d01050d")
PBKDF2 = bytes.fromhex("2a864886f70d01050c")
DIGESTS = {
    bytes.fromhex("2a864886f70d0207"): "sha1",
    bytes.fromhex("2a864886f70d0209"): "sha256",
    bytes.fromhex("2a864886f70d020a"): "sha384",
    bytes.fromhex("2a864886f70d020b"): "sha512",
}
AES_BYTES = {
    bytes.fromhex("608648016503040102"): 16,
    bytes.fromhex("608648016503040116"): 24,
    bytes.fromhex("60864801650304012a"): 32,
}


class UnreadableStore(CoterieError):
    """A Java keystore that cannot be opened: another password, or another format. Says what to do."""


@dataclass(slots=True)
class Store:
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


def store(data: bytes, password: str) -> Store:
    """Return what a keystore holds, or raise UnreadableStore."""
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

    def certificate(self, version: int) -> str:
        """Return a certificate, before which newer files name its type."""
        if version == 2:
            self.take(self.number(2))
        return pem("CERTIFICATE", self.take(self.number(4)))


def jks(data: bytes, password: str) -> Store:
    """Return what a JKS holds."""
    secret = password.encode("utf-16-be")
    body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.sha1(secret + b"Mighty Aphrodite" + body).digest() != digest:
        raise UnreadableStore("the keystore's password is another one, or its file is damaged")
    found, source = Store(), Bytes(body)
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
    """Return the encrypted part of an EncryptedPrivateKeyInfo."""
    _, sealed = parts(der)[0].parts
    return sealed.content


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


# PKCS#12: DER within DER.


class Part(NamedTuple):
    """One DER value."""

    tag: int
    content: bytes

    @property
    def parts(self) -> list[Part]:
        """The values in it."""
        return parts(self.content)

    @property
    def der(self) -> bytes:
        """The value as it was written, with its tag."""
        size = len(self.content)
        if size < 0x80:
            return bytes([self.tag, size]) + self.content
        length = size.to_bytes((size.bit_length() + 7) // 8, "big")
        return bytes([self.tag, 0x80 | len(length)]) + length + self.content


def parts(der: bytes) -> list[Part]:
    """Return the DER values that follow one another."""
    return list(walk(der))


def walk(der: bytes) -> Iterator[Part]:
    """Yield the DER values that follow one another."""
    at = 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size == 0x80:
            raise Corrupt("keystore", at=at, expected="lengths that are known: DER, not BER")
        if size > 0x80:
            size, at = int.from_bytes(der[at : at + size - 0x80], "big"), at + size - 0x80
        if at + size > len(der):
            raise Corrupt("keystore", at=at, expected=f"{size} more bytes of DER")
        yield Part(tag, der[at : at + size])
        at += size


def pkcs12(data: bytes, password: str) -> Store:
    """Return what a PKCS#12 holds."""
    found = Store()
    whole = parts(data)
    if len(whole) != 1 or len(whole[0].parts) < 2:
        raise Corrupt("keystore", at=0, expected="a PKCS#12")
    _, content = whole[0].parts[1].parts
    for safe in parts(content.parts[0].content)[0].parts:
        for bag in parts(contents(safe, password))[0].parts:
            take_bag(bag, found)
    return found


def contents(safe: Part, password: str) -> bytes:
    """Return the bags of one safe, decrypted if it is locked."""
    kind, held = safe.parts
    if kind.content == DATA:
        return held.parts[0].content
    if kind.content != ENCRYPTED_DATA:
        raise UnreadableStore("the keystore is locked by a public key; make one that a password opens")
    _, how, sealed = held.parts[0].parts[1].parts
    return decrypted(how, sealed.content, password)


def decrypted(how: Part, sealed: bytes, password: str) -> bytes:
    """Return what PBES2 with AES has encrypted; older ways are refused."""
    if how.parts[0].content != PBES2:
        raise UnreadableStore(
            "the keystore is encrypted as Java did before 2021; write it anew with a newer one:"
            " keytool -importkeystore -srckeystore OLD -destkeystore NEW -deststoretype PKCS12"
        )
    derivation, cipher = how.parts[1].parts
    if derivation.parts[0].content != PBKDF2 or cipher.parts[0].content not in AES_BYTES:
        raise UnreadableStore("the keystore is encrypted by something else than PBKDF2 and AES")
    salt, rounds, *more = derivation.parts[1].parts
    digest = next((DIGESTS.get(one.parts[0].content) for one in more if one.tag == SEQUENCE), "sha1")
    if digest is None:
        raise UnreadableStore("the keystore's key is derived by a digest that is not known here")
    count = int.from_bytes(rounds.content, "big")
    if not 1 <= count <= MOST_ROUNDS:
        raise Corrupt("keystore", expected=f"a key derived in up to {MOST_ROUNDS} rounds")
    key = hashlib.pbkdf2_hmac(
        digest,
        password.encode(),
        salt.content,
        count,
        AES_BYTES[cipher.parts[0].content],
    )
    from coterie.security import aes  # makes its tables, which take a tenth of a second

    try:
        return aes.cbc_decrypted(sealed, key=key, iv=cipher.parts[1].content)
    except ValueError:
        raise UnreadableStore("the keystore's password is another one") from None


def take_bag(bag: Part, found: Store) -> None:
    """Note what a bag holds, if it is a key or a certificate."""
    kind, held = bag.parts[0].content, bag.parts[1]
    if kind == PLAIN_KEY:
        found.keys.append(pem("PRIVATE KEY", held.content))
    elif kind == SHROUDED_KEY:
        found.keys.append(pem("ENCRYPTED PRIVATE KEY", held.content))
    elif kind == CERTIFICATE:
        _, wrapped = held.parts[0].parts
        found.certificates.append(pem("CERTIFICATE", wrapped.parts[0].content))
