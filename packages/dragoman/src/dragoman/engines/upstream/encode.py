"""Encodes requests for OpenAI's Chat Completions and Completions, and for vLLM's
`/tokenize` and `/detokenize`. Pure.

Responses are streamed, unless the request asks for the logprobs of the prompt.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ...core.errors import RequestError, Unsupported
from ...core.message import (
    Audio,
    CustomTool,
    File,
    FunctionTool,
    Image,
    InlineMedia,
    MediaSource,
    Message,
    Part,
    Reasoning,
    Refusal,
    RemoteMedia,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    UploadedMedia,
)
from ...core.request import (
    Constraint,
    ContextFreeGrammar,
    Conversation,
    GenerateRequest,
    GenerationLimits,
    JsonObject,
    JsonSchema,
    Regex,
    SamplingOptions,
    StringChoices,
)
from .discovery import ServerKind

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


class UpstreamRequest(Struct, frozen=True):
    """A request to POST.

    path: relative to the base URL.
    is_versioned: whether the path is below the API's version, `/v1`.
    warnings: for the client, about changed or omitted parts of the request.
    """

    path: str
    body: bytes
    is_versioned: bool = True
    warnings: tuple[str, ...] = ()


class UpstreamDefaults(Struct, frozen=True):
    """This server's defaults for fields that a request does not set."""

    sampling: SamplingOptions = SamplingOptions()
    max_tokens: int | None = None


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
        )
    body["prompt"] = request.prompt
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


def encode_body(body: dict[str, Any]) -> bytes:
    """Encode a body as JSON. Raises RequestError for text that is not valid Unicode."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        raise RequestError("The request contains text that is not valid Unicode.") from None


def require_conversation(request: GenerateRequest, kind: ServerKind) -> Conversation:
    """Return the conversation of a request to a server without Completions and without
    extensions of Chat Completions.

    Raises Unsupported if the request needs features that such a server lacks.
    """
    prompt = request.prompt
    if not isinstance(prompt, Conversation):
        raise Unsupported(
            "The upstream does not support plain prompts, only conversations.", param="prompt"
        )
    if request.return_prompt:
        raise Unsupported(
            "The upstream does not return the tokens of this prompt.", param="return_token_ids"
        )
    if request.limits.include_stop:
        raise Unsupported(
            "The upstream always removes the stop string.", param="include_stop_str_in_output"
        )
    if request.special_tokens_in_text:
        raise Unsupported("The upstream always omits control tokens.", param="skip_special_tokens")
    if prompt.template.template is not None:
        raise Unsupported(
            "Chat templates in requests are not forwarded to an upstream.", param="chat_template"
        )
    if not prompt.template.add_generation_prompt and not prompt.template.continue_final_message:
        raise Unsupported(
            "The upstream always adds a generation prompt.", param="add_generation_prompt"
        )
    for tool in prompt.tools:
        if isinstance(tool, CustomTool) and not kind.has_openai_tools:
            raise Unsupported("The upstream does not support free-form tools.", param="tools")
    return prompt


def warn_of_names(messages: Sequence[Message], warnings: list[str]) -> None:
    """Append a warning if a participant has a name. Names of tools do not matter: their
    calls have them too.
    """
    if any(message.name is not None and message.role is not Role.TOOL for message in messages):
        warnings.append(
            "messages: names of participants are ignored: the upstream does not support them"
        )


def select_tools(conversation: Conversation) -> tuple[tuple[Tool, ...], ToolChoice]:
    """Select the tools and the tool choice for a server without `allowed_tools`, which
    gets only the allowed tools.
    """
    tools = conversation.tools
    choice = conversation.tool_choice
    if choice.names is None or choice.is_named:
        return tools, choice
    return tuple(tool for tool in tools if tool.name in choice.names), ToolChoice(choice.mode)


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
    for name in ("kv_transfer_params", "vllm_xargs", "session_id"):
        value = getattr(request.extras, name)
        if value is not None and name in kind.parameters:
            yield name, value if name == "session_id" else to_raw(value)
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


def merge_sampling(requested: SamplingOptions, defaults: SamplingOptions) -> SamplingOptions:
    return msgspec.structs.replace(
        defaults, **{name: getattr(requested, name) for name in requested.list_set_fields()}
    )


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
        case JsonObject():
            yield "response_format", {"type": "json_object"}
        case JsonSchema(schema, strict, name):
            json_schema = {"name": name or "answer", "schema": to_raw(schema), "strict": strict}
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
    if request.add_special_tokens and kind.has_structured_outputs:
        body["add_special_tokens"] = True
    body |= _encode_tools(conversation, kind)
    if conversation.reasoning.effort is not None:
        body["reasoning_effort"] = conversation.reasoning.effort
    if conversation.reasoning.budget is not None:
        body["thinking_token_budget"] = conversation.reasoning.budget
    return body | _encode_template(conversation, kind)


def resolve_max_tokens(request: GenerateRequest, defaults: UpstreamDefaults) -> int | None:
    """Resolve the limit of output tokens; None if neither the request nor the defaults
    set one.
    """
    return defaults.max_tokens if request.limits.max_tokens is None else request.limits.max_tokens


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


# Messages.


def encode_messages(messages: Sequence[Message], kind: ServerKind) -> list[dict[str, Any]]:
    """Encode messages as Chat Completions messages; parsing them gives the same
    messages.

    Raises Unsupported for media with only a file id.
    """
    encoded: list[dict[str, Any]] = []
    for message in messages:
        if message.role is Role.ASSISTANT:
            encoded.append(_encode_assistant(message, kind))
            continue
        role = (
            Role.SYSTEM
            if message.role is Role.DEVELOPER and not kind.has_developer_role
            else message.role
        )
        # Each tool result becomes a message of its own, and so do the parts between two
        # results.
        pending: list[Part] = []
        for part in message.parts:
            if not isinstance(part, ToolResult):
                pending.append(part)
                continue
            if pending:
                encoded.append(_encode_plain(role, pending, message.name))
                pending = []
            name_field = _encode_name(message.name if message.role is Role.TOOL else None)
            content = _encode_content(state_failure(part))
            encoded.append(
                {"role": "tool", "tool_call_id": part.call_id, "content": content, **name_field}
            )
        if pending or not message.parts:
            encoded.append(_encode_plain(role, pending, message.name))
    return encoded


def _encode_assistant(message: Message, kind: ServerKind) -> dict[str, Any]:
    reasoning = "".join(part.text for part in message.parts if isinstance(part, Reasoning))
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    content_parts = [part for part in message.parts if not isinstance(part, (Reasoning, ToolCall))]
    encoded: dict[str, Any] = {
        "role": "assistant",
        "content": _encode_content(content_parts) if content_parts or not calls else None,
    }
    if reasoning:
        encoded |= dict.fromkeys(kind.reasoning_fields, reasoning)
    if any(call.custom for call in calls) and not kind.has_openai_tools:
        raise Unsupported("The upstream does not support free-form tools.", param="messages")
    if calls:
        encoded["tool_calls"] = [
            {
                "id": call.id,
                "type": "custom",
                "custom": {"name": call.name, "input": call.arguments},
            }
            if call.custom
            else {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return encoded | _encode_name(message.name)


def _encode_plain(role: Role, parts: Sequence[Part], name: str | None) -> dict[str, Any]:
    # Other parts of a tool message are user content.
    wire_role = Role.USER if role is Role.TOOL else role
    return {"role": wire_role.value, "content": _encode_content(parts), **_encode_name(name)}


def _encode_name(name: str | None) -> dict[str, Any]:
    return {} if name is None else {"name": name}


def state_failure(result: ToolResult) -> Sequence[Part]:
    """Build the content of a tool result for an API without an error flag: its text
    states the failure.
    """
    if not result.is_error:
        return result.content
    first, *rest = result.content or (Text(""),)
    if not isinstance(first, Text):
        return [Text("Error:"), first, *rest]
    return (
        result.content
        if first.text.lower().startswith("error")
        else [Text(f"Error: {first.text}"), *rest]
    )


def _encode_content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Encode content, as a string if possible: many servers accept only strings for
    most roles.
    """
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].text:
        return parts[0].text
    return [_encode_part(part) for part in parts]


