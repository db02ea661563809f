"""Parses a Messages body into a GenerationCall, or a count_tokens body into a
CountCall.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct
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
from .content_blocks import ThinkingBlockReader
from .context_edits import read_edits
from .errors import MESSAGES_NAMES, ThreadUnsupported
from .mcp_toolsets import McpToolset, build_plan, read_hosted_tools, read_toolsets
from .message_history import MessageHistory, read_history, wants_citations
from .tool_registry import AnthropicToolRegistry
from .wire import (
    COUNT_TOKENS,
    MESSAGES,
    MESSAGES_NESTED,
    MessagesBody,
    MessagesPromptFields,
    OutputFormat,
)
from .writer import MessagesRenderOptions, MessagesWriter

EFFORTS = ("low", "medium", "high", "xhigh", "max")
ID_PREFIX = "msg_"
TOOL_PREFIX = "toolu_"

_BODY = BodySchema(MessagesBody)
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


def read_messages(data: bytes, options: ReaderOptions) -> GenerationCall:
    """Parse a Messages body. Raises only RequestError."""
    parsed = ParsedBody(data)
    prompting = parsed.decode(_PROMPT_FIELDS)
    body = parsed.decode(_BODY)
    warnings, unknown = MESSAGES.classify_body(parsed, _BODY, _PROMPT_FIELDS)
    if body.service_tier is not None:
        check_one_of(body.service_tier, ("auto", "standard_only"), "service_tier")
    of_servers = read_toolsets(body.mcp_servers or (), prompting.tools or ())
    hosted = read_hosted_tools(prompting.tools or (), options.hosted_tools, warnings)
    toolsets = (*of_servers, *hosted)
    conversation = _read_conversation(prompting, options, warnings, toolsets)
    stop = read_stop_strings(body.stop_sequences, options.max_stop, "stop_sequences")
    constraint, constraint_param = _read_constraint(
        body, prompting, conversation.template.continue_final_message
    )
    request = GenerateRequest(
        model=resolve_model(prompting.model, options),
        prompt=conversation,
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

    call = GenerationCall(
        (request,),
        bool(body.stream),
        ID_PREFIX,
        writer,
        tuple(warnings),
        unknown,
        TOOL_PREFIX,
        MESSAGES_NAMES,
    )
    if not toolsets:
        return call

    def with_tool_lists(lists: tuple[ToolList, ...]) -> GenerationCall:
        taken = [tool.name for tool in conversation.tools]
        plan, functions = build_plan(toolsets, lists, taken)
        registry = AnthropicToolRegistry(
            prompting.tools or (),
            [],
            has_servers=bool(of_servers),
            hosted_tools=options.hosted_tools,
        )
        registry.apply_changes(prompting.messages)
        registry.add_server_tools(functions)
        prompt = replace(
            conversation,
            tools=registry.tools,
            tool_choice=registry.read_choice(prompting.tool_choice),
        )
        rendering = replace(render_options, server_tools=plan.tools)

        def server_tool_writer(header: Header) -> MessagesWriter:
            return MessagesWriter(id.apply_to(header), rendering)

        return replace(
            call,
            requests=(replace(request, prompt=prompt),),
            writer=server_tool_writer,
            server_tools=plan,
        )

    return replace(
        call,
        unlisted=tuple(toolset.server for toolset in toolsets),
        with_tool_lists=with_tool_lists,
    )


def read_count_tokens(data: bytes, options: ReaderOptions) -> CountCall:
    """Parse a count_tokens body. Raises only RequestError."""
    parsed = ParsedBody(data)
    prompting = parsed.decode(_PROMPT_FIELDS)
    warnings, unknown = COUNT_TOKENS.classify_body(parsed, _PROMPT_FIELDS)
    hosted = read_hosted_tools(prompting.tools or (), options.hosted_tools, warnings)
    conversation = _read_conversation(prompting, options, warnings, hosted)
    reports_edits = prompting.context_management is not None
    return CountCall(
        resolve_model(prompting.model, options),
        conversation,
        reports_edits,
        tuple(warnings),
        unknown,
    )


def _read_conversation(
    body: MessagesPromptFields,
    options: ReaderOptions,
    warnings: list[str],
    toolsets: Sequence[McpToolset],
) -> Conversation:
    """Read the conversation. toolsets: servers will list their tools, with which the tool
    choice is read again.
    """
    if read_json_value(body.thread, "thread") is not None:
        raise ThreadUnsupported
    toolbox = AnthropicToolRegistry(
        body.tools or (),
        warnings,
        has_servers=any(not toolset.hosted for toolset in toolsets),
        hosted_tools=options.hosted_tools,
    )
    toolbox.apply_changes(body.messages)
    if wants_citations(body.messages):
        warnings.append("citations: citations are not supported")
    thinking_reader = ThinkingBlockReader(
        options.sealing_key, warnings, keeps_seal=options.keeps_seal
    )
    history = read_history(
        body.messages, body.system, thinking_reader, drop_nonces=options.drop_nonces
    )
    choice = body.tool_choice
    return Conversation(
        history.messages,
        toolbox.tools,
        ToolChoice() if toolsets else toolbox.read_choice(choice),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        reasoning=_read_reasoning(body, history),
        template=TemplateOptions(
            kwargs=read_json_object(body.chat_template_kwargs, "chat_template_kwargs"),
            template=body.chat_template,
            add_generation_prompt=not history.is_prefilled,
            continue_final_message=history.is_prefilled,
        ),
        edits=read_edits(body.context_management, warnings),
    )


def _read_reasoning(body: MessagesPromptFields, history: MessageHistory) -> ReasoningOptions:
    """Parse the reasoning options. A switch in `chat_template_kwargs` takes precedence,
    since it is more specific.
    """
    enabled = None
    budget = None
    if (thinking := body.thinking) is not None:
        kinds = ("enabled", "adaptive", "disabled", "between_tools")
        match check_one_of(thinking.type, kinds, "thinking.type"):
            case "between_tools":
                enabled = history.last_speaker is Role.TOOL
            case "disabled":
                enabled = False
            case kind:
                enabled = True
                budget = thinking.budget_tokens
                if budget is None and kind == "enabled":
                    raise missing_parameter("thinking.budget_tokens")
    switch = read_thinking_switch(body.chat_template_kwargs)
    # The last effort in the conversation applies: system messages can change it between
    # turns.
    configs = [(body.output_config, "output_config")]
    configs += [
        (message.output_config, f"messages[{i}].output_config")
        for i, message in enumerate(body.messages)
    ]
    efforts = [
        check_one_of(config.effort, EFFORTS, f"{path}.effort")
        for config, path in configs
        if config is not None and config.effort
    ]
    return ReasoningOptions(
        enabled if switch is None else switch,
        efforts[-1] if efforts else None,
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
    body: MessagesBody, prompting: MessagesPromptFields, is_prefilled: bool
) -> tuple[Constraint | None, str]:
    config = prompting.output_config
    constraint, param = require_at_most_one(
        [
            *_read_format(config.format if config is not None else None, "output_config.format"),
            *_read_format(prompting.output_format, "output_format"),
            *read_structured_outputs(body),
        ]
    )
    # The grammar describes the whole answer, but the client has already written its
    # beginning.
    if constraint is not None and is_prefilled:
        raise RequestError(
            "A response format cannot be combined with a prefilled answer.", param="messages"
        )
    return constraint, param


def _read_format(format: OutputFormat | None, path: str) -> list[tuple[str, Constraint]]:
    if format is None:
        return []
    check_one_of(format.type, ("json_schema",), f"{path}.type")
    schema = read_schema(format.schema, f"{path}.schema")
    if schema is None:
        raise missing_parameter(f"{path}.schema")
    return [(path, JsonSchema(schema))]
