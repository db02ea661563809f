"""Free-form JSON of a client as it is given back: on one line, and otherwise as it was written."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from ..text import line_safe


def compact(raw: Raw) -> bytes:
    """null where the field was absent. `raw` must have been read before: `json_text` tells what is not valid JSON."""
    text = bytes(raw).strip()
    return line_safe(msgspec.json.format(text, indent=-1)) if text else b"null"
