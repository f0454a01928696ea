"""Where tokens come from: a provider, called when one is needed, and what it gave for half of its life.

Every session that begins with a token that is kept has the other half at least. One whose end is not known is
asked for each time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock, Thread
from typing import Any, ClassVar, TypeAlias

from coterie.base.errors import CoterieError
from coterie.base.settings.named_functions import function_named
from coterie.client.errors import WrongSetting
from coterie.security.bearer import Bearer, NoToken, Token, token_of
from coterie.security.sasl import AuthenticationFailed, Credentials

# Of so many providers tokens are kept: an application has one or two.
MOST_PROVIDERS = 64
PROVIDER = "sasl_oauth_token_provider"
MISTAKES = (TypeError, AttributeError, NameError, ImportError)
"""What a provider raises that will do so again: it is wrong itself, and not the service that it asks."""


Provider = Callable[[], Any]


class TokenSource:
    """The tokens of one provider; many connections and threads share them.

    The provider is called in a thread of its own, one call at a time, so that one that hangs keeps nobody
    longer than he waits.
    """

    def __init__(self, provider: Provider, name: str, *, now_s: Callable[[], float] = time.time) -> None:
        self.name = name
        self._provider, self._now_s = provider, now_s
        self._kept: Token | None = None
        self._kept_until_s = 0.0
        self._begin()

    def _begin(self) -> None:
        """Have no call under way and the lock free, as is so in a process that has just been forked."""
        self._lock = Lock()
        self._asked: Future[Token] | None = None
        self._process = os.getpid()

    def token(self, timeout_s: float) -> Token:
        """Return a token that half of its life is left of; raises NoToken, or AuthenticationFailed for a
        provider that is wrong itself.
        """
        if self._process != os.getpid():  # whoever called, or held the lock, is in the parent
            self._begin()
        with self._lock:
            if self._kept is not None and self._now_s() < self._kept_until_s:
                return self._kept
            asked = self._asked
            if asked is None:
                asked = self._asked = Future()
                Thread(target=self._ask, args=(asked,), name="coterie-token", daemon=True).start()
        try:
            return asked.result(timeout_s)
        except TimeoutError:
            raise NoToken(f"{self.name} gave no token within {timeout_s:g} s") from None

    def forget(self, token: Token) -> None:
        """Keep this token no longer: a broker has refused it."""
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            if self._kept is not None and self._kept.text == token.text:
                self._kept = None

    def _ask(self, asked: Future[Token]) -> None:
        began_s = self._now_s()
        try:
            token = self._given()
        except BaseException as error:  # noqa: BLE001  whoever waits raises it
            self._keep(None, 0)
            asked.set_exception(error)
            return
        self._keep(token, began_s if token.until_s is None else (began_s + token.until_s) / 2)
        asked.set_result(token)

    def _keep(self, token: Token | None, until_s: float) -> None:
        with self._lock:
            self._kept, self._kept_until_s, self._asked = token, until_s, None

    def _given(self) -> Token:
        try:
            return token_of(self._provider(), self.name)
        except MISTAKES as error:
            raise AuthenticationFailed(f"{self.name} raised {described(error)}") from error
        except CoterieError:
            raise
        except BaseException as error:
            raise NoToken(f"{self.name} gave no token: {described(error)}") from error


@dataclass(frozen=True, slots=True)
class TokenCredentials:
    """Tokens that prove who we are, and extensions that go with each (KIP-342)."""

    source: TokenSource
    extensions: Mapping[str, str]
    mechanism: ClassVar[str] = "OAUTHBEARER"

    def exchange(self, timeout_s: float) -> Bearer:
        """Return the exchange with a token of now; may take as long as the provider, and so long at most."""
        token = self.source.token(timeout_s)
        token = token._replace(extensions={**self.extensions, **token.extensions})
        return Bearer(token, self.source.name, self.source.forget)


def provider_of(text: str) -> Provider:
    """Return the function that `package.module:function` names; raises WrongSetting."""
    try:
        return function_named(text)
    except LookupError as error:
        raise WrongSetting(f"{PROVIDER}: {error.args[0]}") from error


@lru_cache(maxsize=MOST_PROVIDERS)
def shared_source(provider: Provider, name: str) -> TokenSource:
    """Return the tokens of this provider, the same for all connections of the process."""
    return TokenSource(provider, name)


AnyCredentials: TypeAlias = Credentials | TokenCredentials


def described(error: BaseException) -> str:
    """Return an error's kind and words in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
