"""Which approvals of calls were used: each allows one call, also in several processes and
after a restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

from ..store import CommitConflict, Key, Put, Store

Commit = Callable[[Put], Awaitable[None]]

KIND = "mcp_approval"
LIFETIME = 30 * 86400
"""Seconds for which a used approval is remembered; as long as stored responses, which
contain its request.
"""


class ApprovalClaims:
    """The used approvals of one owner.

    store: None remembers nothing: then a client that sends an approval again lets the
        call be made again.
    now: the time in Unix seconds.
    """

    def __init__(self, store: Store | None, owner: str, now: Callable[[], float]) -> None:
        self._store = store
        self._owner = owner
        self._now = now

    async def claim(self, approval: str, commit: Commit | None = None) -> bool:
        """Use an approval; return false if it was used before.

        commit: stores the use together with other changes.

        Raises:
            StoreUnavailable: the store failed, so the call must not be made.
        """
        if self._store is None:
            return True
        # The client chooses the id where it sends the history itself; a hash is storable
        # and short.
        id = hashlib.sha256(approval.encode("utf-8", "surrogatepass")).hexdigest()
        now = int(self._now())
        put = Put(Key(self._owner, KIND, id), now, b"{}", expires=now + LIFETIME)
        try:
            await (commit or self._store.commit)(put)
        except CommitConflict as conflict:
            if conflict.change.key != put.key:
                raise
            return False
        return True
