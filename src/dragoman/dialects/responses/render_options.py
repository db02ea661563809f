"""The response options of a Responses request, and the functions that the writer needs from the server."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from .tools import ToolName


class ResponsesRenderOptions(Struct, frozen=True, kw_only=True):
    """The response options of Responses.

    logprobs: maximum alternatives for each token, None for no logprobs.
    as_summary: render reasoning as a summary.
    hide_reasoning: omit reasoning.
    tool_names: of the tools in namespaces, and of those that OpenAI defines and the client runs.
    seal_reasoning: encrypts reasoning; None if not requested or if there is no key.
    now: returns Unix seconds, for `completed_at`.
    wrap_seal: encrypts reasoning that has a seal: its text and seal. None if there is no key.
    seal_compaction: encrypts the summary if the response is a compaction.
    """

    logprobs: int | None = None
    as_summary: bool = False
    hide_reasoning: bool = False
    tool_names: tuple[ToolName, ...] = ()
    seal_reasoning: Callable[[str], str] | None = None
    wrap_seal: Callable[[str, str], str] | None = None
    now: Callable[[], int] | None = None
    seal_compaction: Callable[[str], str] | None = None
