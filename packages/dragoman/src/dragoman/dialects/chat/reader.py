"""Parses a Chat Completions body into a ChatCall."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Raw, Struct

from ...core.errors import RequestError
from ...core.field_names import CORE_NAMES, FieldNames
from ...core.message import Tool, ToolChoice
from ...core.request import Conversation, GenerateRequest, ReasoningOptions, TemplateOptions
from ..chunk_envelope import ResponseId
from ..constraint_fields import read_constraint_fields
from ..field_errors import check_one_of, invalid_value, missing_parameter
from ..generation_fields import (
    check_logprobs,
    check_metadata,
    check_service_tier,
    read_thinking_switch,
    resolve_model,
)
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..request_body import BodySchema, ParsedBody, read_json_object
from ..unknown_fields import MAX_UNKNOWN
from .messages import read_messages
from .stored_chat import ChatCall, StoredChatFields, encode_metadata
from .tool_reader import read_functions, read_tool_choice, read_tools
from .wire import (
    CHAT,
    CHAT_NESTED,
    ChatBody,
    ChatMessageFields,
    ChatMessageList,
    ChatTemplateFields,
    ChatWireMessage,
)
from .writer import REASONING_FIELDS, ChatRenderOptions, ChatWriter

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
ID_PREFIX = "chatcmpl-"

# Some fields have a current and a legacy name. Errors and warnings after parsing use
# the one that the client sent.
_CURRENT_NAMES = (("max_tokens", "max_completion_tokens"),)
_LEGACY_NAMES = (
    (r"tools(\[\d+\])\.function", r"functions\1"),
    ("tools", "functions"),
    ("tool_choice", "function_call"),
)
_FIELD_NAMES = {
    (False, False): CORE_NAMES,
    (True, False): FieldNames(*_CURRENT_NAMES),
    (False, True): FieldNames(*_LEGACY_NAMES),
    (True, True): FieldNames(*_CURRENT_NAMES, *_LEGACY_NAMES),
}
"""The names by whether the body has `max_completion_tokens`, and whether it has
`functions`.
"""

_BODY = BodySchema(ChatBody, CHAT_NESTED)
_TEMPLATE_FIELDS = BodySchema(ChatTemplateFields, CHAT_NESTED)
_MESSAGES = BodySchema(ChatMessageFields, CHAT_NESTED)
_message_decoder = msgspec.json.Decoder(ChatMessageList)


class _ChatPlan(Struct, frozen=True):
    """What the fields of a body besides `messages` say.

    conversation: without messages.
    asks_generation: `add_generation_prompt` is true, not merely absent.
    request: without its prompt.
    metadata: to store with the completion; None if it is not stored.
    """

    conversation: Conversation
    asks_generation: bool
    request: GenerateRequest
    stream: bool
    writer: Callable[[Header], ChatWriter]
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]
    field_names: FieldNames
    metadata: Raw | None


def read_chat(
    data: bytes, options: ReaderOptions, *, reasoning_fields: tuple[str, ...] = REASONING_FIELDS
) -> GenerationCall:
    """Parse a body without the fields to store; see `read_chat_call`."""
    return read_chat_call(data, options, reasoning_fields=reasoning_fields).call


def read_chat_call(
    data: bytes, options: ReaderOptions, *, reasoning_fields: tuple[str, ...] = REASONING_FIELDS
) -> ChatCall:
    """Parse a Chat Completions body. Raises only RequestError.

    reasoning_fields: names of the reasoning fields in the response.
    """
    parsed = ParsedBody(data)
    # Checked before decoding, whose error cannot name the right route: Cursor posts
    # Responses bodies here (CLIProxyAPI#658).
    if "messages" not in parsed.fields:
        raise build_missing_messages_error(parsed.fields)
    plan = _find_plan(parsed.fields, options, reasoning_fields)
    messages = parsed.decode_field("messages", _message_decoder, _MESSAGES)
    unknown = _MESSAGES.nested.find_unknown(parsed.fields)
    warnings = [*plan.warnings]
    conversation = add_messages(
        plan.conversation,
        messages,
        warnings,
        asks_generation=plan.asks_generation,
        keeps_seal=options.keeps_seal,
    )
    call = GenerationCall(
        (msgspec.structs.replace(plan.request, prompt=conversation),),
        plan.stream,
        ID_PREFIX,
        plan.writer,
        tuple(warnings),
        (*plan.unknown, *unknown)[:MAX_UNKNOWN] if unknown else plan.unknown,
        field_names=plan.field_names,
    )
    if plan.metadata is None:
        return ChatCall(call, None)
    # The store keeps `messages` as the client sent them. Decoding has already checked
    # that they are a list.
    raw_messages = msgspec.json.decode(parsed.fields["messages"], type=tuple[Raw, ...])
    return ChatCall(call, StoredChatFields(raw_messages, plan.metadata))


def _find_plan(
    fields: Mapping[str, Raw], options: ReaderOptions, reasoning_fields: tuple[str, ...]
) -> _ChatPlan:
    """Return the plan of a body's fields. Raises RequestError."""
    return options.plans.find_or_build(
        _ChatPlan,
        fields,
        ("messages",),
        # The options are those of one owner.
        (reasoning_fields, options),
        lambda data: _build_plan(data, options, reasoning_fields),
    )