def _encode_part(part: Part) -> dict[str, Any]:  # noqa: PLR0911 - a table
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Refusal(text):
            return {"type": "refusal", "refusal": text}
        case Reasoning(text):
            return {"type": "thinking", "thinking": text}
        case Image(source, detail):
            detail_field = {} if detail is None else {"detail": detail}
            return {
                "type": "image_url",
                "image_url": {"url": build_media_url(source), **detail_field},
            }
        case Audio(InlineMedia(data), format):
            audio = {"data": base64.b64encode(data).decode(), "format": format or "wav"}
            return {"type": "input_audio", "input_audio": audio}
        case Audio(source):
            return {"type": "audio_url", "audio_url": {"url": build_media_url(source)}}
        case File(source, filename):
            filename_field = {} if filename is None else {"filename": filename}
            return {
                "type": "file",
                "file": {"file_data": build_media_url(source), **filename_field},
            }
        case ToolCall():
            raise RequestError(
                "Only an assistant message can contain tool calls.", param="messages"
            )
        case ToolResult():
            raise RequestError(
                "An assistant message cannot contain tool results.", param="messages"
            )


def build_media_url(source: MediaSource) -> str:
    """Build the URL of media; a data URL for inline media. Raises Unsupported for a
    file id.
    """
    match source:
        case InlineMedia(data, media_type):
            return f"data:{media_type or 'application/octet-stream'};base64,{base64.b64encode(data).decode()}"
        case RemoteMedia(url):
            return url
        case UploadedMedia():
            raise Unsupported(
                "Files uploaded to this server are not available to the upstream.", param="messages"
            )


def to_raw(text: str) -> Raw:
    return Raw(text.encode())
