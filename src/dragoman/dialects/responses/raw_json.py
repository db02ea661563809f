"""Free-form JSON of a client, echoed on one line and otherwise unchanged."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from ..json_encoding import escape_line_breaks


def minify(raw: Raw) -> bytes:
    """null if absent. `raw` must have been validated before, as by `read_json_object`."""
    text = bytes(raw).strip()
    return escape_line_breaks(msgspec.json.format(text, indent=-1)) if text else b"null"
