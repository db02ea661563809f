"""An HTTP client of llama.cpp's server over its Unix socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman_http import (
    BlockingHttpClient,
    ClientTimeouts,
    HttpClient,
    HttpClientError,
    HttpResponse,
    SseDecoder,
)

from ...core.errors import EngineError, RequestError
from .wire import (
    CompletionBody,
    CompletionChunk,
    EmbeddingItem,
    InputTokensResponse,
    ServerTokens,
    decode_chunk,
)

ChunkReceiver = Callable[[CompletionChunk], bool]
"""Receives an event of a completion, and returns whether it wants more."""

_encode = msgspec.json.Encoder().encode
_CONNECTION_LOST = "The connection to llama.cpp was lost."
_MAX_BODY_BYTES = 1 << 30


class LlamaCppClient:
    """An HTTP client in which every request has its own connection: closing it cancels
    the request.
    """

    def __init__(self, socket: str, key: str) -> None:
        # A slow model may take any time; a process that dies closes the socket.
        self._client = HttpClient(ClientTimeouts(read=inf), uds=socket)
        self._headers = _build_headers(key)

    async def close(self) -> None:
        await self._client.close()

    async def complete(self, body: CompletionBody, receive: ChunkReceiver) -> None:
        """Request a completion, and pass the events of a stream, or the single
        non-streamed one, to `receive`.

        A stream's events are passed on in the callback of the transport, without
        resuming this coroutine.

        Raises: EngineError; whatever `receive` raises.
        """
        try:
            response = await self._send("/completion", _encode(body))
            try:
                if response.status != 200 or not body.stream:
                    receive(decode_chunk(await response.read_all(_MAX_BODY_BYTES)))
                    return
                events = _EventStream(response, receive)
                response.receive_directly(events.feed)
                while not events.is_finished and (piece := await response.read()) is not None:
                    events.feed(piece)
                if events.failure is not None:
                    raise events.failure
            finally:
                response.close()
        except HttpClientError as error:
            raise EngineError(_CONNECTION_LOST) from error
        except msgspec.DecodeError as error:
            raise EngineError(f"llama.cpp sent an unexpected message: {error}") from error

    async def embed(self, inputs: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Compute the pooled output of each input; NaN for non-finite numbers.

        Raises: EngineError.
        """
        # -1: as pooled, not normalized.
        status, content = await self._post(
            "/embeddings", _encode({"input": inputs, "embd_normalize": -1})
        )
        try:
            if status != 200:
                failure = decode_chunk(content).error
                message = (
                    "llama.cpp rejected the request."
                    if failure is None
                    else f"llama.cpp: {failure.message}"
                )
                raise EngineError(message)
            embedded = sorted(
                msgspec.json.decode(content, type=list[EmbeddingItem]), key=lambda item: item.index
            )
        except msgspec.DecodeError as error:
            raise EngineError(f"llama.cpp sent an unexpected message: {error}") from error
        # Pooling yields one vector per input, in a list.
        return [
            np.array([nan if value is None else value for value in item.embedding[0]], np.float32)
            for item in embedded
        ]

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Tokenize a part of a prompt, with control tokens. Raises EngineError."""
        body = _encode_tokenize_body(text, add_special=False, parse_special=True)
        _, content = await self._post("/tokenize", body)
        try:
            return msgspec.json.decode(content, type=ServerTokens).tokens
        except msgspec.DecodeError as error:
            raise EngineError(f"llama.cpp sent an unexpected message: {error}") from error

    async def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            response = await self._send(path, body)
            try:
                return response.status, await response.read_all(_MAX_BODY_BYTES)
            finally:
                response.close()
        except HttpClientError as error:
            raise EngineError(_CONNECTION_LOST) from error

    async def _send(self, path: str, body: bytes) -> HttpResponse:
        return await self._client.send("POST", f"http://llama.cpp{path}", self._headers, body)


class _EventStream:
    """Splits the body of a streamed completion into events.

    is_finished: the receiver wants no more events.
    failure: the exception that decoding or the receiver raised.
    """

    def __init__(self, response: HttpResponse, receive: ChunkReceiver) -> None:
        self._response = response
        self._receive = receive
        self._sse = SseDecoder(_MAX_BODY_BYTES)
        self.is_finished = False
        self.failure: Exception | None = None

    def feed(self, piece: bytes) -> bool:
        """Process a piece of the body; a PieceReceiver of the HTTP client."""
        try:
            for event in self._sse.feed(piece):
                if not self.is_finished:
                    self.is_finished = not self._receive(decode_chunk(event))
        except Exception as error:
            # Raised again by the coroutine: a callback of the transport must not raise.
            self.is_finished = True
            self.failure = error
        if self.is_finished:
            self._response.interrupt()
        return True


def tokenize(socket: str, key: str, text: str, *, add_special: bool = False) -> tuple[int, ...]:
    """Tokenize a text without parsing names of control tokens. Blocking.

    add_special: add the vocabulary's BOS and EOS tokens.
    """
    body = _encode_tokenize_body(text, add_special=add_special, parse_special=False)
    _, content = _post(socket, key, "/tokenize", body)
    return msgspec.json.decode(content, type=ServerTokens).tokens


def count_tokens(socket: str, key: str, part: Mapping[str, object]) -> int:
    """Count the tokens of a conversation with only this message part. Blocking.

    Raises: RequestError with llama.cpp's reason if it rejects the part, EngineError if
        it does not respond.
    """
    body = _encode({"messages": [{"role": "user", "content": [part]}]})
    try:
        status, content = _post(socket, key, "/chat/completions/input_tokens", body)
        if status == 200:
            return msgspec.json.decode(content, type=InputTokensResponse).input_tokens
        failure = decode_chunk(content).error
    except (HttpClientError, msgspec.DecodeError) as error:
        raise EngineError(_CONNECTION_LOST) from error
    raise RequestError("it is refused" if failure is None else failure.message)


def _build_headers(key: str) -> dict[str, str]:
    return {
        "authorization": f"Bearer {key}",
        # Not kept alive: each idle connection occupies a thread of llama.cpp.
        "connection": "close",
        "content-type": "application/json",
    }


def _encode_tokenize_body(text: str, *, add_special: bool, parse_special: bool) -> bytes:
    return _encode({"content": text, "add_special": add_special, "parse_special": parse_special})


def _post(socket: str, key: str, path: str, body: bytes) -> tuple[int, bytes]:
    """Send a request, and return the status and the body of its response. Blocking."""
    headers = _build_headers(key)
    transport = HttpClient(ClientTimeouts(read=60.0), uds=socket)
    with (
        BlockingHttpClient(transport) as client,
        client.send("POST", f"http://llama.cpp{path}", headers, body) as response,
    ):
        return response.status, response.read_all(_MAX_BODY_BYTES)
