"""A Chat Completions body to a Call."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from ...core.errors import RequestError
from ...core.message import Message, Role, Tool, ToolChoice
from ...core.request import Conversation, GenerateRequest, ReasoningOptions, TemplateOptions
from ..base import Call, Header, ReaderOptions
from ..body import Body, Shape, invalid, json_text, missing, one_of
from ..constraints import read_constraint
from ..envelope import AnswerId
from ..fields import alternatives, check_metadata, check_service_tier, model_of
from ..thinking import thinking_switch
from .messages import read_messages
from .parameters import CHAT
from .stored import ChatCall, ToKeep, metadata_json
from .tools import read_functions, read_tool_choice, read_tools
from .wire import ChatBody, Prompting, WireTool
from .writer import REASONING_FIELDS, ChatView, ChatWriter

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
ID_PREFIX = "chatcmpl-"

_BODY, _PROMPTING = Shape(ChatBody), Shape(Prompting)


def read_chat(data: bytes, options: ReaderOptions, *, reasoning_fields: tuple[str, ...] = REASONING_FIELDS) -> Call:
    """The call alone; see `read_chat_call`."""
    return read_chat_call(data, options, reasoning_fields=reasoning_fields).call


def read_chat_call(
    data: bytes, options: ReaderOptions, *, reasoning_fields: tuple[str, ...] = REASONING_FIELDS
) -> ChatCall:
    """reasoning_fields: the names under which reasoning goes out. Raises RequestError, and nothing else."""
    parsed = Body(data)
    require_messages(parsed.fields)
    body, prompting = parsed.read(_BODY), parsed.read(_PROMPTING)
    warnings, unknown = CHAT.judge(parsed.others(_BODY.names, _PROMPTING.names))
    check_metadata(body.metadata)
    check_service_tier(body.service_tier, warnings)
    _check_verbosity(body.verbosity, warnings)
    conversation = _conversation(body, prompting, warnings)
    request = _request(body, options, conversation)
    view = _view(body, options, conversation.tool_choice, reasoning_fields)
    id = AnswerId(ID_PREFIX, None if body.store else body.request_id)
    if body.store and body.request_id is not None:
        warnings.append("request_id is ignored: the server assigns the id of a stored completion")

    def writer(header: Header) -> ChatWriter:
        return ChatWriter(id.over(header), view)

    call = Call((request,), bool(body.stream), ID_PREFIX, writer, tuple(warnings), unknown)
    return ChatCall(call, _kept(body, parsed.fields) if body.store else None)


def _kept(body: ChatBody, fields: dict[str, Raw]) -> ToKeep:
    """`messages` has been read before, so it is a list."""
    return ToKeep(msgspec.json.decode(fields["messages"], type=tuple[Raw, ...]), metadata_json(body.metadata))


def require_messages(fields: dict[str, Raw]) -> None:
    if "messages" in fields:
        return
    if "input" in fields:
        raise missing("messages", " A body with 'input' is a Responses request: POST it to /v1/responses.")
    if "prompt" in fields:
        raise missing("messages", " A body with 'prompt' is a Completions request: POST it to /v1/completions.")
    raise missing("messages")


def read_prompting(body: Prompting, tools: tuple[Tool, ...]) -> Conversation:
    """Messages and what the template is told: the part that /tokenize shares."""
    messages = read_messages(body.messages)
    template = TemplateOptions(
        kwargs=json_text(body.chat_template_kwargs, "chat_template_kwargs"),
        documents=None if body.documents is None else msgspec.json.encode(body.documents).decode(),
        template=body.chat_template,
        add_generation_prompt=_add_generation_prompt(body, messages),
        continue_final_message=bool(body.continue_final_message),
    )
    reasoning = ReasoningOptions(enabled=thinking_switch(body.chat_template_kwargs))
    return Conversation(messages, tools, template=template, reasoning=reasoning)


def declared_tools(tools: list[WireTool] | None, warnings: list[str]) -> tuple[Tool, ...]:
    return read_tools(tools or (), warnings)


def _conversation(body: ChatBody, prompting: Prompting, warnings: list[str]) -> Conversation:
    if prompting.tools and body.functions:
        raise RequestError("'functions' is the old form of 'tools'; send only one of them.", param="functions")
    tools = read_functions(body.functions) if body.functions else declared_tools(prompting.tools, warnings)
    conversation = read_prompting(prompting, tools)
    return msgspec.structs.replace(
        conversation,
        tool_choice=read_tool_choice(body, tools),
        parallel_tool_calls=body.parallel_tool_calls is not False and not body.functions,
        reasoning=_reasoning(body, conversation.reasoning.enabled),
    )


def _reasoning(body: ChatBody, switch: bool | None) -> ReasoningOptions:
    """The template's own switch, where it was set, says more exactly than an effort what is wanted."""
    effort = body.reasoning_effort
    if effort is not None:
        one_of(effort, EFFORTS, "reasoning_effort")
    enabled = False if switch is None and effort == "none" else switch
    budget = body.thinking_token_budget
    return ReasoningOptions(enabled, effort, None if budget == -1 else budget)


def _check_verbosity(verbosity: str | None, warnings: list[str]) -> None:
    if verbosity is not None and one_of(verbosity, ("low", "medium", "high"), "verbosity") != "medium":
        warnings.append("verbosity is ignored; ask for the desired length in the prompt")


def _add_generation_prompt(body: Prompting, messages: tuple[Message, ...]) -> bool:
    if not body.continue_final_message:
        return body.add_generation_prompt is not False
    if body.add_generation_prompt:
        raise invalid("continue_final_message", "it cannot be true together with 'add_generation_prompt'")
    if messages[-1].role is not Role.ASSISTANT:
        raise invalid("continue_final_message", "the last message must be the assistant's")
    return False


def _request(body: ChatBody, options: ReaderOptions, conversation: Conversation) -> GenerateRequest:
    scored = body.scored_prompt()
    return GenerateRequest(
        model=model_of(body.model, options),
        prompt=conversation,
        choices=body.choices(options),
        sampling=body.sampling(),
        limits=body.limits(options, _max_tokens(body)),
        constraint=read_constraint(body),
        logprobs=_logprobs(body),
        prompt_logprobs=scored,
        return_prompt=bool(body.return_token_ids or body.return_prompt_text) or scored is not None,
        special_tokens_in_text=body.skip_special_tokens is False,
        add_special_tokens=bool(body.add_special_tokens),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        extras=body.extras(),
    )


def _max_tokens(body: ChatBody) -> int | None:
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if most == 0:
        raise invalid(name, "expected -1 or an integer >= 1")
    return None if most == -1 else most


def _logprobs(body: ChatBody) -> int | None:
    top = alternatives(body.top_logprobs, "top_logprobs")
    if body.logprobs:
        return top or 0
    if top:
        raise RequestError("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs", code="invalid_value")
    return None


def _view(body: ChatBody, options: ReaderOptions, choice: ToolChoice, reasoning_fields: tuple[str, ...]) -> ChatView:
    include_usage, continuous_usage = body.includes_usage()
    return ChatView(
        profile=options.profile,
        logprobs=_logprobs(body),
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        prompt_logprobs=body.prompt_logprobs,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        service_tier=body.service_tier is not None,
        weight_versions=bool(body.return_weight_versions),
        prompt_text=bool(body.return_prompt_text),
        reasoning_fields=reasoning_fields if body.include_reasoning is not False else (),
        named_choice=choice.named,
        legacy_functions=bool(body.functions),
    )
