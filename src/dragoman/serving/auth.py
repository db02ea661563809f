"""Who is calling. One resolver for `Authorization: Bearer` and `x-api-key`, the same for every route.

What a route asks for is written at the route (`Access`), never derived from the text of a URL.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from starlette.datastructures import Headers

from ..core.errors import NotAuthenticated, NotPermitted


class Access(StrEnum):
    """PUBLIC: anybody. USER: any known key. ADMIN: an administrator's key; USER too where no key is set at all."""

    PUBLIC = "public"
    USER = "user"
    ADMIN = "admin"


class Caller(Struct, frozen=True):
    """owner: stands for the key in stored rows and cache salts, and does not reveal it; empty without keys.

    background: nobody waits for the answer, so that all others go before.
    """

    owner: str = ""
    admin: bool = False
    background: bool = False


class Keyring:
    """Knows keys by their SHA-256 digests only; compares in constant time (vLLM CVE-2025-59425)."""

    def __init__(self, keys: Iterable[str] = (), admin_keys: Iterable[str] = ()) -> None:
        self._users = tuple(_digest(key) for key in keys)
        self._admins = tuple(_digest(key) for key in admin_keys)

    @property
    def open(self) -> bool:
        """No user key is set: everybody may use the server."""
        return not self._users and not self._admins

    def admit(self, headers: Headers, access: Access) -> Caller:
        """The caller behind these headers.

        Raises NotAuthenticated without a good key, NotPermitted where the key is good but not for this.
        """
        callers = [self._caller(key) for key in _presented(headers)]
        known = [caller for caller in callers if caller is not None]
        if access is Access.PUBLIC:
            return known[0] if known else Caller()
        if self.open:
            return Caller()
        if not known:
            raise NotAuthenticated(_missing() if not callers else "Incorrect API key provided.")
        if any(caller != known[0] for caller in known):
            # Two good keys of different owners: there is no right guess whose request this is.
            raise NotAuthenticated("`Authorization` and `x-api-key` carry the keys of two different owners.")
        if access is Access.ADMIN and not known[0].admin:
            raise NotPermitted("This route needs an administrator's key.")
        return known[0]

    def _caller(self, key: str) -> Caller | None:
        digest = _digest(key)
        # Every comparison is made, so that the time does not tell which one matched.
        user = [hmac.compare_digest(digest, each) for each in self._users]
        admin = [hmac.compare_digest(digest, each) for each in self._admins]
        if not any(user) and not any(admin):
            return None
        return Caller(digest.hex()[:32], any(admin))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _presented(headers: Headers) -> list[str]:
    keys = [key for key in headers.getlist("x-api-key") if key]
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer" and key.strip():
            keys.append(key.strip())
    return keys


def _missing() -> str:
    return "You didn't provide an API key. Send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`."
