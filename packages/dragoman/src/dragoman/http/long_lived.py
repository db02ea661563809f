"""Connections that carry many responses, such as WebSockets."""

from __future__ import annotations

from abc import ABC, abstractmethod


class LongLived(ABC):
    """A connection that the server asks to end when it shuts down."""

    @abstractmethod
    def shutdown(self) -> None:
        """Close the connection after the responses in progress."""
