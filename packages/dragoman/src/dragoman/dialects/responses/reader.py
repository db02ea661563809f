"""Parses a Responses body into a ResponsesCall."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from ...core.errors import RequestError, Unsupported
from ...core.message import Message, Role, Text
from ...core.request import (
    AnyJsonObject,
    Constraint,
    Conversation,
    GenerateRequest,
    JsonSchema,
    ReasoningOptions,
    TemplateOptions,
)
from ...core.server_tools import HOSTED_PREFIX, ServerToolPlan, ToolList
from ..chunk_envelope import ResponseId
from ..constraint_fields import read_schema, read_structured_outputs, require_at_most_one
from ..field_errors import abbreviate, check_one_of, invalid_value, missing_parameter
from ..generation_fields import (
    check_metadata,
    check_service_tier,
    read_stop_strings,
    read_thinking_switch,
    resolve_model,
)
from ..interfaces import GenerationCall, ReaderOptions
from ..json_encoding import encode_int, encode_string, encode_string_or_null, escape_line_breaks
from ..request_body import BodySchema, ParsedBody, read_json_object
from ..sealing import Purpose, SealingKey, pack_reasoning
from ..unknown_fields import MAX_UNKNOWN
from .errors import RESPONSES_NAMES
from .input_items import build_input_item
from .item_reader import (
    COMPACTION_TRIGGER,
    CONFIGURATION_UPDATE,
    EFFORTS,
    SUMMARY_REQUEST,
    ItemReader,
    build_summary_request,
    read_raw_items,
    read_update,
)
from .mcp_tools import MCP
from .parsed_items import ConfigurationUpdate, ParsedItem
from .render_options import Echo, ResponsesRenderOptions, encode_bool
from .responses_call import BuiltRequest, RequestedTools, ResponsesCall, build_writer_factory
from .tool_registry import ResponsesToolRegistry
from .turn_builder import TurnBuilder
from .wire import (
    RESPONSES,
    RESPONSES_NESTED,
    ConversationId,
    ReasoningConfig,
    ResponsesBody,
    ResponsesInputFields,
    TextOptions,
    WireItem,
    minify,
)

FORMATS = ("text", "json_object", "json_schema")
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
INCLUDABLE = (
    LOGPROBS,
    ENCRYPTED_REASONING,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
ID_PREFIX = "resp_"
_MCP_MARKS = (b'"mcp"', rb"\u006", rb"\u007")
"""What the JSON of a tool of this type has: the type, or an escape of a letter in it."""


_INPUT_FIELDS = BodySchema(ResponsesInputFields, RESPONSES_NESTED)
_BODY = BodySchema(ResponsesBody, RESPONSES_NESTED)


class _Settings(Struct, frozen=True):
    """What the fields of a body say with a set of tools.

    conversation: without messages.
    request: without its prompt.
    render_options: without the clock.
    echo: JSON of the fields in `Echo.rest`, without the instructions.
    """

    conversation: Conversation
    request: GenerateRequest
    render_options: ResponsesRenderOptions
    echo: bytes
    warnings: tuple[str, ...]


class _ResponsesPlan(Struct, frozen=True):
    """What the fields of a body besides `ResponsesInputFields` say.

    declared_tools: items of the input may load others, into a copy.
    settings: those of the body with the declared tools; None if only tools or updates of
        the input can make them valid.
    warnings: without those of the settings.
    """

    body: ResponsesBody
    declared_tools: ResponsesToolRegistry
    settings: _Settings | None
    id: ResponseId
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]


def read_responses(
    data: bytes,
    options: ReaderOptions,
    *,
    now: Callable[[], int] | None = None,
    compact: bool = False,
) -> ResponsesCall:
    """Parse a body.

    now: returns Unix seconds.
    compact: the response is a compaction, as if the input ended with a trigger.

    Raises RequestError, and nothing else.
    """
    parsed = ParsedBody(data)
    input_fields = parsed.decode(_INPUT_FIELDS)
    unknown = _INPUT_FIELDS.nested.find_unknown(parsed.fields)
    plan = _find_plan(parsed.fields, options)
    body = plan.body
    items = _list_items(input_fields, parsed)
    warnings = [*plan.warnings]
    _check_stored_input(input_fields, body, warnings)
    # OpenAI's /v1/responses/compact requires a model, so the server's default does not
    # apply.
    if compact and body.model is None:
        raise missing_parameter("model")
    compact = compact or (bool(items) and items[-1].type == COMPACTION_TRIGGER)
    declared_tools = plan.declared_tools.begin_request()

    def build(
        items: Sequence[ParsedItem | WireItem],
        warnings: list[str],
        sampled_turns: tuple[tuple[int, ...], ...] = (),
        lists: tuple[ToolList, ...] = (),
    ) -> BuiltRequest:
        return _build(
            plan,
            declared_tools,
            input_fields.instructions,
            items,
            warnings,
            options=options,
            now=now,
            compact=compact,
            sampled_turns=sampled_turns,
            lists=lists,
        )

    def rebuild(
        items: Sequence[ParsedItem | WireItem],
        sampled_turns: tuple[tuple[int, ...], ...] = (),
        lists: tuple[ToolList, ...] = (),
    ) -> BuiltRequest:
        # Warnings of the first build are already in the response; those of stored items
        # were given when they were sent.
        return build(items, [], sampled_turns, lists)

    built = build(items, warnings)
    conversation = input_fields.conversation
    if isinstance(conversation, ConversationId):
        conversation = conversation.id
    echo = Echo(
        rest=built.echo,
        store=body.store is not False,
        background=bool(body.background),
        previous_response_id=input_fields.previous_response_id or None,
        conversation=conversation or None,
    )
    raw_items = read_raw_items(items, parsed.fields, "input")
    return ResponsesCall(
        call=GenerationCall(
            (built.request,),
            bool(body.stream),
            ID_PREFIX,
            build_writer_factory(plan.id, built.render_options, echo),
            tuple(warnings),
            (*plan.unknown, *unknown)[:MAX_UNKNOWN] if unknown else plan.unknown,
            field_names=RESPONSES_NAMES,
        ),
        input=tuple(
            [
                build_input_item(item, fields, parsed_item, f"input[{i}]")
                for i, (item, fields, parsed_item) in enumerate(
                    zip(items, raw_items, built.items, strict=True)
                )
            ]
        ),
        echo=echo,
        render_options=built.render_options,
        id=plan.id,
        rebuild=rebuild,
        items=built.items,
        tools=built.tools,
        previous_response_id=echo.previous_response_id,
        conversation=echo.conversation,
        store=body.store,
        background=echo.background,
        durable_body=_render_durable_body(body, parsed) if body.background else None,
    )


def _find_plan(fields: Mapping[str, Raw], options: ReaderOptions) -> _ResponsesPlan:
    """Return the plan of a body's fields. Raises RequestError."""
    tools = bytes(fields.get("tools", b""))
    return options.plans.find_or_build(
        _ResponsesPlan,
        fields,
        ResponsesInputFields.__struct_fields__,
        (options,),
        lambda data: _build_plan(data, options),
        keeps=not any([mark in tools for mark in _MCP_MARKS]),
    )


