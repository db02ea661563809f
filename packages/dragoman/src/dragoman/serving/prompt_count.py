"""Counting of a conversation's tokens without an answer to it."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from ..core.request import Conversation, GenerateRequest
from ..pipeline.context_editing import build_edited_prompt
from ..pipeline.engine_backends import TokenBackend
from ..pipeline.engine_token_count import count_with_engine
from ..pipeline.foreign_reasoning import drop_foreign_reasoning
from ..pipeline.prompt_length import check_countable
from .client_warnings import WarningSource, collect_warnings
from .http_request import HttpRequest
from .request_context import build_owner_files
from .request_terms import build_terms


class ConversationCall(WarningSource, Protocol):
    """A parsed body that asks for the size of a conversation."""

    @property
    def model(self) -> str: ...

    @property
    def conversation(self) -> Conversation: ...


class PromptCount(Struct, frozen=True):
    """The number of prompt tokens that a call with the same conversation would have.

    removed: tokens that the context edits removed; None if the engine builds its own
        prompts, without edits.
    warnings: for the client.
    """

    tokens: int
    removed: int | None
    warnings: tuple[str, ...]


async def count_prompt(http: HttpRequest, call: ConversationCall) -> PromptCount:
    """Count the tokens of a conversation.

    Raises:
        RequestError: the prompt is too long, or the server is strict and there are
            warnings.
        Unsupported: the engine builds its own prompts and cannot count them.
    """
    warnings = collect_warnings(call, strict=http.service.options.strict)
    model = await http.service.models.load_and_find(call.model)
    if model.tokenizer is not None:
        check_countable(call.conversation, model.max_model_len, model.tokenizer.longest_token)
    conversation, foreign = drop_foreign_reasoning(call.conversation, model.capabilities)
    conversation = await http.service.generation.media.resolve_conversation(
        build_owner_files(http), model, conversation
    )
    # The chat template writes the special tokens itself.
    request = GenerateRequest(model.name, conversation, add_special_tokens=False)
    if not isinstance(model.backend, TokenBackend):
        count = await count_with_engine(model, request)
        return PromptCount(count, None, (*warnings, *foreign))
    _, prompted = await build_edited_prompt(model.backend, request, build_terms(http, http.id))
    removed = sum(edit.tokens for edit in prompted.applied_edits)
    return PromptCount(len(prompted.ids), removed, (*warnings, *foreign))
