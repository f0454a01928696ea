"""A TLS context from what Kafka's ssl settings say: PEM, in files or as text, or Java's keystores."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

from coterie.base.errors import CoterieError
from coterie.security.javastore import KeyStore, is_store, store


class BadCertificates(CoterieError):
    """A certificate or key that a setting names cannot be read. Says which file, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where certificates and keys are; whatever is None is not set.

    A file is PEM, JKS or PKCS#12, which its bytes tell, as they do in Java whatever the type is said to be.
    """

    truststore: str | None = None
    """The authorities to trust; without any, those of the system."""
    truststore_text: str | None = None
    truststore_password: str | None = field(default=None, repr=False)
    keystore: str | None = None
    """Our certificate chain, with the private key in it unless `key` names another file."""
    keystore_text: str | None = field(default=None, repr=False)
    """The same as PEM."""
    keystore_password: str | None = field(default=None, repr=False)
    key: str | None = None
    password: str | None = field(default=None, repr=False)
    """The private key's own."""
    check_hostname: bool = True


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context of a client, which wants TLS 1.2 at least, or raise BadCertificates."""
    named = files.truststore
    try:
        text = files.truststore_text if named is None else trusted(named, files.truststore_password)
        # Given authorities, it trusts no other.
        context = ssl.create_default_context(cadata=text)
    except (OSError, ValueError, CoterieError) as error:
        raise BadCertificates(read_error("truststore", named or "text", error)) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = files.check_hostname
    if files.keystore or files.keystore_text:
        try:
            show(context, files)
        except (OSError, ValueError, CoterieError) as error:
            raise BadCertificates(read_error("keystore", files.keystore or "text", error)) from None
    return context


def trusted(path: str, password: str | None) -> str:
    """Return the certificates of a truststore as PEM."""
    data = Path(path).read_bytes()
    held = opened(data, password, "ssl_truststore_password")
    return data.decode() if held is None else held.trusted


def show(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Have the context show our certificate."""
    password = files.password or files.keystore_password
    if files.keystore_text:
        load_text(context, files.keystore_text, password)
        return
    assert files.keystore
    held = opened(Path(files.keystore).read_bytes(), files.keystore_password, "ssl_keystore_password")
    if held is None:
        context.load_cert_chain(files.keystore, files.key, password=password or no_password)
    else:
        load_text(context, held.identity, password)


def load_text(context: ssl.SSLContext, text: str, password: str | None) -> None:
    """Load a key and its chain. Python takes them from files only: it is ours alone, and gone at once."""
    with NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(text)
        file.flush()
        context.load_cert_chain(file.name, password=password or no_password)


def opened(data: bytes, password: str | None, setting: str) -> KeyStore | None:
    """Return the KeyStore of a keystore of Java's; None if this is none."""
    if not is_store(data):
        return None
    if password is None:
        raise ValueError(f"it is a keystore with a password; set {setting}")
    return store(data, password)


def no_password() -> str:
    """Raise: without this, Python would ask at the terminal."""
    raise ValueError("the private key is encrypted; set ssl_key_password")


def read_error(what: str, path: str, error: Exception) -> str:
    """Return the error message about a file: its path, and the cause."""
    return f"cannot read the {what} {path}: {getattr(error, 'strerror', None) or error}"
