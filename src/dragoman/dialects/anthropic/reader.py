"""A Messages body to a Call, and a count_tokens body to the conversation that is to be counted."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from ...core.errors import RequestError
from ...core.message import Role
from ...core.request import Constraint, Conversation, GenerateRequest, JsonSchema, ReasoningOptions, TemplateOptions
from ..base import Call, Header, ReaderOptions
from ..body import Body, Shape, json_text, json_value, missing, one_of
from ..constraints import only_one, schema_text, structured
from ..envelope import AnswerId
from ..fields import model_of, stop_strings
from ..sealing import Purpose, Sealing
from ..thinking import thinking_switch
from .edits import read_edits
from .errors import ThreadUnsupported
from .messages import History, read_history, wants_citations
from .parameters import COUNT_TOKENS, MESSAGES
from .thoughts import Thoughts
from .tools import Toolbox
from .wire import MessagesBody, OutputFormat, Prompting
from .writer import MessagesView, MessagesWriter

EFFORTS = ("low", "medium", "high", "xhigh", "max")
ID_PREFIX, TOOL_PREFIX = "msg_", "toolu_"

_BODY, _PROMPTING = Shape(MessagesBody), Shape(Prompting)


class CountCall(Struct, frozen=True):
    """What is to be counted. tells_edits: the answer says what it was before edits. warnings, unknown: as in `Call`."""

    model: str
    conversation: Conversation
    tells_edits: bool = False
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def read_messages(data: bytes, options: ReaderOptions) -> Call:
    """Raises RequestError, and nothing else."""
    parsed = Body(data)
    prompting = parsed.read(_PROMPTING)
    body = parsed.read(_BODY)
    warnings, unknown = MESSAGES.judge(parsed.others(_BODY.names, _PROMPTING.names))
    if body.service_tier is not None:
        one_of(body.service_tier, ("auto", "standard_only"), "service_tier")
    conversation = _conversation(prompting, options, warnings)
    request = _request(body, prompting, conversation, options)
    view = _view(request.limits.max_tokens, prompting, options.sealing)
    id = AnswerId(ID_PREFIX, body.request_id)

    def writer(header: Header) -> MessagesWriter:
        return MessagesWriter(id.over(header), view)

    return Call((request,), bool(body.stream), ID_PREFIX, writer, tuple(warnings), unknown, TOOL_PREFIX)


def read_count_tokens(data: bytes, options: ReaderOptions) -> CountCall:
    """Raises RequestError, and nothing else."""
    parsed = Body(data)
    prompting = parsed.read(_PROMPTING)
    warnings, unknown = COUNT_TOKENS.judge(parsed.others(_PROMPTING.names))
    conversation = _conversation(prompting, options, warnings)
    tells_edits = prompting.context_management is not None
    return CountCall(model_of(prompting.model, options), conversation, tells_edits, tuple(warnings), unknown)


def _conversation(body: Prompting, options: ReaderOptions, warnings: list[str]) -> Conversation:
    if json_value(body.thread, "thread") is not None:
        raise ThreadUnsupported
    toolbox = Toolbox(body.tools or (), warnings)
    toolbox.change(body.messages)
    if wants_citations(body.messages):
        warnings.append("citations: citations are not supported")
    history = read_history(
        body.messages, body.system, Thoughts(options.sealing, warnings), drop_nonces=options.drop_nonces
    )
    choice = body.tool_choice
    return Conversation(
        history.messages,
        toolbox.tools,
        toolbox.choice(choice),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        reasoning=_reasoning(body, history),
        template=TemplateOptions(
            kwargs=json_text(body.chat_template_kwargs, "chat_template_kwargs"),
            template=body.chat_template,
            add_generation_prompt=not history.prefilled,
            continue_final_message=history.prefilled,
        ),
        edits=read_edits(body.context_management, warnings),
    )


def _reasoning(body: Prompting, history: History) -> ReasoningOptions:
    """The template's own switch, where it was set, says more exactly what is wanted."""
    enabled, budget = None, None
    if (thinking := body.thinking) is not None:
        kinds = ("enabled", "adaptive", "disabled", "between_tools")
        match one_of(thinking.type, kinds, "thinking.type"):
            case "between_tools":
                enabled = history.last_speaker is Role.TOOL
            case "disabled":
                enabled = False
            case kind:
                enabled = True
                budget = thinking.budget_tokens
                if budget is None and kind == "enabled":
                    raise missing("thinking.budget_tokens")
    switch = thinking_switch(body.chat_template_kwargs)
    return ReasoningOptions(enabled if switch is None else switch, _effort(body), budget)


def _effort(body: Prompting) -> str | None:
    """The last that was said: messages of the system can change it on the way."""
    said = [(body.output_config, "output_config")]
    said += [(message.output_config, f"messages[{i}].output_config") for i, message in enumerate(body.messages)]
    efforts = [
        one_of(config.effort, EFFORTS, f"{at}.effort") for config, at in said if config is not None and config.effort
    ]
    return efforts[-1] if efforts else None


def _omits_thinking(body: Prompting) -> bool:
    display = body.thinking.display if body.thinking is not None else None
    return display is not None and one_of(display, ("summarized", "omitted"), "thinking.display") == "omitted"


def _view(max_tokens: int | None, body: Prompting, sealing: Sealing | None) -> MessagesView:
    """A thought that is withheld is sealed in its signature, so that the model has it again in the next turn."""
    omits_thinking, tells_edits = _omits_thinking(body), body.context_management is not None
    if sealing is None:
        return MessagesView(max_tokens, omits_thinking, tells_edits=tells_edits)
    sign = partial(sealing.seal, Purpose.REASONING) if omits_thinking else sealing.sign
    return MessagesView(max_tokens, omits_thinking, sign, tells_edits)


def _request(
    body: MessagesBody, prompting: Prompting, conversation: Conversation, options: ReaderOptions
) -> GenerateRequest:
    stop = stop_strings(body.stop_sequences, options.max_stop, "stop_sequences")
    return GenerateRequest(
        model=model_of(prompting.model, options),
        prompt=conversation,
        sampling=body.sampling(),
        limits=body.ending(None if body.max_tokens == -1 else body.max_tokens, stop),
        constraint=_constraint(body, prompting, conversation.template.continue_final_message),
        special_tokens_in_text=body.skip_special_tokens is False,
        add_special_tokens=bool(body.add_special_tokens),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        extras=body.extras(),
    )


def _constraint(body: MessagesBody, prompting: Prompting, prefilled: bool) -> Constraint | None:
    config = prompting.output_config
    constraint = only_one(
        [
            *_format(config.format if config is not None else None, "output_config.format"),
            *_format(prompting.output_format, "output_format"),
            *structured(body),
        ]
    )
    if constraint is not None and prefilled:
        raise RequestError("A response format cannot be combined with a prefilled answer.", param="messages")
    return constraint


def _format(format: OutputFormat | None, at: str) -> list[tuple[str, Constraint]]:
    if format is None:
        return []
    one_of(format.type, ("json_schema",), f"{at}.type")
    schema = schema_text(format.schema, f"{at}.schema")
    if schema is None:
        raise missing(f"{at}.schema")
    return [(at, JsonSchema(schema))]
