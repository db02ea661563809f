"""Options for the server that a command measures."""

from __future__ import annotations

from dragoman_cli import Option


def build_api_key_option(group: str, help: str) -> Option:
    """Build the option for the API key of a server to measure; OPENAI_API_KEY is its
    default.
    """
    return Option(help=help, group=group, environment_variable="OPENAI_API_KEY")


def build_extra_body_option(group: str) -> Option:
    """Build the option for fields that every request gets."""
    return Option(
        metavar="JSON",
        help="JSON fields to merge into every request; null removes a field.",
        group=group,
    )