def _build_plan(data: bytes, options: ReaderOptions) -> _ResponsesPlan:
    """data: the body without `ResponsesInputFields`."""
    parsed = ParsedBody(data)
    body = parsed.decode(_BODY)
    warnings, unknown = RESPONSES.classify_body(parsed, _BODY)
    _check_fields(body, warnings)
    declared_tools = ResponsesToolRegistry(body.tools or (), warnings, options.hosted_tools)
    try:
        settings = _build_settings(body, declared_tools, options)
    except RequestError:
        settings = None
    return _ResponsesPlan(
        body,
        declared_tools,
        settings,
        ResponseId(ID_PREFIX, body.request_id),
        tuple(warnings),
        unknown,
    )


def _render_durable_body(body: ResponsesBody, parsed: ParsedBody) -> bytes | None:
    """Render the body of a background response whose tools this server calls, for
    `ResponsesCall.durable_body`.
    """
    servers = [tool for tool in body.tools or () if tool.type == MCP]
    if any(tool.authorization or tool.headers for tool in servers):
        return None
    return msgspec.json.encode({k: raw for k, raw in parsed.fields.items() if k != "input"})


def _list_items(body: ResponsesInputFields, parsed: ParsedBody) -> list[WireItem]:
    """List the items of the input. A trigger of a compaction may only be the last one."""
    if isinstance(body.input, str):
        return [WireItem(type="message", role="user", content=body.input)]
    items = body.input or []
    # A turn may add nothing to a stored conversation, so an empty input is valid there.
    if not items and not body.previous_response_id and not body.conversation:
        hint = " A body with 'messages' is a chat request: POST it to /v1/chat/completions."
        raise missing_parameter("input", hint if "messages" in parsed.fields else "")
    for i, item in enumerate(items[:-1]):
        if item.type == COMPACTION_TRIGGER:
            raise invalid_value(f"input[{i}]", f"'{COMPACTION_TRIGGER}' must be the last item")
    return items


