"""The exceptions that end a check without a verdict."""

from __future__ import annotations


class Skipped(Exception):
    """The rule does not apply to this server, or whether it holds cannot be determined.
    The message is the reason.
    """


class LimitReached(Skipped):
    """The limit of requests or tokens is used up."""
