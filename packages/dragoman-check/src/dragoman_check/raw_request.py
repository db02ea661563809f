"""Requests as bytes, which an HTTP client would not send: malformed, or several at
once.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from urllib.parse import urlsplit

SILENCE = 1.0
"""Seconds without data after which a response counts as complete."""


async def send_bytes(url: str, data: bytes, patience: float) -> bytes:
    """Send bytes on a new connection to the URL's host, and return what is received
    until the server closes it, or sends nothing for `SILENCE` seconds.

    patience: seconds to wait for the first byte.

    Raises:
        OSError: the connection could not be established.
    """
    parts = urlsplit(url)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if context else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
    received = b""
    try:
        writer.write(data)
        while piece := await asyncio.wait_for(
            reader.read(65536), SILENCE if received else patience
        ):
            received += piece
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return received