def _check_stored_input(
    fields: ResponsesInputFields, body: ResponsesBody, warnings: list[str]
) -> None:
    """Check the fields that name what is stored."""
    if not fields.conversation:
        return
    if fields.previous_response_id:
        raise invalid_value("previous_response_id", "it cannot be combined with 'conversation'")
    if body.store is False:
        warnings.append("conversation: nothing is added to it, because store is false")


def _check_fields(body: ResponsesBody, warnings: list[str]) -> None:
    """Check combinations of fields, and warn about those with no or limited effect."""
    # A background response is read from the store; without it nothing could ever be
    # returned.
    if body.background and body.store is False:
        raise invalid_value("background", "it needs 'store' to be true")
    _check_background_options(body)
    _check_cache_options(body, warnings)
    check_metadata(body.metadata)
    check_service_tier(body.service_tier, warnings)
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        raise Unsupported(
            "'stream_options.include_obfuscation' is not supported here: events are not padded.",
            param="stream_options.include_obfuscation",
        )
    if body.truncation is not None:
        check_one_of(body.truncation, ("auto", "disabled"), "truncation")
    verbosity = body.text.verbosity if body.text is not None else None
    if (
        verbosity is not None
        and check_one_of(verbosity, ("low", "medium", "high"), "text.verbosity") != "medium"
    ):
        warnings.append("text.verbosity is ignored; ask for the desired length in the prompt")
    # The summary is the reasoning itself, so it is as detailed as can be.
    if body.reasoning is not None and _read_summary(body) == "concise":
        warnings.append("reasoning.summary: 'concise' is not available; nothing is left out")
    warnings.extend(
        f"include: {abbreviate(name)} is not supported"
        for name in body.include or ()
        if name not in INCLUDABLE
    )


def _check_background_options(body: ResponsesBody) -> None:
    """Check the completion window. A response that starts at once is within all of them."""
    window = None if body.background_options is None else body.background_options.completion_window
    if window is None:
        return
    path = "background_options.completion_window"
    check_one_of(window, ("soonest", "2h", "8h"), path)
    if window != "soonest" and (not body.background or body.stream):
        raise invalid_value(path, f"'{window}' needs 'background' to be true, and no 'stream'")


def _check_cache_options(body: ResponsesBody, warnings: list[str]) -> None:
    options = body.prompt_cache_options
    if options is None:
        return
    if options.mode is not None:
        check_one_of(options.mode, ("implicit", "explicit"), "prompt_cache_options.mode")
    if options.ttl is not None:
        check_one_of(options.ttl, ("30m", "12h"), "prompt_cache_options.ttl")
    if options.prewarm:
        raise Unsupported(
            "'prompt_cache_options.prewarm' is not supported here: on a WebSocket, "
            "'generate': false fills the cache.",
            param="prompt_cache_options.prewarm",
        )
    if options.comparison_response_id is not None:
        warnings.append(
            "prompt_cache_options.comparison_response_id is ignored: responses are not compared; "
            "cached_tokens in the usage tells what was reused"
        )