def _build_plan(
    data: bytes, options: ReaderOptions, reasoning_fields: tuple[str, ...]
) -> _ChatPlan:
    """data: the body without `messages`."""
    parsed = ParsedBody(data)
    # Two structs, because /tokenize has only the fields of the second.
    body = parsed.decode(_BODY)
    prompting = parsed.decode(_TEMPLATE_FIELDS)
    warnings, unknown = CHAT.classify_body(parsed, _BODY, _TEMPLATE_FIELDS)
    check_metadata(body.metadata)
    check_service_tier(body.service_tier, warnings)
    if (
        body.verbosity is not None
        and check_one_of(body.verbosity, ("low", "medium", "high"), "verbosity") != "medium"
    ):
        warnings.append("verbosity is ignored; ask for the desired length in the prompt")
    conversation = _read_conversation(body, prompting, warnings)
    request = _build_request(body, options, conversation)
    render_options = _build_render_options(
        body, options, request, conversation.tool_choice, reasoning_fields
    )
    id = ResponseId(ID_PREFIX, None if body.store else body.request_id)
    if body.store and body.request_id is not None:
        warnings.append("request_id is ignored: the server assigns the id of a stored completion")

    def writer(header: Header) -> ChatWriter:
        return ChatWriter(id.apply_to(header), render_options)

    return _ChatPlan(
        conversation,
        bool(prompting.add_generation_prompt),
        request,
        bool(body.stream),
        writer,
        tuple(warnings),
        unknown,
        _FIELD_NAMES[body.max_completion_tokens is not None, bool(body.functions)],
        encode_metadata(body.metadata) if body.store else None,
    )


def build_missing_messages_error(fields: dict[str, Raw]) -> RequestError:
    if "input" in fields:
        return missing_parameter(
            "messages", " A body with 'input' is a Responses request: POST it to /v1/responses."
        )
    if "prompt" in fields:
        return missing_parameter(
            "messages",
            " A body with 'prompt' is a Completions request: POST it to /v1/completions.",
        )
    return missing_parameter("messages")


def read_template_fields(body: ChatTemplateFields, tools: tuple[Tool, ...]) -> Conversation:
    """Parse the template options into a conversation without messages."""
    continues = bool(body.continue_final_message)
    template = TemplateOptions(
        kwargs=read_json_object(body.chat_template_kwargs, "chat_template_kwargs"),
        documents=None if body.documents is None else msgspec.json.encode(body.documents).decode(),
        template=body.chat_template,
        add_generation_prompt=not continues and body.add_generation_prompt is not False,
        continue_final_message=continues,
    )
    reasoning = ReasoningOptions(enabled=read_thinking_switch(body.chat_template_kwargs))
    return Conversation((), tools, template=template, reasoning=reasoning)


def add_messages(
    conversation: Conversation,
    wire_messages: list[ChatWireMessage],
    warnings: list[str],
    *,
    asks_generation: bool,
    keeps_seal: bool = False,
) -> Conversation:
    """Parse the messages and add them to a conversation. Raises RequestError.

    asks_generation: the body demands a generation prompt.
    keeps_seal: as in ReaderOptions.
    """
    messages = read_messages(wire_messages, warnings, keeps_seal=keeps_seal)
    template = conversation.template
    param = "continue_final_message" if template.continue_final_message else None
    last = len(wire_messages) - 1
    for number, message in enumerate(wire_messages):
        if message.prefix or message.partial:
            flag = f"messages[{number}].{'prefix' if message.prefix else 'partial'}"
            if number == last:
                param = param or flag
            else:
                warnings.append(f"{flag} is ignored: only the last message can be continued")
    if param is None:
        return msgspec.structs.replace(conversation, messages=messages)
    if asks_generation:
        raise invalid_value(param, "it cannot be true together with 'add_generation_prompt'")
    if wire_messages[-1].role != "assistant":
        raise invalid_value(param, "the last message must be the assistant's")
    return msgspec.structs.replace(
        conversation,
        messages=messages,
        template=msgspec.structs.replace(
            template, add_generation_prompt=False, continue_final_message=True
        ),
    )


