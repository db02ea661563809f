"""Commands for the ports of simulated servers: refuse, reset or hang. Independent of
sockets and routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct

ListenState = Literal["listening", "closed", "resetting", "hanging"]
"""The handling of new connections: served, refused, accepted and reset, or accepted
without a response.
"""

OpenConnectionPolicy = Literal["cut", "finish"]
"""The handling of connections with a response in progress: reset at once, or closed
after the response.
"""

MAX_SECONDS = 86400


class PortCommand(Struct, frozen=True, forbid_unknown_fields=True):
    """A command that sets a port's state for a period.

    state: handling of new connections.
    running: handling of connections with a response in progress; None means `cut`.
    after: seconds until the period starts.
    seconds: duration of the period; None means until the next command.
    port: the affected port; None means the port that received the request.
    """

    state: ListenState
    running: OpenConnectionPolicy | None = None
    after: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] = 0.0
    seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    port: int | None = None

    def __post_init__(self) -> None:
        if self.state == "listening" and (self.running, self.seconds) != (None, None):
            raise ValueError("running and seconds cannot be combined with the state listening")


class PortState(Struct, frozen=True):
    """A port's current state.

    planned: number of scheduled state changes.
    """

    port: int
    state: ListenState
    planned: int


class PortController(Protocol):
    """Controls the ports of a process through one of its servers. Called on the
    server's event loop.
    """

    def states(self) -> Sequence[PortState]:
        """Return the states of the ports, in the order of the servers."""
        ...

    async def apply(self, commands: Sequence[PortCommand], client: tuple[str, int] | None) -> None:
        """Replace the schedules of the affected ports; a port listens whenever no
        command applies.

        client: the administrator's address; its connection is closed after the response
            and never reset.

        Raises:
            RequestError: a command is invalid; nothing has changed.
            Conflict: a port cannot be bound again.
        """
        ...