def _apply_updates(body: ResponsesBody, items: Sequence[ParsedItem | WireItem]) -> ResponsesBody:
    """Return the body with the settings of `configuration_update` items; the last one
    wins.

    They come later in the conversation than the body's own settings, which clients keep
    so that the prompt's prefix stays cached (openai-python 3.54: "until a later update
    replaces that setting").
    """
    for i, item in enumerate(items):
        if isinstance(item, WireItem) and item.type == CONFIGURATION_UPDATE:
            update = read_update(item, f"input[{i}]")
        elif isinstance(item, ConfigurationUpdate):
            update = item
        else:
            continue
        if update.reasoning is not None:
            reasoning = replace(body.reasoning or ReasoningConfig(), effort=update.reasoning.effort)
            body = replace(body, reasoning=reasoning)
        if update.text is not None:
            text = replace(body.text or TextOptions(), format=update.text.format)
            body = replace(body, text=text)
    return body


def _build(
    plan: _ResponsesPlan,
    declared_tools: ResponsesToolRegistry,
    instructions: str | None,
    items: Sequence[ParsedItem | WireItem],
    warnings: list[str],
    *,
    options: ReaderOptions,
    now: Callable[[], int] | None,
    compact: bool,
    sampled_turns: tuple[tuple[int, ...], ...],
    lists: tuple[ToolList, ...],
) -> BuiltRequest:
    """Build the request and the render options for a body and its items, which may load
    tools.

    declared_tools: those of the plan, for this request.
    items: the input items; WireItems among them are parsed here.
    lists: lists of MCP servers that are not among the items.
    """
    tools = declared_tools
    if lists:
        tools = tools.copy(warnings)
        for tool_list in lists:
            tools.load_list(tool_list.server, tool_list.tools)
    item_reader = ItemReader(options.sealing_key, warnings, keeps_seal=options.keeps_seal)
    turns = TurnBuilder(tools, warnings)
    parsed_items = list[ParsedItem]()
    body = _apply_updates(plan.body, items)
    for i, item in enumerate(items):
        path = f"input[{i}]"
        parsed = item_reader.read(item, path) if isinstance(item, WireItem) else item
        parsed_items.append(parsed)
        turns.add(parsed, path)
    messages = turns.finish()
    if instructions:
        messages = (Message(Role.SYSTEM, (Text(instructions),)), *messages)
    tools = turns.tools
    settings = plan.settings
    if settings is None or body is not plan.body or tools is not declared_tools:
        settings = _build_settings(body, tools, options)
    warnings += settings.warnings
    if compact:
        messages = (*messages, SUMMARY_REQUEST)
    conversation = replace(settings.conversation, messages=messages, sampled_turns=sampled_turns)
    request = replace(settings.request, prompt=conversation)
    render_options = replace(settings.render_options, now=now)
    if compact:
        if options.sealing_key is None:
            raise Unsupported(
                "Compaction is not supported here: this server has no key to encrypt summaries."
            )
        seal_compaction = partial(options.sealing_key.seal, Purpose.COMPACTION)
        render_options = replace(render_options, seal_compaction=seal_compaction)
        request = build_summary_request(request)
    echo = b'"instructions":%s,%s' % (encode_string_or_null(instructions), settings.echo)
    wants_tools = tools.has_mcp_servers or turns.has_approvals
    requested = _build_tools(body, tools, turns, lists) if wants_tools else None
    return BuiltRequest(request, render_options, echo, parsed_items, requested)


def _build_settings(
    body: ResponsesBody, tools: ResponsesToolRegistry, options: ReaderOptions
) -> _Settings:
    warnings: list[str] = []
    tools = tools.copy(warnings)
    tool_choice, echoed_choice = tools.read_choice(body.tool_choice)
    kwargs = read_json_object(body.chat_template_kwargs, "chat_template_kwargs")
    conversation = Conversation(
        (),
        tools.tools,
        tool_choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=_read_reasoning(body, warnings),
        template=TemplateOptions(kwargs=kwargs, template=body.chat_template),
        drop_oldest=body.truncation == "auto",
    )
    render_options = _build_render_options(body, tools, options.sealing_key, warnings)
    request = _build_request(body, options, conversation, render_options.logprobs)
    echo = _render_echo(body, tools.echo, echoed_choice)
    return _Settings(conversation, request, render_options, echo, tuple(warnings))


