"""A canonical request as the body of one to an upstream. Pure: it asks for a stream, and sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ...core.errors import RequestError, Unsupported
from ...core.message import CustomTool, FunctionTool, Tool, ToolChoice
from ...core.request import (
    Choices,
    Constraint,
    ContextFree,
    Conversation,
    GenerateRequest,
    JsonObject,
    JsonSchema,
    Limits,
    Regex,
    SamplingOptions,
)
from .kinds import Kind
from .messages import wire_messages

Fields = Iterator[tuple[str, Any]]


class Ask(Struct, frozen=True):
    """What is posted. path: behind the base URL."""

    path: str
    body: bytes


class Defaults(Struct, frozen=True):
    """What this server's own settings say where a request says nothing."""

    sampling: SamplingOptions = SamplingOptions()
    max_tokens: int | None = None


def encode(request: GenerateRequest, kind: Kind, model: str, defaults: Defaults) -> Ask:
    """Raises Unsupported for what cannot be said to this kind of server, and RequestError for what no JSON can hold."""
    _refuse(request, kind)
    body = {"model": model, "stream": True, **dict(_common(request, kind, defaults))}
    if isinstance(request.prompt, Conversation):
        path, rest = "/chat/completions", _chat(request, request.prompt, kind, defaults)
    else:
        path, rest = "/completions", _completion(request, request.prompt, kind, defaults)
    body |= rest
    try:
        return Ask(path, msgspec.json.encode(body))
    except UnicodeEncodeError:
        raise RequestError("The request holds text that is not valid Unicode.") from None


def _refuse(request: GenerateRequest, kind: Kind) -> None:
    if request.return_prompt and not (kind.token_ids and not isinstance(request.prompt, tuple)):
        raise Unsupported(
            "The upstream does not return the tokens of this prompt (echo, return_token_ids).",
            param="return_token_ids",
        )
    if request.limits.include_stop and "include_stop" not in kind.parameters:
        raise Unsupported("The upstream always removes the stop string.", param="include_stop_str_in_output")
    if request.special_tokens_in_text and "skip_special_tokens" not in kind.parameters:
        raise Unsupported("The upstream always omits control tokens.", param="skip_special_tokens")


def _common(request: GenerateRequest, kind: Kind, defaults: Defaults) -> Fields:
    """What chats and completions say alike."""
    choices = max(request.choices, request.best_of or 0)
    if choices > 1:
        yield "n", choices
    yield "stream_options", {"include_usage": True, **({"continuous_usage_stats": True} if kind.token_ids else {})}
    if kind.token_ids:
        yield "return_token_ids", True
    if request.special_tokens_in_text:
        yield "skip_special_tokens", False
    yield from _sampling(_merged(request.sampling, defaults.sampling), kind)
    yield from _limits(request.limits, kind)
    for name, value in request.extras.items():
        if name in kind.parameters:
            yield name, _json(value)
    if request.priority and "priority" in kind.parameters:
        yield "priority", request.priority
    if request.cache_salt and "cache_salt" in kind.parameters:
        yield "cache_salt", request.cache_salt
    if request.constraint is not None:
        yield from _constraint(request.constraint, kind)


def _merged(said: SamplingOptions, defaults: SamplingOptions) -> SamplingOptions:
    return msgspec.structs.replace(defaults, **{name: getattr(said, name) for name in said.said()})


def _sampling(sampling: SamplingOptions, kind: Kind) -> Fields:
    """Only what the client said: the rest is the upstream's own default."""
    for name in sampling.said():
        if name not in kind.parameters:
            continue
        value = getattr(sampling, name)
        if name == "logit_bias":
            value = {str(id): bias for id, bias in value}
        elif name == "top_k" and value == 0:
            value = -1
        yield kind.renamed.get(name, name), value


_LIMITS = {
    "min_tokens": "min_tokens",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "include_stop": "include_stop_str_in_output",
    "ignore_eos": "ignore_eos",
    "truncate_prompt": "truncate_prompt_tokens",
}


def _limits(limits: Limits, kind: Kind) -> Fields:
    untouched = Limits()
    for name, wire in _LIMITS.items():
        value = getattr(limits, name)
        if value != getattr(untouched, name) and name in kind.parameters:
            yield wire, value


def _constraint(constraint: Constraint, kind: Kind) -> Fields:
    match constraint:
        case JsonObject():
            yield "response_format", {"type": "json_object"}
        case JsonSchema(schema, strict, name):
            shape = {"name": name or "answer", "schema": _json(schema), "strict": strict}
            yield "response_format", {"type": "json_schema", "json_schema": shape}
        case Regex(pattern) if not kind.structured:
            yield "regex", pattern
        case Regex(pattern):
            yield "structured_outputs", {"regex": pattern}
        case Choices(options):
            yield "structured_outputs", {"choice": options}
        case ContextFree(definition, syntax) if not kind.structured:
            if syntax != "gbnf":
                raise Unsupported("The upstream supports only GBNF grammars.", param="structured_outputs.grammar")
            yield "grammar", definition
        case ContextFree(definition):
            yield "structured_outputs", {"grammar": definition}


