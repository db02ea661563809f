"""What every dialect is: a reader (bytes -> canonical) and a writer (canonical -> bytes), both pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from ..core.errors import DragomanError
from ..core.events import Event
from ..core.reply import Reply
from ..core.request import GenerateRequest
from .sealing import SealingKey


class Profile(StrEnum):
    """Which optional fields appear: OpenAI's own, or those that vLLM adds."""

    OPENAI = "openai"
    VLLM = "vllm"


class Header(Struct, frozen=True):
    """Fixed once per answer, so that no two chunks can disagree. created: Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str | None = None


class Writer(Protocol):
    """One answer. Streamed or whole, it is the same writer and the same fold."""

    def feed(self, event: Event) -> bytes:
        """Whole server-sent events for one canonical event; may be empty."""
        ...

    def render_full(self, reply: Reply) -> bytes:
        """The same answer as one JSON object."""
        ...

    def render_error(self, error: DragomanError) -> bytes:
        """The terminal events of an answer that failed after it had begun."""
        ...

    @property
    def end(self) -> bytes:
        """What closes a stream that did not fail: `data: [DONE]` or nothing."""
        ...

    @property
    def keepalive(self) -> bytes:
        """What keeps this dialect's clients waiting during a silence."""
        ...


class GenerationCall(Struct, frozen=True):
    """What a reader made of a body.

    requests: one a prompt, in order; all with the same number of choices. id_prefix: what the answer's id
    begins with; tool_prefix: the same of its tool calls. warnings: what was ignored and why, for people.
    unknown: names of fields that nobody knows.
    """

    requests: tuple[GenerateRequest, ...]
    stream: bool
    id_prefix: str
    writer: Callable[[Header], Writer]
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    tool_prefix: str = "call_"


class ReaderOptions(Struct, frozen=True):
    """What the server's settings change about reading, and who sent what is read.

    max_stop: most stop strings of a request. default_model: the model when a body names none; None makes `model`
    required. sealing: the server's key in the caller's hands; None is a server without one. drop_nonces: leave out
    what agents are known to put in front of a prompt anew with every request.
    """

    profile: Profile = Profile.OPENAI
    default_model: str | None = None
    max_stop: int = 16
    max_n: int = 128
    sealing_key: SealingKey | None = None
    drop_nonces: bool = True