def _build_tools(
    body: ResponsesBody,
    tool_registry: ResponsesToolRegistry,
    turns: TurnBuilder,
    lists: tuple[ToolList, ...],
) -> RequestedTools:
    plan = ServerToolPlan(
        servers={server.label: server for server in tool_registry.mcp_servers},
        tools=tool_registry.mcp_tools,
        approved=turns.approved_calls,
        max_calls=body.max_tool_calls,
        # Hosted tools have no list of their own in the API.
        lists=tuple(each for each in lists if not each.server.startswith(HOSTED_PREFIX)),
    )
    return RequestedTools(
        plan,
        tool_registry.unlisted_servers,
        tuple(turns.unmatched_approvals),
        tool_registry.option_warnings,
    )


def _read_reasoning(body: ResponsesBody, warnings: list[str]) -> ReasoningOptions:
    """Read the options. The template's own switch, if set, takes precedence over the
    less specific effort.
    """
    reasoning = body.reasoning or ReasoningConfig()
    if reasoning.effort is not None:
        check_one_of(reasoning.effort, EFFORTS, "reasoning.effort")
    if reasoning.context not in (None, "auto"):
        warnings.append(
            "reasoning.context is ignored: the chat template determines which past reasoning is "
            "included"
        )
    if reasoning.mode not in (None, "standard"):
        warnings.append("reasoning.mode is ignored: there is only one mode")
    switch = read_thinking_switch(body.chat_template_kwargs)
    # Efforts other than none do not switch reasoning on: templates without a switch
    # would reject it.
    enabled = False if switch is None and reasoning.effort == "none" else switch
    budget = body.thinking_token_budget
    return ReasoningOptions(
        enabled,
        reasoning.effort,
        None if budget == -1 else budget,
        wants_text=_read_summary(body) is not None,
    )


def _read_summary(body: ResponsesBody) -> str | None:
    if body.reasoning is None:
        return None
    summary = body.reasoning.summary or body.reasoning.generate_summary
    return (
        None
        if summary is None
        else check_one_of(summary, ("auto", "concise", "detailed"), "reasoning.summary")
    )


def _build_render_options(
    body: ResponsesBody,
    tool_registry: ResponsesToolRegistry,
    sealing_key: SealingKey | None,
    warnings: list[str],
) -> ResponsesRenderOptions:
    include = body.include or ()
    if ENCRYPTED_REASONING in include and sealing_key is None:
        warnings.append(
            f"include: the server has no key for {ENCRYPTED_REASONING}; reasoning is returned as "
            f"content or summary"
        )
    wants_logprobs = LOGPROBS in include or bool(body.top_logprobs)
    return ResponsesRenderOptions(
        logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
        as_summary=_read_summary(body) is not None,
        hide_reasoning=body.include_reasoning is False,
        tool_names=tool_registry.names,
        seal_reasoning=partial(sealing_key.seal, Purpose.REASONING)
        if sealing_key is not None and ENCRYPTED_REASONING in include
        else None,
        wrap_seal=None if sealing_key is None else partial(_wrap_seal, sealing_key),
        include_sources="web_search_call.action.sources" in include,
        include_file_results="file_search_call.results" in include,
        include_code_outputs="code_interpreter_call.outputs" in include,
        partial_images=tool_registry.partial_images,
    )


def _wrap_seal(sealing_key: SealingKey, text: str, seal: str) -> str:
    return sealing_key.seal(Purpose.REASONING, pack_reasoning(text, seal))


