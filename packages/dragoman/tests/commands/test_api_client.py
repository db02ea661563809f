"""The client of the commands reads the streams of any server."""

from __future__ import annotations

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dragoman.commands.api_client import AnswerEnd, ApiClient, ApiError, Piece, TextPiece
from tests.loopback import serve_app

END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}'


def stream(body: bytes) -> list[Piece]:
    """Return what the client reads of a server that answers with `body`."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(body, media_type="text/event-stream")(scope, receive, send)

    with serve_app(app) as url, ApiClient(url) as client:
        return list(client.stream_chat_completion({}))


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("text", ["a", "a\u2028b", "a\x85b"])
def test_stream_text_with_line_separators_is_whole(text: str, end: bytes):
    chunk = b'data: {"choices":[{"delta":{"content":"%s"}}]}' % text.encode()
    lines = (b": a comment", b"", chunk, b"", END, b"", b"data: [DONE]", b"", b"")
    assert stream(end.join(lines)) == [TextPiece("text", text), AnswerEnd("stop")]


def test_stream_ending_early_raises_error():
    with pytest.raises(ApiError, match="ended before it was complete"):
        stream(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')


def test_stream_bare_json_error_is_raised():
    with pytest.raises(ApiError, match="out of memory"):
        stream(b'{"error":{"message":"out of memory"}}\n\n')
