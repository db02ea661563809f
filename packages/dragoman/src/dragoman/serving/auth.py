"""Authentication by API key, with `Authorization: Bearer` or the header of a dialect, on
every route.

Each route declares the `Access` that it requires; it is never derived from the text of
a URL.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Struct
from starlette.datastructures import Headers

from ..core.errors import AuthenticationError, PermissionDenied
from ..dialects.registry import ENVELOPES
from ..tenants import Tenant, hash_key

MISSING_KEY = (
    "You didn't provide an API key. Send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`."
)

KEY_HEADERS = tuple(
    envelope.key_header for envelope in ENVELOPES if envelope.key_header is not None
)

REVOKED = "This API key has been revoked."


class Access(StrEnum):
    """The access that a route requires. Without configured keys every client has
    access.

    PUBLIC: no key.
    USER: any accepted key.
    ADMIN: an administrator's key.
    """

    PUBLIC = "public"
    USER = "user"
    ADMIN = "admin"


class Caller(Struct, frozen=True):
    """An authenticated client.

    owner: separates store records and cache salts: the id of a named key, or a digest
        of an unnamed key, which does not reveal it; empty without keys.
    is_admin: whether the key is an administrator's.
    is_monitor: whether the key may only read the metrics.
    is_background: no client waits for the response, so the request has the lowest
        priority.
    """

    owner: str = ""
    is_admin: bool = False
    is_monitor: bool = False
    is_background: bool = False


ANONYMOUS = Caller()
"""A client without a key."""


class _NamedKey(Struct, frozen=True):
    """A key of the file.

    expires: None means never.
    is_disabled: whether its owner is locked.
    """

    caller: Caller
    expires: datetime | None
    is_disabled: bool

    def find_problem(self, now: float) -> str | None:
        """Return why the key is rejected; None if it is accepted. now: Unix time."""
        if self.is_disabled:
            return REVOKED
        if self.expires is not None and self.expires.timestamp() <= now:
            time = self.expires.astimezone(UTC).isoformat(timespec="seconds")
            return f"This API key expired at {time.replace('+00:00', 'Z')}."
        return None


class Keyring:
    """The accepted keys, stored as SHA-256 digests and compared in constant time (vLLM
    CVE-2025-59425).

    keys, admin_keys: unnamed keys.
    tenants: named keys, which `replace_tenants` changes while the server runs; None if
        there is no file of keys.
    now: Unix time in seconds.
    """

    def __init__(
        self,
        keys: Iterable[str] = (),
        admin_keys: Iterable[str] = (),
        tenants: Mapping[str, Tenant] | None = None,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._user_digests = tuple({hash_key(key) for key in keys})
        self._admin_digests = tuple({hash_key(key) for key in admin_keys})
        self._unnamed_owners = {
            _build_owner(digest) for digest in (*self._user_digests, *self._admin_digests)
        }
        # Computed once, since every request asks several times. With an empty file of keys,
        # no client has access.
        self.is_open = tenants is None and not self._user_digests and not self._admin_digests
        """Whether no key is configured, so every client has access."""
        self._now = now
        self.replace_tenants(tenants or {})

    def replace_tenants(self, tenants: Mapping[str, Tenant]) -> None:
        """Accept these named keys from now on, and no others."""
        self._tenants = {tenant.id: (name, tenant) for name, tenant in tenants.items()}
        self.owners = frozenset((*self._unnamed_owners, *self._tenants))
        self._named = {
            key.sha256: _NamedKey(
                Caller(tenant.id, tenant.role == "admin", tenant.role == "metrics"),
                key.expires,
                tenant.disabled,
            )
            for tenant in tenants.values()
            for key in tenant.secrets
        }

    @property
    def named_tenants(self) -> Mapping[str, Tenant]:
        """The tenants by name."""
        return dict(self._tenants.values())

    def find_tenant(self, owner: str) -> Tenant | None:
        """Return the owner's tenant; None for an unnamed key. Raises
        AuthenticationError if the key was revoked.
        """
        tenant = self.peek_tenant(owner)
        if tenant is None:
            is_revoked = not self.is_open and owner not in self._unnamed_owners
        else:
            is_revoked = tenant.disabled or not self._has_valid_secret(tenant)
        # A WebSocket or a batch can outlive its key.
        if is_revoked:
            raise AuthenticationError(REVOKED)
        return tenant

    def _has_valid_secret(self, tenant: Tenant) -> bool:
        # A loop, which nearly always ends at the first key.
        for key in tenant.secrets:
            if key.expires is None or key.expires.timestamp() > self._now():
                return True
        return False

    def peek_tenant(self, owner: str) -> Tenant | None:
        """Return the owner's tenant, even if its key was revoked."""
        entry = self._tenants.get(owner)
        return None if entry is None else entry[1]

    def find_name(self, owner: str) -> str | None:
        """Return the name of the key for logs and metrics: part of the digest if it is
        unnamed, None without a key.
        """
        entry = self._tenants.get(owner)
        return entry[0] if entry is not None else owner[:12] or None

    def authenticate(
        self, headers: Headers, access: Access, query_keys: Sequence[str] = ()
    ) -> Caller:
        """Return the caller with these headers.

        query_keys: the keys in the URL, on the routes of dialects that have them there.

        Raises:
            AuthenticationError: there is no valid key.
            PermissionDenied: the key is valid, but not for this route.
        """
        if self.is_open:
            return ANONYMOUS
        # Vendors' SDKs send headers of their own or a bearer token, and a request may
        # carry several. All values are read, so that a proxy and this server cannot
        # disagree on the key.
        keys = [
            key
            for name in KEY_HEADERS
            if headers.get(name) is not None
            for key in headers.getlist(name)
            if key
        ]
        keys += [key for key in query_keys if key]
        for value in headers.getlist("authorization"):
            scheme, _, key = value.partition(" ")
            if scheme.lower() == "bearer" and key.strip():
                keys.append(key.strip())
        known_callers = [caller for key in keys if (caller := self._find_caller(key)) is not None]
        # A wrong key on a public route is not an error: probes are often sent with a
        # key that is not valid here.
        if access is Access.PUBLIC:
            return known_callers[0] if known_callers else ANONYMOUS
        if not known_callers:
            raise AuthenticationError(self._explain_rejection(keys) if keys else MISSING_KEY)
        if len(known_callers) > 1 and any(caller != known_callers[0] for caller in known_callers):
            # Two valid keys of different owners: the owner of the request is ambiguous.
            raise AuthenticationError("The request carries the keys of two different owners.")
        if known_callers[0].is_monitor:
            raise PermissionDenied("This key has the role `metrics`: it may only read /metrics.")
        if access is Access.ADMIN and not known_callers[0].is_admin:
            raise PermissionDenied("This route needs an administrator's key.")
        return known_callers[0]

    def _find_caller(self, key: str) -> Caller | None:
        digest = hash_key(key)
        if self._unnamed_owners:
            # All comparisons are made, so that timing does not reveal which key matched.
            user_matches = [
                hmac.compare_digest(digest, known_digest) for known_digest in self._user_digests
            ]
            admin_matches = [
                hmac.compare_digest(digest, known_digest) for known_digest in self._admin_digests
            ]
            if any(user_matches) or any(admin_matches):
                return Caller(_build_owner(digest), any(admin_matches))
        # Named keys can be thousands, so they are looked up. Its timing reveals
        # nothing: clients cannot choose digests.
        named = self._named.get(digest)
        return None if named is None or named.find_problem(self._now()) else named.caller

    def _explain_rejection(self, keys: Iterable[str]) -> str:
        """Return why these keys are rejected. Whoever sends a key that was valid may
        know what became of it; a guess is told nothing.
        """
        found = [self._named[digest] for key in keys if (digest := hash_key(key)) in self._named]
        problems = [named.find_problem(self._now()) for named in found]
        return next((problem for problem in problems if problem), "Incorrect API key provided.")


def _build_owner(digest: str) -> str:
    return digest[:32]
