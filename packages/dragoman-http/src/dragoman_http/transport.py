"""The interface by which requests are sent: over connections, or in tests without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from .response import HttpResponse

HeaderFields = Mapping[str, str] | list[tuple[str, str]]
"""Headers of a request by name, or as pairs, in which a name can occur again."""


class HttpTransport(Protocol):
    """Sends requests. `HttpClient` is one, over the network; a test may have its own."""

    async def send(
        self,
        method: str,
        url: str,
        headers: HeaderFields,
        body: bytes = b"",
        *,
        read_timeout: float | None = None,
        connect_to: str | None = None,
    ) -> HttpResponse:
        """Send a request, and return the response once its head has arrived. The
        arguments and errors are those of `HttpClient.send`.
        """
        ...

    async def close(self) -> None: ...
