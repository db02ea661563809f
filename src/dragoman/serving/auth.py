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

from ..core.errors import AuthenticationError, PermissionDenied


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
    is_admin: bool = False
    is_background: bool = False


class Keyring:
    """Knows keys by their SHA-256 digests only; compares in constant time (vLLM CVE-2025-59425)."""

    def __init__(self, keys: Iterable[str] = (), admin_keys: Iterable[str] = ()) -> None:
        self._user_digests = tuple(_hash_key(key) for key in keys)
        self._admin_digests = tuple(_hash_key(key) for key in admin_keys)

    @property
    def is_open(self) -> bool:
        """No user key is set: everybody may use the server."""
        return not self._user_digests and not self._admin_digests

    def authenticate(self, headers: Headers, access: Access) -> Caller:
        """The caller behind these headers.

        Raises NotAuthenticated without a good key, NotPermitted where the key is good but not for this.
        """
        callers = [self._find_caller(key) for key in _read_keys(headers)]
        known_callers = [caller for caller in callers if caller is not None]
        if access is Access.PUBLIC:
            return known_callers[0] if known_callers else Caller()
        if self.is_open:
            return Caller()
        if not known_callers:
            raise AuthenticationError(_missing_key_message() if not callers else "Incorrect API key provided.")
        if any(caller != known_callers[0] for caller in known_callers):
            # Two good keys of different owners: there is no right guess whose request this is.
            raise AuthenticationError("`Authorization` and `x-api-key` carry the keys of two different owners.")
        if access is Access.ADMIN and not known_callers[0].is_admin:
            raise PermissionDenied("This route needs an administrator's key.")
        return known_callers[0]

    def _find_caller(self, key: str) -> Caller | None:
        digest = _hash_key(key)
        # Every comparison is made, so that the time does not tell which one matched.
        user_matches = [hmac.compare_digest(digest, known_digest) for known_digest in self._user_digests]
        admin_matches = [hmac.compare_digest(digest, known_digest) for known_digest in self._admin_digests]
        if not any(user_matches) and not any(admin_matches):
            return None
        return Caller(digest.hex()[:32], any(admin_matches))


def _hash_key(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _read_keys(headers: Headers) -> list[str]:
    keys = [key for key in headers.getlist("x-api-key") if key]
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer" and key.strip():
            keys.append(key.strip())
    return keys


def _missing_key_message() -> str:
    return "You didn't provide an API key. Send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`."
