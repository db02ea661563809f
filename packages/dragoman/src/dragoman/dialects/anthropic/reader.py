"""Parses a Messages body into a GenerationCall, or a count_tokens body into a
CountCall.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Raw, Struct
from msgspec.structs import replace

from ...core.errors import RequestError
from ...core.message import Role, ToolChoice
from ...core.request import (
    Constraint,
    Conversation,
    GenerateRequest,
    JsonSchema,
    ReasoningOptions,
    TemplateOptions,
)
from ...core.server_tools import ToolList
from ..chunk_envelope import ResponseId
from ..constraint_fields import read_schema, read_structured_outputs, require_at_most_one
from ..field_errors import check_one_of, missing_parameter
from ..generation_fields import read_stop_strings, read_thinking_switch, resolve_model
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..request_body import BodySchema, ParsedBody, read_json_object, read_json_value
from ..sealing import Purpose, SealingKey, VerificationMode, pack_reasoning
from ..unknown_fields import MAX_UNKNOWN
from .content_blocks import ThinkingBlockReader
from .context_edits import read_edits
from .errors import MESSAGES_NAMES, ThreadUnsupported
from .mcp_toolsets import McpToolset, build_plan, read_hosted_tools, read_toolsets
from .message_history import read_history, wants_citations
from .tool_registry import AnthropicToolRegistry, has_tool_changes
from .wire import (
    COUNT_TOKENS,
    MESSAGES,
    MESSAGES_NESTED,
    AnthropicWireToolChoice,
    McpServerDefinition,
    MessagesBody,
    MessagesHistoryFields,
    MessagesPromptFields,
    OutputFormat,
)
from .writer import MessagesRenderOptions, MessagesWriter

EFFORTS = ("low", "medium", "high", "xhigh", "max")
ID_PREFIX = "msg_"
TOOL_PREFIX = "toolu_"

_BODY = BodySchema(MessagesBody)
_HISTORY_FIELDS = BodySchema(MessagesHistoryFields, MESSAGES_NESTED)
_PROMPT_FIELDS = BodySchema(MessagesPromptFields, MESSAGES_NESTED)


class CountCall(Struct, frozen=True):
    """The conversation of a count_tokens request.

    reports_edits: the response includes the count before context edits.
    warnings, unknown: as in `GenerationCall`.
    """

    model: str
    conversation: Conversation
    reports_edits: bool = False
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class _PromptPlan(Struct, frozen=True):
    """What `MessagesPromptFields` say.

    conversation: without messages and the client's tools.
    declared_tools: the client's tools, which system messages may change.
    toolsets: those of servers, which will list them; then the tool choice is read again.
    thinks_after_results: reasoning is enabled only after the result of a tool.
    """

    conversation: Conversation
    declared_tools: AnthropicToolRegistry
    tool_choice: AnthropicWireToolChoice | None
    toolsets: tuple[McpToolset, ...]
    thinks_after_results: bool


class _MessagesPlan(Struct, frozen=True):
    """What the fields of a body besides `MessagesHistoryFields` say.

    request: without its prompt.
    """

    prompt: _PromptPlan
    request: GenerateRequest
    stream: bool
    id: ResponseId
    render_options: MessagesRenderOptions
    writer: Callable[[Header], MessagesWriter]
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]


def read_messages(data: bytes, options: ReaderOptions) -> GenerationCall:
    """Parse a Messages body. Raises only RequestError."""
    parsed = ParsedBody(data)
    history_fields = parsed.decode(_HISTORY_FIELDS)
    unknown = _HISTORY_FIELDS.nested.find_unknown(parsed.fields)
    plan = _find_plan(parsed.fields, options)
    warnings = [*plan.warnings]
    conversation = _read_conversation(plan.prompt, history_fields, options, warnings)
    # The grammar describes the whole answer, but the client has already written its
    # beginning.
    if conversation.template.continue_final_message and plan.request.constraint is not None:
        raise RequestError(
            "A response format cannot be combined with a prefilled answer.", param="messages"
        )
    call = GenerationCall(
        (replace(plan.request, prompt=conversation),),
        plan.stream,
        ID_PREFIX,
        plan.writer,
        tuple(warnings),
        (*plan.unknown, *unknown)[:MAX_UNKNOWN] if unknown else plan.unknown,
        TOOL_PREFIX,
        MESSAGES_NAMES,
    )
    toolsets = plan.prompt.toolsets
    if not toolsets:
        return call

    def with_tool_lists(lists: tuple[ToolList, ...]) -> GenerationCall:
        taken = [tool.name for tool in conversation.tools]
        tool_plan, functions = build_plan(toolsets, lists, taken)
        registry = plan.prompt.declared_tools.copy([])
        registry.apply_changes(history_fields.messages)
        registry.add_server_tools(functions)
        prompt = replace(
            conversation,
            tools=registry.tools,
            tool_choice=registry.read_choice(plan.prompt.tool_choice),
        )
        rendering = replace(plan.render_options, server_tools=tool_plan.tools)

        def server_tool_writer(header: Header) -> MessagesWriter:
            return MessagesWriter(plan.id.apply_to(header), rendering)

        return replace(
            call,
            requests=(replace(plan.request, prompt=prompt),),
            writer=server_tool_writer,
            server_tools=tool_plan,
        )

    return replace(
        call,
        unlisted=tuple(toolset.server for toolset in toolsets),
        with_tool_lists=with_tool_lists,
    )


def read_count_tokens(data: bytes, options: ReaderOptions) -> CountCall:
    """Parse a count_tokens body. Raises only RequestError."""
    parsed = ParsedBody(data)
    history_fields = parsed.decode(_HISTORY_FIELDS)
    prompting = parsed.decode(_PROMPT_FIELDS)
    warnings, unknown = COUNT_TOKENS.classify_body(parsed, _HISTORY_FIELDS, _PROMPT_FIELDS)
    plan = _build_prompt_plan(prompting, (), options, warnings)
    return CountCall(
        resolve_model(prompting.model, options),
        _read_conversation(plan, history_fields, options, warnings),
        prompting.context_management is not None,
        tuple(warnings),
        unknown,
    )


def _find_plan(fields: Mapping[str, Raw], options: ReaderOptions) -> _MessagesPlan:
    """Return the plan of a body's fields. Raises RequestError."""
    return options.plans.find_or_build(
        _MessagesPlan,
        fields,
        MessagesHistoryFields.__struct_fields__,
        (options,),
        lambda data: _build_plan(data, options),
        keeps="mcp_servers" not in fields,
    )


