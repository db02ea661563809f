"""A wrapper around a request's grammar matcher that isolates its failures from other sequences."""

from __future__ import annotations

import logging

from ...core.engine import Matcher
from ...core.errors import RequestError

log = logging.getLogger(__name__)


class SafeMatcher:
    """The matcher of one sequence.

    is_broken: the matcher raised, or rejected a token that its own mask allows.
    is_finished: only the end may follow.
    error: why it is broken, if that is the request's fault.
    """

    def __init__(self, id: str, matcher: Matcher) -> None:
        self._id = id
        self._matcher = matcher
        self.is_broken = False
        self.is_finished = False
        self.error: RequestError | None = None

    def mask(self) -> bytes:
        """As `Matcher.mask`; a broken matcher allows nothing."""
        try:
            return self._matcher.mask()
        except RequestError as error:
            self.is_broken, self.error = True, error
            return b""
        except Exception:
            log.exception("the matcher of %s returned no mask", self._id)
            self.is_broken = True
            return b""

    def replace(self, token: int) -> int:
        """As `Matcher.replace`."""
        try:
            return self._matcher.replace(token)
        except Exception:
            log.exception("the matcher of %s found no ending", self._id)
            self.is_broken = True
            return token

    def advance(self, token: int) -> None:
        try:
            self.is_broken = not self._matcher.advance(token)
            self.is_finished = self._matcher.finished
        except Exception:
            log.exception("the matcher of %s rejected token %d", self._id, token)
            self.is_broken = True


def is_allowed(mask: bytes | None, token: int) -> bool:
    """Whether the mask allows this token."""
    if mask is None:
        return True
    return token < 8 * len(mask) and bool(mask[token >> 3] >> (token & 7) & 1)
