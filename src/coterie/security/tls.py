"""A TLS context from what Kafka's ssl settings say. Files are PEM: Python reads no Java keystores."""

import ssl
from dataclasses import dataclass, field

from coterie.base.errors import CoterieError

__all__ = ["BadCertificates", "TlsFiles", "tls_context"]

JAVA_STORES = (".jks", ".p12", ".pfx", ".keystore", ".truststore")


class BadCertificates(CoterieError):
    """A certificate or key that a setting names cannot be read. Says which file, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where certificates and keys are; whatever is None is not set."""

    truststore: str | None = None
    """PEM file of the authorities to trust; without one, those of the system."""
    truststore_text: str | None = None
    keystore: str | None = None
    """PEM file of our certificate chain, with the private key in it unless `key` names another."""
    key: str | None = None
    password: str | None = field(default=None, repr=False)
    check_hostname: bool = True


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context of a client, which wants TLS 1.2 at least, or raise BadCertificates."""
    try:
        # Given authorities, it trusts no other.
        context = ssl.create_default_context(cafile=files.truststore, cadata=files.truststore_text)
    except (OSError, ValueError) as error:
        raise BadCertificates(complaint("truststore", files.truststore or "text", error)) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = files.check_hostname
    if files.keystore:
        try:
            context.load_cert_chain(files.keystore, files.key, password=files.password or no_password)
        except (OSError, ValueError) as error:
            raise BadCertificates(complaint("keystore", files.keystore, error)) from None
    return context


def no_password() -> str:
    """Raise: without this, Python would ask at the terminal."""
    raise ValueError("the private key is encrypted; set ssl_key_password")


def complaint(what: str, path: str, error: Exception) -> str:
    """Return what is wrong with a file, and how to make one that can be read."""
    said = f"cannot read the {what} {path}: {getattr(error, 'strerror', None) or error}"
    if path.lower().endswith(JAVA_STORES):
        return (
            f"{said}; Java's stores must be made PEM: keytool -importkeystore to PKCS12, then openssl pkcs12"
        )
    return said