def _build_plan(data: bytes, options: ReaderOptions) -> _MessagesPlan:
    """data: the body without `MessagesHistoryFields`."""
    parsed = ParsedBody(data)
    prompting = parsed.decode(_PROMPT_FIELDS)
    body = parsed.decode(_BODY)
    warnings, unknown = MESSAGES.classify_body(parsed, _BODY, _PROMPT_FIELDS)
    if body.service_tier is not None:
        check_one_of(body.service_tier, ("auto", "standard_only"), "service_tier")
    prompt = _build_prompt_plan(prompting, body.mcp_servers or (), options, warnings)
    stop = read_stop_strings(body.stop_sequences, options.max_stop, "stop_sequences")
    constraint, constraint_param = _read_constraint(body, prompting)
    request = GenerateRequest(
        model=resolve_model(prompting.model, options),
        prompt=prompt.conversation,
        sampling=body.build_sampling(),
        limits=body.build_limits(None if body.max_tokens == -1 else body.max_tokens, stop),
        constraint=constraint,
        constraint_param=constraint_param,
        special_tokens_in_text=body.skip_special_tokens is False,
        add_special_tokens=bool(body.add_special_tokens),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        extras=body.build_extras(),
    )
    render_options = _build_render_options(prompting, options.sealing_key)
    id = ResponseId(ID_PREFIX, body.request_id)

    def writer(header: Header) -> MessagesWriter:
        return MessagesWriter(id.apply_to(header), render_options)

    return _MessagesPlan(
        prompt,
        request,
        bool(body.stream),
        id,
        render_options,
        writer,
        tuple(warnings),
        unknown,
    )


def _build_prompt_plan(
    body: MessagesPromptFields,
    servers: Sequence[McpServerDefinition],
    options: ReaderOptions,
    warnings: list[str],
) -> _PromptPlan:
    """servers: the body's `mcp_servers`."""
    tools = body.tools or ()
    of_servers = read_toolsets(servers, tools)
    hosted = read_hosted_tools(tools, options.hosted_tools, warnings)
    if read_json_value(body.thread, "thread") is not None:
        raise ThreadUnsupported
    declared_tools = AnthropicToolRegistry(
        tools, warnings, has_servers=bool(of_servers), hosted_tools=options.hosted_tools
    )
    choice = body.tool_choice
    thinking = body.thinking
    conversation = Conversation(
        (),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        reasoning=_read_reasoning(body),
        template=TemplateOptions(
            kwargs=read_json_object(body.chat_template_kwargs, "chat_template_kwargs"),
            template=body.chat_template,
        ),
        edits=read_edits(body.context_management, warnings),
    )
    return _PromptPlan(
        conversation,
        declared_tools,
        choice,
        (*of_servers, *hosted),
        thinking is not None
        and thinking.type == "between_tools"
        and conversation.reasoning.enabled is None,
    )


