"""Encodes requests for OpenAI's Chat Completions and Completions. Pure.

Responses are streamed, unless the request asks for the logprobs of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from ...core.errors import Unsupported
from ...core.message import (
    CustomTool,
    FunctionTool,
    Tool,
    ToolChoice,
)
from ...core.request import (
    AnyJsonObject,
    Constraint,
    ContextFreeGrammar,
    Conversation,
    Extras,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    Regex,
    SamplingOptions,
    StringChoices,
)
from .chat_messages import encode_messages, find_omissions
from .server_kind import ServerKind
from .shared_encoding import (
    merge_sampling,
    resolve_max_tokens,
    select_tools,
    to_raw,
)
from .upstream_request import UpstreamDefaults, UpstreamRequest, encode_body

Fields = Iterator[tuple[str, Any]]

_LIMIT_FIELDS = {
    "min_tokens": "min_tokens",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "include_stop": "include_stop_str_in_output",
    "ignore_eos": "ignore_eos",
    "truncate_prompt": "truncate_prompt_tokens",
}
_NO_LIMITS = GenerationLimits()


def encode_request(
    request: GenerateRequest, kind: ServerKind, model: str, defaults: UpstreamDefaults
) -> UpstreamRequest:
    """Encode a request for text.

    Raises Unsupported for features that this kind of server lacks, RequestError for
    values that JSON cannot represent.
    """
    if request.return_prompt and not kind.returns_token_ids:
        raise Unsupported(
            "The upstream does not return the tokens of this prompt (echo, return_token_ids).",
            param="return_token_ids",
        )
    if request.limits.include_stop and "include_stop" not in kind.parameters:
        raise Unsupported(
            "The upstream always removes the stop string.", param="include_stop_str_in_output"
        )
    if request.special_tokens_in_text and "skip_special_tokens" not in kind.parameters:
        raise Unsupported("The upstream always omits control tokens.", param="skip_special_tokens")
    # vLLM does not stream prompt logprobs.
    is_streamed = request.prompt_logprobs is None
    # In vLLM's API an adapter is a model of its own.
    name = request.extras.lora or model
    body = {"model": name, "stream": is_streamed, **dict(_encode_common(request, kind, defaults))}
    if isinstance(request.prompt, Conversation):
        return UpstreamRequest(
            "/chat/completions",
            encode_body(body | _encode_chat(request, request.prompt, kind, defaults)),
            warnings=tuple(find_omissions(request.prompt.messages, kind)),
        )
    body["prompt"] = request.prompt
    if request.suffix is not None:
        body["suffix"] = request.suffix
    limit = resolve_max_tokens(request, defaults)
    if limit is not None:
        body["max_tokens"] = limit
    elif kind.unlimited_max_tokens is not None:
        # Without a limit the default of Completions applies, which is 16 tokens.
        body["max_tokens"] = Raw(kind.unlimited_max_tokens)
    logprobs = _resolve_logprobs(request)
    if logprobs is not None:
        body["logprobs"] = logprobs
    if not request.add_special_tokens:
        body["add_special_tokens"] = False
    return UpstreamRequest("/completions", encode_body(body))


def encode_tokenize_request(
    request: GenerateRequest, kind: ServerKind, model: str, *, with_texts: bool = False
) -> UpstreamRequest:
    """Encode a request for the tokens of a prompt, in vLLM's format. Raises as
    `encode_request`.
    """
    prompt = request.prompt
    body: dict[str, Any] = {"model": model, "add_special_tokens": request.add_special_tokens}
    if isinstance(prompt, Conversation):
        body["messages"] = encode_messages(prompt.messages, kind)
        # With tool_choice `none`, vLLM renders the tools into the prompt; servers with
        # OpenAI's tools omit them.
        if prompt.tools and not (prompt.tool_choice.mode == "none" and kind.has_openai_tools):
            body["tools"] = [_encode_tool(tool, kind) for tool in prompt.tools]
        body |= _encode_template(prompt, kind)
        effort = prompt.reasoning.effort
        if effort is not None:
            # `/tokenize` has no field for the effort. Templates read one of these
            # variables.
            variables = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
            body["chat_template_kwargs"] = variables | body.get("chat_template_kwargs", {})
    else:
        body["prompt"] = prompt
    if with_texts:
        body["return_token_strs"] = True
    return UpstreamRequest("/tokenize", encode_body(body), is_versioned=False)


def encode_detokenize_request(model: str, prompt: tuple[int, ...]) -> UpstreamRequest:
    """Encode a request for the text of a prompt, in vLLM's format."""
    return UpstreamRequest(
        "/detokenize", msgspec.json.encode({"model": model, "tokens": prompt}), is_versioned=False
    )


