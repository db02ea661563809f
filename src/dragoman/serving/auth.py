"""Authentication and access: one resolver for `Authorization: Bearer` and `x-api-key`, the same for every route.

Each route declares the `Access` that it requires; it is never derived from the text of a URL.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct
from starlette.datastructures import Headers

from ..core.errors import AuthenticationError, PermissionDenied
from .cors import CorsPolicy
from .host import check_headers

MISSING_KEY = "You didn't provide an API key. Send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`."


class Access(StrEnum):
    """Required access. PUBLIC: no key. USER: any known key. ADMIN: an administrator's key. Without configured keys
    every client has access.
    """

    PUBLIC = "public"
    USER = "user"
    ADMIN = "admin"


class Caller(Struct, frozen=True):
    """An authenticated client.

    owner: a digest of the key for store records and cache salts, which does not reveal the key; empty without keys.
    is_admin: whether the key is an administrator's.
    is_background: no client waits for the response, so the request has the lowest priority.
    """

    owner: str = ""
    is_admin: bool = False
    is_background: bool = False


class Keyring:
    """The accepted keys, stored as SHA-256 digests and compared in constant time (vLLM CVE-2025-59425)."""

    def __init__(self, keys: Iterable[str] = (), admin_keys: Iterable[str] = ()) -> None:
        self._user_digests = tuple(_hash_key(key) for key in keys)
        self._admin_digests = tuple(_hash_key(key) for key in admin_keys)

    @property
    def is_open(self) -> bool:
        """Whether no key is configured, so that every client has access."""
        return not self._user_digests and not self._admin_digests

    def authenticate(self, headers: Headers, access: Access) -> Caller:
        """Return the caller with these headers.

        Raises:
            AuthenticationError: there is no valid key.
            PermissionDenied: the key is valid, but not for this route.
        """
        # Anthropic's SDK sends `x-api-key`, OpenAI's a bearer token, and a request may carry both.
        callers = [self._find_caller(key) for key in _read_keys(headers)]
        known_callers = [caller for caller in callers if caller is not None]
        # A wrong key on a public route is no error: probes are often sent with whatever key is configured.
        if access is Access.PUBLIC:
            return known_callers[0] if known_callers else Caller()
        if self.is_open:
            return Caller()
        if not known_callers:
            raise AuthenticationError("Incorrect API key provided." if callers else MISSING_KEY)
        if any(caller != known_callers[0] for caller in known_callers):
            # Two valid keys of different owners: the owner of the request is ambiguous.
            raise AuthenticationError("`Authorization` and `x-api-key` carry the keys of two different owners.")
        if access is Access.ADMIN and not known_callers[0].is_admin:
            raise PermissionDenied("This route needs an administrator's key.")
        return known_callers[0]

    def _find_caller(self, key: str) -> Caller | None:
        digest = _hash_key(key)
        # All comparisons are made, so that timing does not reveal which key matched.
        user_matches = [hmac.compare_digest(digest, known_digest) for known_digest in self._user_digests]
        admin_matches = [hmac.compare_digest(digest, known_digest) for known_digest in self._admin_digests]
        if not any(user_matches) and not any(admin_matches):
            return None
        return Caller(digest.hex()[:32], any(admin_matches))


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The checks before a request reaches its handler, the same over HTTP and WebSocket.

    allowed_hosts: names in the Host header, besides loopback.
    """

    keyring: Keyring
    allowed_hosts: tuple[str, ...]
    cors: CorsPolicy

    def check_headers(self, headers: Headers) -> None:
        """Check the number of headers and Host. Raises as `host.check_headers`."""
        check_headers(headers, self.allowed_hosts)

    def check_origin(self, headers: Headers, access: Access, *, reads: bool = False) -> None:
        """Reject requests that pages of other origins cause, unless the route is public.

        reads: a GET, which a link of another page may cause; never on a route for administrators.

        Raises:
            PermissionDenied: the request comes from an origin that is not allowed.
        """
        if access is not Access.PUBLIC:
            is_admin = access is Access.ADMIN
            self.cors.check_origin(headers, by_name=is_admin, allow_navigation=reads and not is_admin)


def _hash_key(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _read_keys(headers: Headers) -> list[str]:
    # All values of both headers: a proxy and a server must not pick different ones.
    keys = [key for key in headers.getlist("x-api-key") if key]
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer" and key.strip():
            keys.append(key.strip())
    return keys