def _read_conversation(
    plan: _PromptPlan,
    fields: MessagesHistoryFields,
    options: ReaderOptions,
    warnings: list[str],
) -> Conversation:
    tools = plan.declared_tools
    messages = fields.messages
    if has_tool_changes(messages):
        tools = tools.copy(warnings)
        tools.apply_changes(messages)
    if wants_citations(messages):
        warnings.append("citations: citations are not supported")
    thinking_reader = ThinkingBlockReader(
        options.sealing_key, warnings, keeps_seal=options.keeps_seal
    )
    history = read_history(
        messages, fields.system, thinking_reader, drop_nonces=options.drop_nonces
    )
    reasoning = plan.conversation.reasoning
    if plan.thinks_after_results:
        reasoning = replace(reasoning, enabled=history.last_speaker is Role.TOOL)
    # The last effort in the conversation applies: system messages can change it between
    # turns.
    for i, message in enumerate(messages):
        if message.output_config is not None and (effort := message.output_config.effort):
            check_one_of(effort, EFFORTS, f"messages[{i}].output_config.effort")
            reasoning = replace(reasoning, effort=effort)
    template = plan.conversation.template
    if history.is_prefilled:
        template = replace(template, add_generation_prompt=False, continue_final_message=True)
    return replace(
        plan.conversation,
        messages=history.messages,
        tools=tools.tools,
        tool_choice=ToolChoice() if plan.toolsets else tools.read_choice(plan.tool_choice),
        reasoning=reasoning,
        template=template,
    )


def _read_reasoning(body: MessagesPromptFields) -> ReasoningOptions:
    """Parse the reasoning options. A switch in `chat_template_kwargs` takes precedence,
    since it is more specific.
    """
    enabled = None
    budget = None
    if (thinking := body.thinking) is not None:
        kinds = ("enabled", "adaptive", "disabled", "between_tools")
        match check_one_of(thinking.type, kinds, "thinking.type"):
            case "between_tools":
                pass  # Depends on the messages.
            case "disabled":
                enabled = False
            case kind:
                enabled = True
                budget = thinking.budget_tokens
                if budget is None and kind == "enabled":
                    raise missing_parameter("thinking.budget_tokens")
    switch = read_thinking_switch(body.chat_template_kwargs)
    config = body.output_config
    effort = None
    if config is not None and config.effort:
        effort = check_one_of(config.effort, EFFORTS, "output_config.effort")
    return ReasoningOptions(
        enabled if switch is None else switch,
        effort,
        budget,
        # `enabled` requires `budget_tokens`, so a client that sets it may want no more
        # than thinking.
        budget_is_hint=budget is not None,
    )


def _build_render_options(
    body: MessagesPromptFields, sealing_key: SealingKey | None
) -> MessagesRenderOptions:
    """Build the render options. Omitted thinking is sealed in its signature, and
    restored from it in the next turn.
    """
    display = None if body.thinking is None else body.thinking.display
    if display is not None:
        check_one_of(display, ("summarized", "omitted", "updates"), "thinking.display")
    omits_thinking = display == "omitted"
    reports_edits = body.context_management is not None
    if sealing_key is None:
        return MessagesRenderOptions(omits_thinking, reports_edits=reports_edits)
    # Clients send a signature back unchanged, so it can carry the text that they did
    # not receive.
    seal = partial(sealing_key.seal, Purpose.REASONING)
    sign = seal if omits_thinking else sealing_key.sign

    def wrap_seal(text: str, vendor_seal: str) -> str:
        return seal(pack_reasoning(text, vendor_seal))

    is_wrapped = omits_thinking or sealing_key.check is VerificationMode.STRICT
    return MessagesRenderOptions(
        omits_thinking,
        sign,
        reports_edits,
        wrap_seal if is_wrapped else None,
        seal=partial(sealing_key.seal, Purpose.SEARCH),
    )


def _read_constraint(
    body: MessagesBody, prompting: MessagesPromptFields
) -> tuple[Constraint | None, str]:
    config = prompting.output_config
    return require_at_most_one(
        [
            *_read_format(config.format if config is not None else None, "output_config.format"),
            *_read_format(prompting.output_format, "output_format"),
            *read_structured_outputs(body),
        ]
    )


def _read_format(format: OutputFormat | None, path: str) -> list[tuple[str, Constraint]]:
    if format is None:
        return []
    check_one_of(format.type, ("json_schema",), f"{path}.type")
    schema = read_schema(format.schema, f"{path}.schema")
    if schema is None:
        raise missing_parameter(f"{path}.schema")
    return [(path, JsonSchema(schema))]