def _encode_common(
    request: GenerateRequest, kind: ServerKind, defaults: UpstreamDefaults
) -> Fields:
    """Encode the fields that chats and completions share."""
    # This server ranks the candidates of `best_of`, so the upstream must return all of
    # them.
    choices = max(request.choices, request.best_of or 0)
    if choices > 1:
        yield "n", choices
    if request.prompt_logprobs is None:
        # With usage in every chunk, the length of the prompt is known when the response
        # starts, not only at its end.
        continuous = {"continuous_usage_stats": True} if kind.returns_token_ids else {}
        yield "stream_options", {"include_usage": True, **continuous}
    else:
        yield "prompt_logprobs", request.prompt_logprobs
    if kind.returns_token_ids:
        yield "return_token_ids", True
    if request.special_tokens_in_text:
        yield "skip_special_tokens", False
    yield from _encode_sampling(merge_sampling(request.sampling, defaults.sampling), kind)
    for name, field in _LIMIT_FIELDS.items():
        value = getattr(request.limits, name)
        if value != getattr(_NO_LIMITS, name) and name in kind.parameters:
            yield field, value
    yield from _encode_extras(request.extras, kind)
    if request.priority and "priority" in kind.parameters:
        yield "priority", request.priority
    if request.cache_salt and "cache_salt" in kind.parameters:
        yield "cache_salt", request.cache_salt
    constraint = (
        {} if request.constraint is None else dict(_encode_constraint(request.constraint, kind))
    )
    if request.limits.close_at_limit is not None and "close_at_limit" in kind.parameters:
        outputs: dict[str, Any] = constraint.get("structured_outputs", {})
        constraint["structured_outputs"] = {
            **outputs,
            "close_at_limit": request.limits.close_at_limit,
        }
    yield from constraint.items()


def _encode_extras(extras: Extras, kind: ServerKind) -> Fields:
    for name in ("kv_transfer_params", "vllm_xargs", "session_id", "cache_hit_threshold"):
        value = getattr(extras, name)
        if value is not None and name in kind.parameters:
            is_object = name in ("kv_transfer_params", "vllm_xargs")
            yield name, to_raw(value) if is_object else value


def _encode_sampling(sampling: SamplingOptions, kind: ServerKind) -> Fields:
    """Encode the sampling fields that the client set; the upstream's defaults apply to
    the rest.
    """
    for name in sampling.list_set_fields():
        if name not in kind.parameters:
            continue
        value = getattr(sampling, name)
        if name == "logit_bias":
            value = {str(id): bias for id, bias in value}
        elif name == "top_k" and value == 0:
            # No limit is 0 in our requests, but -1 for these servers.
            value = -1
        yield kind.parameter_names.get(name, name), value


def _encode_constraint(constraint: Constraint, kind: ServerKind) -> Fields:
    match constraint:
        case AnyJsonObject():
            yield "response_format", {"type": "json_object"}
        case JsonSchema(schema, strict, name, description):
            json_schema = {"name": name or "answer", "schema": to_raw(schema), "strict": strict}
            if description is not None:
                json_schema["description"] = description
            yield "response_format", {"type": "json_schema", "json_schema": json_schema}
        case Regex(pattern) if not kind.has_structured_outputs:
            yield "regex", pattern
        case Regex(pattern):
            yield "structured_outputs", {"regex": pattern}
        case StringChoices(options):
            yield "structured_outputs", {"choice": options}
        case ContextFreeGrammar(definition, syntax) if not kind.has_structured_outputs:
            if syntax != "gbnf":
                raise Unsupported(
                    "The upstream supports only GBNF grammars.", param="structured_outputs.grammar"
                )
            yield "grammar", definition
        case ContextFreeGrammar(definition):
            yield "structured_outputs", {"grammar": definition}