def _read_conversation(
    body: ChatBody, prompting: ChatTemplateFields, warnings: list[str]
) -> Conversation:
    if prompting.tools and body.functions:
        raise RequestError(
            "'functions' is the old form of 'tools'; send only one of them.", param="functions"
        )
    tools = (
        read_functions(body.functions)
        if body.functions
        else read_tools(prompting.tools or (), warnings)
    )
    conversation = read_template_fields(prompting, tools)
    effort = body.reasoning_effort
    budget = body.thinking_token_budget
    is_enabled = conversation.reasoning.enabled
    if effort is not None:
        check_one_of(effort, EFFORTS, "reasoning_effort")
    # A switch in `chat_template_kwargs` takes precedence over the effort because it is
    # more specific.
    if is_enabled is None and effort == "none":
        is_enabled = False
    # An answer in the legacy format has only one `function_call`, so `functions` rule
    # out parallel calls.
    return msgspec.structs.replace(
        conversation,
        tool_choice=read_tool_choice(body, tools),
        parallel_tool_calls=body.parallel_tool_calls is not False and not body.functions,
        reasoning=ReasoningOptions(is_enabled, effort, None if budget == -1 else budget),
    )


def _build_request(
    body: ChatBody, options: ReaderOptions, conversation: Conversation
) -> GenerateRequest:
    logprobs = check_logprobs(body.top_logprobs, "top_logprobs")
    prompt_logprobs = body.read_prompt_logprobs()
    if logprobs and not body.logprobs:
        raise RequestError(
            "'top_logprobs' needs 'logprobs' to be true.",
            param="top_logprobs",
            code="invalid_value",
        )
    logprobs = (logprobs or 0) if body.logprobs else None
    max_tokens_name = (
        "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    )
    max_tokens = (
        body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    )
    if max_tokens == 0:
        raise invalid_value(max_tokens_name, "expected -1 or an integer >= 1")
    constraint, constraint_param = read_constraint_fields(body)
    return GenerateRequest(
        model=resolve_model(body.model, options),
        prompt=conversation,
        choices=body.read_choice_count(options),
        sampling=body.build_sampling(),
        limits=body.read_limits(options, None if max_tokens == -1 else max_tokens, max_tokens_name),
        constraint=constraint,
        constraint_param=constraint_param,
        logprobs=logprobs,
        logprob_ids=body.read_logprob_ids(logprobs),
        prompt_logprobs=prompt_logprobs,
        return_prompt=bool(body.return_token_ids or body.return_prompt_text)
        or prompt_logprobs is not None,
        special_tokens_in_text=body.skip_special_tokens is False,
        add_special_tokens=bool(body.add_special_tokens),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        extras=body.build_extras(),
    )


def _build_render_options(
    body: ChatBody,
    options: ReaderOptions,
    request: GenerateRequest,
    choice: ToolChoice,
    reasoning_fields: tuple[str, ...],
) -> ChatRenderOptions:
    include_usage, continuous_usage = body.read_usage_options()
    return ChatRenderOptions(
        profile=options.profile,
        # The requested ids, and the sampled token.
        logprobs=len(body.logprob_token_ids) + 1 if body.logprob_token_ids else request.logprobs,
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=options.tokens_as_ids
        if body.return_tokens_as_token_ids is None
        else body.return_tokens_as_token_ids,
        prompt_logprobs=body.prompt_logprobs,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        service_tier=body.service_tier is not None,
        weight_versions=bool(body.return_weight_versions),
        prompt_text=bool(body.return_prompt_text),
        reasoning_fields=reasoning_fields if body.include_reasoning is not False else (),
        is_named_choice=choice.is_named,
        legacy_functions=bool(body.functions),
    )
