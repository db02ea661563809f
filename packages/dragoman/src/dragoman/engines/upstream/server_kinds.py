"""The kinds of servers that can be upstreams."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from .anthropic_kind import ANTHROPIC
from .gemini_kind import GEMINI
from .openai_kinds import OPENAI_KINDS
from .responses_kind import RESPONSES
from .server_kind import ServerKind
from .tei_kind import TEI

_ALL = (*OPENAI_KINDS, ANTHROPIC, RESPONSES, GEMINI, TEI)

KINDS: Mapping[str, ServerKind] = MappingProxyType({kind.name: kind for kind in _ALL})


def find_kind(owner: str) -> ServerKind:
    """Find the kind of server by the `owned_by` of its models."""
    return next((kind for kind in _ALL if owner.lower() in kind.owners), KINDS["compatible"])


def find_kind_by_url(url: str) -> ServerKind | None:
    """Find the kind of a server by its URL, without a request; None if it is unknown."""
    parts = urlsplit(url)
    return next((kind for kind in _ALL if kind.is_at is not None and kind.is_at(parts)), None)
