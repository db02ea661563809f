"""The fixed server-sent events of OpenAI's streams."""

from __future__ import annotations

DONE = b"data: [DONE]\n\n"


KEEPALIVE_COMMENT = b": keepalive\n\n"