def _completion(
    request: GenerateRequest, prompt: str | tuple[int, ...], kind: Kind, defaults: Defaults
) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": prompt}
    limit = _max_tokens(request, defaults)
    if limit is not None:
        body["max_tokens"] = limit
    elif kind.rest is not None:
        body["max_tokens"] = Raw(kind.rest)
    logprobs = _logprobs(request)
    if logprobs is not None:
        body["logprobs"] = logprobs
    if not request.add_special_tokens:
        body["add_special_tokens"] = False
    return body


def _chat(request: GenerateRequest, conversation: Conversation, kind: Kind, defaults: Defaults) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": wire_messages(conversation.messages, kind)}
    limit = _max_tokens(request, defaults)
    if limit is not None:
        body[kind.max_tokens] = limit
    logprobs = _logprobs(request)
    if logprobs is not None:
        body["logprobs"] = True
        if logprobs:
            body["top_logprobs"] = logprobs
        if kind.token_ids:
            # By their numbers: an alternative is told by nothing else; its bytes say what it reads as.
            body["return_tokens_as_token_ids"] = True
    if request.return_prompt:
        body["return_prompt_text"] = True
    if request.add_special_tokens and kind.structured:
        body["add_special_tokens"] = True
    return body | dict(_tools(conversation, kind)) | dict(_reasoning(conversation)) | _template(conversation, kind)


def _max_tokens(request: GenerateRequest, defaults: Defaults) -> int | None:
    return defaults.max_tokens if request.limits.max_tokens is None else request.limits.max_tokens


def _logprobs(request: GenerateRequest) -> int | None:
    """Candidates are compared by likelihood, so that they need logprobs even if the client does not."""
    if request.logprobs is None and (request.best_of or 0) > request.choices:
        return 0
    return request.logprobs


def _tools(conversation: Conversation, kind: Kind) -> Fields:
    tools, choice = conversation.tools, conversation.tool_choice
    if not tools:
        return
    if choice.names is not None and not choice.named and not kind.openai_tools:
        # Who knows no `allowed_tools` is told of no others.
        tools = tuple(tool for tool in tools if tool.name in choice.names)
        choice = ToolChoice(choice.mode)
    yield "tools", [_tool(tool, kind) for tool in tools]
    if choice != ToolChoice():
        yield "tool_choice", _tool_choice(choice, tools)
    if not conversation.parallel_tool_calls:
        yield "parallel_tool_calls", False


def _tool(tool: Tool, kind: Kind) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    if isinstance(tool, FunctionTool):
        function: dict[str, Any] = {"name": tool.name, **described}
        if tool.parameters is not None:
            function["parameters"] = _json(tool.parameters)
        if tool.strict is not None:
            function["strict"] = tool.strict
        return {"type": "function", "function": function}
    if not kind.openai_tools:
        raise Unsupported("The upstream does not support free-form tools.", param="tools")
    custom: dict[str, Any] = {"name": tool.name, **described}
    if tool.definition is not None:
        grammar = {"syntax": tool.syntax or "lark", "definition": tool.definition}
        custom["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": custom}


def _tool_choice(choice: ToolChoice, tools: tuple[Tool, ...]) -> object:
    if choice.names is None:
        return choice.mode
    kinds = {tool.name: "custom" if isinstance(tool, CustomTool) else "function" for tool in tools}
    named = [{"type": kinds[name], kinds[name]: {"name": name}} for name in choice.names]
    if choice.named:
        return named[0]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": named}}


def _reasoning(conversation: Conversation) -> Fields:
    reasoning = conversation.reasoning
    if reasoning.effort is not None:
        yield "reasoning_effort", reasoning.effort
    if reasoning.budget is not None:
        yield "thinking_token_budget", reasoning.budget


def _template(conversation: Conversation, kind: Kind) -> dict[str, Any]:
    told = conversation.template
    if told.template is not None:
        raise Unsupported("Chat templates in requests are not forwarded to an upstream.", param="chat_template")
    body: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    if "chat_template_kwargs" in kind.parameters:
        kwargs = msgspec.json.decode(told.kwargs or "{}")
        if conversation.reasoning.enabled is not None and not {"enable_thinking", "thinking"} & kwargs.keys():
            kwargs["enable_thinking"] = conversation.reasoning.enabled
    if kwargs:
        body["chat_template_kwargs"] = kwargs
    if told.documents is not None and "documents" in kind.parameters:
        body["documents"] = _json(told.documents)
    if told.continue_final_message or not told.add_generation_prompt:
        if "continue_final_message" not in kind.parameters:
            raise Unsupported("The upstream does not support continuing a message.", param="continue_final_message")
        body["continue_final_message"] = told.continue_final_message
        body["add_generation_prompt"] = told.add_generation_prompt
    return body


def _json(text: str) -> Raw:
    return Raw(text.encode())
