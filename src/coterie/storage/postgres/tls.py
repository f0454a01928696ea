"""Encryption of the way to the database, as a store's address asks for it.

The words are libpq's: sslmode, sslrootcert, sslcert, sslkey, sslcrl. Where the address says nothing, a server
on another machine has to show a certificate of its name, by one of those whom the system trusts, or of
`sslrootcert`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any

from coterie.base.errors import CoterieError

FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
SYSTEMS = "system"
"""The sslrootcert that means those whom the system trusts."""
NO_PAIR = ("PEM lib", "KEY_VALUES_MISMATCH", "NO_START_LINE")
"""What OpenSSL says of a file that holds no key, or another certificate's."""
MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def tls_arguments(query: Mapping[str, str], *, is_here: bool) -> dict[str, Any]:
    """Return the driver's arguments for an address with this query. `is_here`: the server is this machine.

    Raises `CoterieError` for a mode or file that is not there.
    """
    mode = query.get("sslmode")
    if mode is not None and mode not in MODES:
        raise CoterieError(f"sslmode={mode} is none of {', '.join(MODES)}")
    for name in FILES:
        if (path := query.get(name)) and path != SYSTEMS and not os.path.isfile(path):
            raise CoterieError(f"the URL's {name} names a file that is not there: {path}")
    if query.get("sslrootcert") == SYSTEMS and mode in (None, "verify-full"):
        return {"ssl": _context(query)}
    if mode is not None or is_here or "PGSSLMODE" in os.environ:
        return {}
    return {"ssl": "verify-full"} if "sslrootcert" in query else {"ssl": _context(query)}


def _context(query: Mapping[str, str]) -> ssl.SSLContext:
    """Return the checks of a server by the system's certificates, and what is shown to it."""
    context = ssl.create_default_context()
    if "sslcert" in query:
        try:
            context.load_cert_chain(query["sslcert"], query.get("sslkey"), query.get("sslpassword"))
        except (OSError, ssl.SSLError) as error:
            raise CoterieError(f"the URL's sslcert and sslkey are of no use: {error}") from error
    return context


def tls_advice(error: BaseException) -> str:
    """Return the sentence about an error of encryption, with what to do; "" for any other error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message.rstrip(".")
        if "not valid for" in said or "mismatch" in said.lower():
            return f"{said}; give the host as its certificate names it, or sslmode=verify-ca in the URL"
        return f"{said}; the URL's sslrootcert names whose certificates are trusted"
    if isinstance(error, ConnectionError) and "rejected SSL" in str(error):
        return "the server does not encrypt; sslmode=disable in the URL goes without, where the way is safe"
    said = str(error).partition("\n")[0]
    if "root certificate file" in said:
        return f"{said}; sslrootcert in the URL names it, sslrootcert=system those whom the system trusts"
    if "no encryption" in said:
        return f"{said}; the server wants it encrypted: sslmode=verify-full in the URL, with sslrootcert"
    if "valid client certificate" in said:
        return f"{said}; sslcert and sslkey in the URL name it"
    if isinstance(error, ssl.SSLError) and any(one in said for one in NO_PAIR):
        return f"{said}; sslcert and sslkey in the URL name a certificate and its own key"
    return f"TLS: {error.reason or said}" if isinstance(error, ssl.SSLError) else ""