def _build_request(
    body: ResponsesBody, options: ReaderOptions, conversation: Conversation, logprobs: int | None
) -> GenerateRequest:
    max_tokens = body.max_output_tokens
    if max_tokens == 0:
        raise invalid_value("max_output_tokens", "expected -1 or an integer >= 1")
    constraints: list[tuple[str, Constraint]] = []
    format = body.text.format if body.text is not None else None
    match "text" if format is None else check_one_of(format.type, FORMATS, "text.format.type"):
        case "json_object":
            constraints.append(("text.format", AnyJsonObject()))
        case "json_schema" if format is not None:
            schema = read_schema(format.schema, "text.format.schema")
            if schema is None:
                raise missing_parameter("text.format.schema")
            json_schema = JsonSchema(
                schema,
                strict=bool(format.strict),
                name=format.name,
                description=format.description or None,
            )
            constraints.append(("text.format", json_schema))
        case _:
            """Free text."""
    constraint, constraint_param = require_at_most_one(
        [*constraints, *read_structured_outputs(body)]
    )
    return GenerateRequest(
        model=resolve_model(body.model, options),
        prompt=conversation,
        sampling=body.build_sampling(),
        limits=body.build_limits(
            None if max_tokens == -1 else max_tokens,
            read_stop_strings(body.stop, options.max_stop),
            "max_output_tokens",
        ),
        constraint=constraint,
        constraint_param=constraint_param,
        logprobs=logprobs,
        special_tokens_in_text=body.skip_special_tokens is False,
        add_special_tokens=bool(body.add_special_tokens),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        extras=body.build_extras(),
    )


def _render_echo(body: ResponsesBody, tools: bytes, tool_choice: bytes) -> bytes:
    """Render the request fields that the response object repeats, without the
    instructions, as JSON without braces.
    """
    text = body.text or TextOptions()
    format = text.format
    if format is None or format.type != "json_schema":
        rendered_format = b'{"type":%s}' % encode_string("text" if format is None else format.type)
    else:
        # All keys are present, as Open Responses requires.
        rendered_format = b'{"type":"json_schema","name":%s,"description":%s,"schema":%s,"strict":%s}' % (  # noqa: E501
            encode_string(format.name or "response"), encode_string_or_null(format.description),
            minify(format.schema), encode_bool(bool(format.strict)),
        )  # fmt: skip
    fields = {
        "max_output_tokens": encode_int(
            None if body.max_output_tokens == -1 else body.max_output_tokens
        ),
        "max_tool_calls": encode_int(body.max_tool_calls),
        "metadata": escape_line_breaks(msgspec.json.encode(body.metadata or {})),
        "parallel_tool_calls": encode_bool(body.parallel_tool_calls is not False),
        "presence_penalty": msgspec.json.encode(body.presence_penalty or 0.0),
        "frequency_penalty": msgspec.json.encode(body.frequency_penalty or 0.0),
        "prompt_cache_key": encode_string_or_null(body.prompt_cache_key),
        "reasoning": b'{"effort":%s,"summary":%s}'
        % (
            encode_string_or_null(body.reasoning.effort if body.reasoning else None),
            encode_string_or_null(_read_summary(body)),
        ),
        "safety_identifier": encode_string_or_null(body.safety_identifier),
        # There is one tier. OpenAI's clients know this name for it, and check the
        # answer against their enum.
        "service_tier": b'"default"',
        # OpenAI's schema does not allow null here. 1.0 is its default, which the
        # model's own may differ from.
        "temperature": msgspec.json.encode(1.0 if body.temperature is None else body.temperature),
        "text": b'{"format":%s,"verbosity":%s}'
        % (rendered_format, encode_string(text.verbosity or "medium")),
        "tool_choice": tool_choice,
        "tools": tools,
        "top_logprobs": encode_int(body.top_logprobs or 0),
        "top_p": msgspec.json.encode(1.0 if body.top_p is None else body.top_p),
        "truncation": encode_string(body.truncation or "disabled"),
    }
    if body.user is not None:
        fields["user"] = encode_string(body.user)
    return b",".join(b'"%s":%s' % (name.encode(), value) for name, value in fields.items())
