"""What the client asked to see, and what the server lends the writer."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from .tools import ToolName


class ResponsesRenderOptions(Struct, frozen=True, kw_only=True):
    """logprobs: most alternatives a token, None for no logprobs. summary: reasoning comes as a summary.

    hide_reasoning: it does not come at all. names: of the tools in groups. seal: makes the encrypted content of a
    thought, None where nobody asked for it or there is no key. now: Unix seconds, for `completed_at`. compact: makes
    the content of a compaction, where the answer is to be one.
    """

    logprobs: int | None = None
    as_summary: bool = False
    hide_reasoning: bool = False
    tool_names: tuple[ToolName, ...] = ()
    seal_reasoning: Callable[[str], str] | None = None
    now: Callable[[], int] | None = None
    seal_compaction: Callable[[str], str] | None = None
