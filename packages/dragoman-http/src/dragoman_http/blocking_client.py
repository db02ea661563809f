"""A client for code without an event loop, such as a command's or a thread's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from .errors import ClientClosed
from .redirects import get_following_redirects
from .response import HttpResponse
from .transport import HeaderFields, HttpTransport

_Result = TypeVar("_Result")


class BlockingResponse:
    """A response whose head has arrived. Its body is read in pieces, as they arrive."""

    def __init__(self, client: BlockingHttpClient, response: HttpResponse) -> None:
        self._client = client
        self._response = response
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces of the body. Raises HttpClientError if it is not complete."""
        while piece := self._client.run(self._response.read()):
            yield piece

    def read_all(self, max_bytes: int) -> bytes:
        """Return the body as `HttpResponse.read_all` does, with the same errors."""
        return self._client.run(self._response.read_all(max_bytes))


class BlockingHttpClient:
    """Sends requests from threads, any number at a time: the transport runs in an event
    loop that has a thread of its own. A context manager, which closes the transport.
    """

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run_loop, name="http client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def send(
        self,
        method: str,
        url: str,
        headers: HeaderFields,
        body: bytes = b"",
        *,
        read_timeout: float | None = None,
    ) -> Generator[BlockingResponse]:
        """Send a request, and yield the response once its head has arrived. Redirects
        are not followed. The arguments and errors are those of `HttpClient.send`.
        """
        with self._respond(
            self._transport.send(method, url, headers, body, read_timeout=read_timeout)
        ) as response:
            yield response

    @contextmanager
    def get_following_redirects(
        self, url: str, headers: Mapping[str, str], *, max_redirects: int
    ) -> Generator[BlockingResponse]:
        """As `send`, with the arguments and errors of the function of this name."""
        with self._respond(
            get_following_redirects(self._transport, url, headers, max_redirects=max_redirects)
        ) as response:
            yield response

    def close(self) -> None:
        """Close all connections. Running requests of other threads, and later ones, fail
        with ClientClosed.
        """
        with self._lock:
            if self._is_closed:
                return
            # Nothing is given to the loop after this, which would wait for ever.
            self._is_closed = True
            closing = asyncio.run_coroutine_threadsafe(self._transport.close(), self._loop)
        closing.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine of the transport in its event loop, and wait for it. Raises
        ClientClosed.
        """
        with self._lock:
            if self._is_closed:
                work.close()
                raise ClientClosed("the client was closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed("the client was closed") from None
        except BaseException:
            # Also after an interrupt of this thread, which must end the request.
            future.cancel()
            raise

    @contextmanager
    def _respond(self, sending: Coroutine[Any, Any, HttpResponse]) -> Generator[BlockingResponse]:
        response = self.run(sending)
        try:
            yield BlockingResponse(self, response)
        finally:
            with self._lock:
                if not self._is_closed:
                    self._loop.call_soon_threadsafe(response.close)

    def _run_loop(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_end_tasks())
            self._loop.close()


async def _end_tasks() -> None:
    """End all other tasks of this event loop, and the connections that they close."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # A transport is closed by the next turn of the loop.
    await asyncio.sleep(0)
