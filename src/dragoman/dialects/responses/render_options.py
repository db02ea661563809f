"""The response options of a Responses request, and the functions that the writer needs from the server.

Among them are the request fields that the response object repeats, identical in all events.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ..json_encoding import encode_string, encode_string_or_null
from .tools import ToolName


class Echo(Struct, frozen=True, kw_only=True):
    """The repeated fields.

    store, background, previous_response_id, conversation: the effective values, which the server decides.
    rest: all other fields as JSON, without the braces.
    """

    rest: bytes
    store: bool = True
    background: bool = False
    previous_response_id: str | None = None
    conversation: str | None = None

    def render(self) -> bytes:
        """Render the fields as JSON, without the braces."""
        conversation = (
            b"" if self.conversation is None else b',"conversation":{"id":%s}' % encode_string(self.conversation)
        )
        # The schemas require all of these keys but `conversation`, which is absent rather than null.
        return b'"previous_response_id":%s,"store":%s,"background":%s%s,%s' % (
            encode_string_or_null(self.previous_response_id), encode_bool(self.store), encode_bool(self.background),
            conversation, self.rest,
        )  # fmt: skip


def encode_bool(value: bool) -> bytes:
    return b"true" if value else b"false"


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
