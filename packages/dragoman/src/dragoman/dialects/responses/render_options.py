"""Options of rendering a response, with the request fields that it repeats."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ..json_encoding import encode_string, encode_string_or_null
from .tool_registry import ToolName


class Echo(Struct, frozen=True, kw_only=True):
    """The request fields that the response object repeats.

    store, background, previous_response_id, conversation: the effective values, which
        the server decides.
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
            b""
            if self.conversation is None
            else b',"conversation":{"id":%s}' % encode_string(self.conversation)
        )
        # The schemas require all of these keys but `conversation`, which is absent
        # rather than null.
        return b'"previous_response_id":%s,"store":%s,"background":%s%s,%s' % (
            encode_string_or_null(self.previous_response_id), encode_bool(self.store),
            encode_bool(self.background),
            conversation, self.rest,
        )  # fmt: skip


def encode_bool(value: bool) -> bytes:
    return b"true" if value else b"false"


class ResponsesRenderOptions(Struct, frozen=True, kw_only=True):
    """Options of rendering a response.

    logprobs: maximum alternatives for each token, None for no logprobs.
    as_summary: render reasoning as a summary.
    hide_reasoning: omit reasoning.
    tool_names: names of tools in namespaces, and of the tools that OpenAI defines and
        the client runs.
    seal_reasoning: encrypts reasoning; None if not requested or if there is no key.
    wrap_seal: encrypts reasoning that has a seal: its text and seal. None if there is
        no key.
    now: returns Unix seconds, for `completed_at`.
    seal_compaction: encrypts the summary; None if the response is not a compaction.
    include_sources: return the links that a search has found.
    include_file_results: return what a file search has found.
    include_code_outputs: return the output of code.
    partial_images: maximum drafts of an image that are sent as events.
    """

    logprobs: int | None = None
    as_summary: bool = False
    hide_reasoning: bool = False
    tool_names: tuple[ToolName, ...] = ()
    seal_reasoning: Callable[[str], str] | None = None
    wrap_seal: Callable[[str, str], str] | None = None
    now: Callable[[], int] | None = None
    seal_compaction: Callable[[str], str] | None = None
    include_sources: bool = False
    include_file_results: bool = False
    include_code_outputs: bool = False
    partial_images: int = 0
