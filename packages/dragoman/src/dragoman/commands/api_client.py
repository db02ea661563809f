"""A client for the commands that works with any OpenAI-compatible server, not only
Dragoman.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from dragoman_http import BlockingResponse

CONNECT_TIMEOUT = 10.0
"""Seconds to wait for a connection."""
QUERY_TIMEOUT = 10.0
"""Seconds to wait for a response without generated text. Another program on this port
might never respond.
"""
MAX_BODY_BYTES = 256 << 20
"""Of a response that is read whole."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ApiError(Exception):
    """A failed request. The message is the server's if it sent one.

    is_unreachable: the connection was refused or lost.
    """

    def __init__(self, message: str, *, is_unreachable: bool = False) -> None:
        super().__init__(message)
        self.is_unreachable = is_unreachable


class ServedModelInfo(Struct, frozen=True):
    """Fields of a listed model that only Dragoman sends.

    capabilities: None until the model has been loaded once.
    """

    state: str = "loaded"
    aliases: tuple[str, ...] = ()
    capabilities: tuple[str, ...] | None = None


class ListedModel(Struct, frozen=True):
    """An entry of /v1/models.

    max_model_len: the context length in tokens, if the server states it.
    """

    id: str
    max_model_len: int | None = None
    dragoman: ServedModelInfo | None = None


class _ModelList(Struct):
    data: tuple[ListedModel, ...] = ()


