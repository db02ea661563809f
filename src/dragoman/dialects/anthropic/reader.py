"""Parses a Messages body to a GenerationCall, and a count_tokens body to a CountCall."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from ...core.errors import RequestError
from ...core.message import Role
from ...core.request import Constraint, Conversation, GenerateRequest, JsonSchema, ReasoningOptions, TemplateOptions
from ..base import GenerationCall, Header, Purpose, ReaderOptions, SealingKey
from ..body import BodySchema, ParsedBody, check_one_of, missing_parameter, read_json_object, read_json_value
from ..constraints import read_schema, read_structured_outputs, require_at_most_one
from ..envelope import ResponseId
from ..fields import read_stop_strings, resolve_model
from ..thinking import read_thinking_switch
from .context_management import read_edits
from .errors import MESSAGES_NAMES, ThreadUnsupported
from .messages import MessageHistory, read_history, wants_citations
from .parameters import COUNT_TOKENS, MESSAGES
from .thinking_blocks import ThinkingBlockReader
from .tools import AnthropicToolRegistry
from .wire import MESSAGES_NESTED, MessagesBody, MessagesPromptFields, OutputFormat
from .writer import MessagesRenderOptions, MessagesWriter

EFFORTS = ("low", "medium", "high", "xhigh", "max")
ID_PREFIX, TOOL_PREFIX = "msg_", "toolu_"

_BODY, _PROMPT_FIELDS = BodySchema(MessagesBody), BodySchema(MessagesPromptFields, MESSAGES_NESTED)


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
    """Parse a Messages body. Raises RequestError, and nothing else."""
    parsed = ParsedBody(data)
    prompting = parsed.decode(_PROMPT_FIELDS)
    body = parsed.decode(_BODY)
    warnings, unknown = MESSAGES.classify_body(parsed, _BODY, _PROMPT_FIELDS)
    if body.service_tier is not None:
        check_one_of(body.service_tier, ("auto", "standard_only"), "service_tier")
    conversation = _read_conversation(prompting, options, warnings)
    request = _build_request(body, prompting, conversation, options)
    render_options = _build_render_options(request.limits.max_tokens, prompting, options.sealing_key)
    id = ResponseId(ID_PREFIX, body.request_id)

    def writer(header: Header) -> MessagesWriter:
        return MessagesWriter(id.apply_to(header), render_options)

    return GenerationCall(
        (request,), bool(body.stream), ID_PREFIX, writer, tuple(warnings), unknown, TOOL_PREFIX, MESSAGES_NAMES
    )


def read_count_tokens(data: bytes, options: ReaderOptions) -> CountCall:
    """Parse a count_tokens body. Raises RequestError, and nothing else."""
    parsed = ParsedBody(data)
    prompting = parsed.decode(_PROMPT_FIELDS)
    warnings, unknown = COUNT_TOKENS.classify_body(parsed, _PROMPT_FIELDS)
    conversation = _read_conversation(prompting, options, warnings)
    reports_edits = prompting.context_management is not None
    return CountCall(resolve_model(prompting.model, options), conversation, reports_edits, tuple(warnings), unknown)


def _read_conversation(body: MessagesPromptFields, options: ReaderOptions, warnings: list[str]) -> Conversation:
    if read_json_value(body.thread, "thread") is not None:
        raise ThreadUnsupported
    toolbox = AnthropicToolRegistry(body.tools or (), warnings)
    toolbox.apply_changes(body.messages)
    if wants_citations(body.messages):
        warnings.append("citations: citations are not supported")
    history = read_history(
        body.messages, body.system, ThinkingBlockReader(options.sealing_key, warnings), drop_nonces=options.drop_nonces
    )
    choice = body.tool_choice
    return Conversation(
        history.messages,
        toolbox.tools,
        toolbox.read_choice(choice),
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
    """The template's own switch, if set, takes precedence because it is more specific."""
    enabled, budget = None, None
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
    return ReasoningOptions(enabled if switch is None else switch, _read_effort(body), budget)


def _read_effort(body: MessagesPromptFields) -> str | None:
    """The last effort in the conversation: system messages can change it between turns."""
    configs = [(body.output_config, "output_config")]
    configs += [(message.output_config, f"messages[{i}].output_config") for i, message in enumerate(body.messages)]
    efforts = [
        check_one_of(config.effort, EFFORTS, f"{path}.effort")
        for config, path in configs
        if config is not None and config.effort
    ]
    return efforts[-1] if efforts else None


def _omits_thinking(body: MessagesPromptFields) -> bool:
    display = body.thinking.display if body.thinking is not None else None
    return (
        display is not None
        and check_one_of(display, ("summarized", "omitted", "updates"), "thinking.display") == "omitted"
    )


def _build_render_options(
    max_tokens: int | None, body: MessagesPromptFields, sealing_key: SealingKey | None
) -> MessagesRenderOptions:
    """Omitted thinking is sealed in its signature, so that it can be restored in the next turn."""
    omits_thinking, reports_edits = _omits_thinking(body), body.context_management is not None
    if sealing_key is None:
        return MessagesRenderOptions(max_tokens, omits_thinking, reports_edits=reports_edits)
    # Clients send a signature back unchanged, so it can carry the text that they did not receive.
    sign = partial(sealing_key.seal, Purpose.REASONING) if omits_thinking else sealing_key.sign
    return MessagesRenderOptions(max_tokens, omits_thinking, sign, reports_edits)


def _build_request(
    body: MessagesBody, prompting: MessagesPromptFields, conversation: Conversation, options: ReaderOptions
) -> GenerateRequest:
    stop = read_stop_strings(body.stop_sequences, options.max_stop, "stop_sequences")
    constraint, constraint_param = _read_constraint(body, prompting, conversation.template.continue_final_message)
    return GenerateRequest(
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
    # The grammar describes the whole answer, of which the client has already written the beginning.
    if constraint is not None and is_prefilled:
        raise RequestError("A response format cannot be combined with a prefilled answer.", param="messages")
    return constraint, param


def _read_format(format: OutputFormat | None, path: str) -> list[tuple[str, Constraint]]:
    if format is None:
        return []
    check_one_of(format.type, ("json_schema",), f"{path}.type")
    schema = read_schema(format.schema, f"{path}.schema")
    if schema is None:
        raise missing_parameter(f"{path}.schema")
    return [(path, JsonSchema(schema))]
