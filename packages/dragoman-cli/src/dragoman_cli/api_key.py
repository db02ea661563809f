"""The API key that a command sends to a server."""

from __future__ import annotations

import os

from .options import Option


def build_api_key_option(group: str = "Options") -> Option:
    """Build the option `--api-key` of a command that sends requests."""
    return Option(
        metavar="KEY",
        help="API key of the server. By default the first one of DRAGOMAN_API_KEY, which `ps` "
        "does not show.",
        group=group,
    )


def find_api_key(option: str | None) -> str | None:
    """Return the key to send: the option's, else the first one of DRAGOMAN_API_KEY;
    None if there is none.
    """
    return option or os.environ.get("DRAGOMAN_API_KEY", "").partition(",")[0].strip() or None
