"""What the ports of simulated servers can be ordered to do: refuse, reset, keep silent. Knows no socket, no route."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct

ListenState = Literal["listening", "closed", "resetting", "hanging"]
"""What becomes of a connection: it is served, it is refused, it is taken and reset, it is taken and nothing is said."""

OpenConnectionPolicy = Literal["cut", "finish"]
"""What becomes of what is being answered then: its connection is reset, or closed once it is answered."""

MAX_SECONDS = 86400


class PortCommand(Struct, frozen=True, forbid_unknown_fields=True):
    """What a port does, `after` so many seconds and for so many; seconds: None is until it is ordered otherwise.

    running: None is `cut`. port: None is the one that was asked.
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
    """planned: changes that are still to come."""

    port: int
    state: ListenState
    planned: int


class PortController(Protocol):
    """The ports of a process, as one of its servers knows them. Called on the server's event loop."""

    def states(self) -> Sequence[PortState]:
        """In the order of the servers."""
        ...

    async def apply(self, commands: Sequence[PortCommand], client: tuple[str, int] | None) -> None:
        """In place of all that was ordered of these ports before; a port listens where none of them holds.

        client: whoever orders; its connection is closed when it was answered, and not cut.
        Raises RequestError, and nothing has changed; or Conflict for a port that cannot be had again.
        """
        ...
