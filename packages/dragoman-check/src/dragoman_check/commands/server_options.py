"""Options for the server that a command measures."""

from __future__ import annotations

from dragoman_cli import Option


def build_extra_body_option(group: str) -> Option:
    """Build the option for fields that every request gets."""
    return Option(
        metavar="JSON",
        help="JSON fields to merge into every request; null removes a field.",
        group=group,
    )
