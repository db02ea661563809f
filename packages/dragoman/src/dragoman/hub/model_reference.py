"""References to models: `org/name[:quant][@revision]`."""

from __future__ import annotations

import os
import re

from msgspec import Struct

from .errors import HubError
from .file_selection import is_inside

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
"""The hub permits 96 characters."""


_REVISION = re.compile(r"\w[\w./+-]{0,199}")


_REFERENCE = re.compile(
    rf"(?P<repository>(?:{_PART}/)?{_PART})(?::(?P<quantization>[\w.-]{{1,200}}))?"
    rf"(?:@(?P<revision>{_REVISION.pattern}))?"
)


class ModelReference(Struct, frozen=True):
    """A model in a hub.

    repository: its id, `org/name`.
    quantization: of the GGUF file, such as `Q4_K_M`; None selects the preferred one.
    revision: a branch, a tag or a commit; None is the default branch.
    """

    repository: str
    quantization: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        quantization = "" if self.quantization is None else f":{self.quantization}"
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{self.repository}{quantization}{revision}"

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return (
            self.repository
            if self.quantization is None
            else f"{self.repository}:{self.quantization}"
        )


def looks_like_repository(text: str) -> bool:
    """Whether the text is `org/name[:quant][@revision]` and not a path on this machine."""
    match = _REFERENCE.fullmatch(text)
    return (
        match is not None
        and "/" in match["repository"]
        and not text.lower().endswith((".gguf", ".safetensors", ".json", ".yaml", ".yml"))
        # Unlike Path.exists, it raises no error for a name that is too long.
        and not os.path.exists(text)
    )


def parse_reference(text: str, revision: str | None = None) -> ModelReference:
    """Parse a reference. revision: applies where the text names none.

    Raises:
        HubError: it is not a reference, or names another revision.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise HubError(
            f"{text[:200]!r} is not a model of a hub; write `org/name`, `org/name:QUANT` or "
            f"`org/name@REVISION`"
        )
    if match["revision"] and revision and match["revision"] != revision:
        raise HubError(
            f"{text} names the revision {match['revision']}, but --revision is {revision}; remove "
            f"one of them"
        )
    revision = match["revision"] or revision
    # The name of a branch is a path in the cache.
    if revision is not None and not (_REVISION.fullmatch(revision) and is_inside(revision)):
        raise HubError(
            f"{revision[:200]!r} is not the name of a branch, a tag or a commit; see the "
            f"revisions at the repository's page"
        )
    return ModelReference(match["repository"], match["quantization"], revision)
