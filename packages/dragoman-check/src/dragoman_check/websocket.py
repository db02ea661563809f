"""A WebSocket whose messages are JSON objects."""

from __future__ import annotations

import asyncio
import json

from websockets.asyncio.client import ClientConnection

from .client import Client
from .exchange import Exchange
from .rules.json_values import JsonObject, Violation, require_object

TURN_ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
"""Types of the events that end a response."""


class JsonWebSocket:
    """An open WebSocket. Its messages are recorded in the exchange, one a line."""

    def __init__(self, connection: ClientConnection, exchange: Exchange, client: Client) -> None:
        self._connection = connection
        self._exchange = exchange
        self._client = client

    async def send(self, message: JsonObject | str) -> None:
        self._client.spend(message)
        text = message if isinstance(message, str) else json.dumps(message)
        self._exchange.request += text.encode() + b"\n"
        await self._connection.send(text)

    async def receive(self) -> JsonObject:
        """Receive a message. Raises Violation if none arrives within the timeout, or if
        it is not a JSON object.
        """
        try:
            data = await asyncio.wait_for(self._connection.recv(), self._client.target.timeout)
        except (TimeoutError, OSError) as error:
            raise Violation(f"no message received: {type(error).__name__}") from None
        text = data if isinstance(data, str) else data.decode(errors="replace")
        self._exchange.body += text.encode() + b"\n"
        return require_object(json.loads(text), "the message")

    async def receive_turn(self) -> list[JsonObject]:
        """Receive the events up to the one that ends a response, or up to an error."""
        events: list[JsonObject] = []
        while not events or events[-1].get("type") not in TURN_ENDS:
            events.append(await self.receive())
        return events