def _encode_chat(
    request: GenerateRequest,
    conversation: Conversation,
    kind: ServerKind,
    defaults: UpstreamDefaults,
) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": encode_messages(conversation.messages, kind)}
    limit = resolve_max_tokens(request, defaults)
    if limit is not None:
        body[kind.max_tokens_field] = limit
    logprobs = _resolve_logprobs(request)
    if logprobs is not None:
        body["logprobs"] = True
        if logprobs:
            body["top_logprobs"] = logprobs
        if kind.returns_token_ids:
            # Alternatives have no id field of their own, and different ids may decode
            # to equal text.
            body["return_tokens_as_token_ids"] = True
    if request.return_prompt:
        body["return_prompt_text"] = True
    if request.add_special_tokens and "add_special_tokens" in kind.parameters:
        body["add_special_tokens"] = True
    body |= _encode_tools(conversation, kind)
    if conversation.reasoning.effort is not None:
        body["reasoning_effort"] = conversation.reasoning.effort
    if conversation.reasoning.budget is not None:
        body["thinking_token_budget"] = conversation.reasoning.budget
    return body | _encode_template(conversation, kind)


def _resolve_logprobs(request: GenerateRequest) -> int | None:
    """Resolve the number of logprobs.

    `best_of` ranks candidates by likelihood, so it needs logprobs even if the client
    does not request them.
    """
    if request.logprobs is None and (request.best_of or 0) > request.choices:
        return 0
    return request.logprobs


def _encode_tools(conversation: Conversation, kind: ServerKind) -> Fields:
    tools = conversation.tools
    choice = conversation.tool_choice
    if not tools:
        return
    if not kind.has_openai_tools:
        tools, choice = select_tools(conversation)
    yield "tools", [_encode_tool(tool, kind) for tool in tools]
    if choice.names is not None:
        types = {
            tool.name: "custom" if isinstance(tool, CustomTool) else "function" for tool in tools
        }
        allowed = [{"type": types[name], types[name]: {"name": name}} for name in choice.names]
        subset = {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": allowed}}
        yield "tool_choice", allowed[0] if choice.is_named else subset
    elif choice != ToolChoice():
        yield "tool_choice", choice.mode
    if not conversation.parallel_tool_calls:
        yield "parallel_tool_calls", False


def _encode_tool(tool: Tool, kind: ServerKind) -> dict[str, Any]:
    description = {} if tool.description is None else {"description": tool.description}
    if isinstance(tool, FunctionTool):
        function: dict[str, Any] = {"name": tool.name, **description}
        if tool.parameters is not None:
            function["parameters"] = to_raw(tool.parameters)
        if tool.strict is not None:
            function["strict"] = tool.strict
        return {"type": "function", "function": function}
    if not kind.has_openai_tools:
        raise Unsupported("The upstream does not support free-form tools.", param="tools")
    custom: dict[str, Any] = {"name": tool.name, **description}
    if tool.definition is not None:
        grammar = {"syntax": tool.syntax or "lark", "definition": tool.definition}
        custom["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": custom}


def _encode_template(conversation: Conversation, kind: ServerKind) -> dict[str, Any]:
    options = conversation.template
    if options.template is not None:
        raise Unsupported(
            "Chat templates in requests are not forwarded to an upstream.", param="chat_template"
        )
    body: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    if "chat_template_kwargs" in kind.parameters:
        kwargs = msgspec.json.decode(options.kwargs or "{}")
        if (
            conversation.reasoning.enabled is not None
            and not {"enable_thinking", "thinking"} & kwargs.keys()
        ):
            kwargs["enable_thinking"] = conversation.reasoning.enabled
    if kwargs:
        body["chat_template_kwargs"] = kwargs
    if options.documents is not None and "documents" in kind.parameters:
        body["documents"] = to_raw(options.documents)
    if options.continue_final_message or not options.add_generation_prompt:
        if "continue_final_message" not in kind.parameters:
            raise Unsupported(
                "The upstream does not support continuing a message.",
                param="continue_final_message",
            )
        body["continue_final_message"] = options.continue_final_message
        body["add_generation_prompt"] = options.add_generation_prompt
    return body
