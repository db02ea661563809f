"""Reading of request bodies, with a limit of their size."""

from __future__ import annotations

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.types import Receive

from .body_memory import BodyMemoryBudget, BodyMemoryShare
from .content_coding import build_too_large_error, decode_content
from .disconnect import ClientGone


async def read_body(
    receive: Receive, headers: Headers, limit: int, share: BodyMemoryShare | None = None
) -> bytes:
    """Read and decode the body, at most `limit` bytes both on the wire and decoded.

    share: accounts for the body's memory; None means no budget.

    Raises:
        BodyTooLarge: the body exceeds the limit.
        UnsupportedMediaType: the content coding is unknown.
        RequestError: the compressed body is corrupt.
        ClientGone: the client has disconnected.
        Overloaded: the memory budget is exhausted.
    """
    share = share or BodyMemoryShare(BodyMemoryBudget(limit))
    declared = headers.get("content-length", "")
    # A body that is too large by its Content-Length is rejected before it is read. 19
    # digits: int() is quadratic.
    if declared.isdecimal() and int(declared[:19]) > limit:
        raise build_too_large_error(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise build_too_large_error(limit)
        # Reserved before the chunk is appended, so that the budget limits the memory in
        # use.
        share.reserve(size)
        chunks.append(chunk)
        if not message.get("more_body", False):
            break
    data = b"".join(chunks)
    coding = headers.get("content-encoding")
    # A list of several codings matches none of those below and is rejected.
    if coding is None or (coding := coding.strip().lower()) in ("identity", ""):
        return data
    # Reserve the worst case: the decoded size is unknown until decompression ends.
    share.reserve(size + limit)
    # In a thread: decompression to 32 MiB would block the event loop, and all streams.
    decoded = await anyio.to_thread.run_sync(decode_content, data, coding, limit)
    share.reserve(len(decoded))
    return decoded