class _FunctionDelta(Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCallDelta(Struct):
    index: int = 0
    id: str | None = None
    function: _FunctionDelta | None = None


class _Delta(Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[_ToolCallDelta, ...] | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _ErrorDetail(Struct):
    message: str = ""


class _ErrorBody(Struct):
    # OpenAI sends an object; other servers, such as TGI, a string.
    error: _ErrorDetail | str | None = None


class _Chunk(_ErrorBody):
    choices: tuple[_Choice, ...] = ()


class TextPiece(Struct, frozen=True):
    """A piece of the answer's text or of its reasoning."""

    kind: Literal["text", "reasoning"]
    text: str


class ToolCallPiece(Struct, frozen=True):
    """A piece of a tool call. The first piece of each index has the id and the name."""

    index: int
    id: str | None
    name: str | None
    arguments: str


class AnswerEnd(Struct, frozen=True):
    """The end of an answer.

    reason: OpenAI's finish reason, such as `stop`, `length`, `tool_calls` or
        `content_filter`.
    """

    reason: str


Piece = TextPiece | ToolCallPiece | AnswerEnd


class ApiClient:
    """A client of one server. Use it in a `with` statement, which closes its
    connections.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Create the client. url: base URL, with or without `/v1`."""
        from dragoman_http import (  # noqa: PLC0415 - imports inside the functions keep `--help` fast
            BlockingHttpClient,
            ClientTimeouts,
            HttpClient,
            ProxyRules,
        )

        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        transport = HttpClient(
            # A model may reason for minutes before the first token.
            ClientTimeouts(connect=CONNECT_TIMEOUT, read=inf),
            # A proxy cannot reach this machine's loopback addresses.
            proxies=ProxyRules({}) if is_loopback(url) else None,
        )
        self._client = BlockingHttpClient(transport)

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def is_ready(self) -> bool:
        """Whether a Dragoman server is ready for requests. Raises ApiError."""
        with self._send("GET", "/readyz", timeout=QUERY_TIMEOUT) as response:
            return response.status == 200

    def list_models(self) -> tuple[ListedModel, ...]:
        """List the server's models. Raises ApiError."""
        with self._send("GET", "/v1/models", timeout=QUERY_TIMEOUT) as response:
            return self._decode(_read_body(response), _ModelList).data

    def create_chat_completion(self, body: Mapping[str, Any]) -> bytes:
        """Return the body of the response, undecoded. Raises ApiError."""
        with self._send("POST", "/v1/chat/completions", body) as response:
            return _read_body(response)

    def stream_chat_completion(self, body: Mapping[str, Any]) -> Generator[Piece]:
        """Yield the pieces of an answer as they arrive; the last one is its end.
        Closing the generator cancels it.

        Raises:
            ApiError: before the first piece or between two of them.
        """
        from dragoman_http import HttpClientError  # noqa: PLC0415 - as above

        with self._send("POST", "/v1/chat/completions", {**body, "stream": True}) as response:
            # `_read_body` raises ApiError: the body of an error is JSON, not a stream.
            if response.status != 200:
                _read_body(response)
            try:
                yield from self._read_pieces(response)
            except HttpClientError as error:
                raise ApiError(
                    f"the connection to {self.url} was lost: {error}", is_unreachable=True
                ) from error

    def _read_pieces(self, response: BlockingResponse) -> Iterator[Piece]:
        from dragoman_http import SseDecoder  # noqa: PLC0415 - as above

        decoder = SseDecoder()
        for event in (event for piece in response for event in decoder.feed(piece)):
            if event == b"[DONE]":
                continue
            chunk = self._decode(event, _Chunk)
            if chunk.error is not None:
                raise ApiError(_format_error(chunk.error))
            for choice in chunk.choices:
                delta = choice.delta or _Delta()
                # Servers use either name, and some send the same text in both fields.
                reasoning = delta.reasoning_content or delta.reasoning
                if reasoning:
                    yield TextPiece("reasoning", reasoning)
                # A refusal replaces the content.
                text = delta.content or delta.refusal
                if text:
                    yield TextPiece("text", text)
                for call in delta.tool_calls or ():
                    function = call.function or _FunctionDelta()
                    yield ToolCallPiece(
                        call.index, call.id, function.name, function.arguments or ""
                    )
                if choice.finish_reason is not None:
                    yield AnswerEnd(choice.finish_reason)
                    # Usage and `[DONE]` may follow; they are not needed.
                    return
        raise ApiError("the response ended before it was complete")

    def _decode(self, data: bytes, kind: type[Any]) -> Any:  # noqa: ANN401 - of this kind
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise ApiError(f"{self.url} is not an OpenAI-compatible server: {error}") from error

    @contextmanager
    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> Generator[BlockingResponse]:
        """Send a request. Raises ApiError if there is no response.

        timeout: seconds without data; None is no limit.
        """
        from dragoman_http import ConnectFailed, HttpClientError  # noqa: PLC0415 - as above

        headers = self._headers
        if body is not None:
            headers = {**headers, "content-type": "application/json"}
        content = b"" if body is None else msgspec.json.encode(body)
        try:
            with self._client.send(
                method, self.url + path, headers, content, read_timeout=timeout
            ) as response:
                yield response
        except ConnectFailed as error:
            raise ApiError(
                f"no server answers at {self.url}: {error}", is_unreachable=True
            ) from error
        except (HttpClientError, ValueError) as error:
            raise ApiError(
                f"{self.url}: {str(error) or type(error).__name__}",
                is_unreachable=isinstance(error, HttpClientError),
            ) from error


def is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _read_body(response: BlockingResponse) -> bytes:
    """Read the body of a response. Raises ApiError if the status is not 200."""
    data = response.read_all(MAX_BODY_BYTES)
    if len(data) > MAX_BODY_BYTES:
        raise ApiError(f"the response has more than {MAX_BODY_BYTES >> 20} MiB")
    if response.status == 200:
        return data
    try:
        error = msgspec.json.decode(data, type=_ErrorBody).error
    except msgspec.DecodeError:
        error = None
    from http.client import responses  # noqa: PLC0415 - as above

    phrase = responses.get(response.status, "the request failed")
    detail = _format_error(error) if error is not None else phrase
    raise ApiError(f"{detail} (HTTP {response.status})")


def _format_error(error: _ErrorDetail | str) -> str:
    return error if isinstance(error, str) else error.message
