"""A Responses body to a ResponsesCall."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import Raw, Struct

from ...core.errors import Unsupported
from ...core.message import Message, Role, Text, ToolChoice
from ...core.request import (
    Constraint,
    Conversation,
    GenerateRequest,
    JsonObject,
    JsonSchema,
    ReasoningOptions,
    TemplateOptions,
)
from ..base import Call, ReaderOptions
from ..body import Body, Shape, invalid, json_text, missing, one_of
from ..body import echo as quote
from ..constraints import only_one, schema_text, structured
from ..envelope import AnswerId
from ..fields import check_metadata, check_service_tier, model_of, stop_strings
from ..sealing import Purpose, Sealing
from ..text import line_safe, number, quoted, quoted_or_null
from ..thinking import thinking_switch
from .call import ResponsesCall, writer_of
from .echo import Echo, flag
from .items import HOSTED, TRIGGER, read_items
from .normal import InputItem, normal_item
from .parameters import RESPONSES
from .summary import WISH, wish_for_summary
from .text import compact as compacted_json
from .tools import Toolbox
from .view import ResponsesView
from .wire import ConversationId, Reasoning, ResponsesBody, TextFormat, TextOptions, WireItem

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
LOGPROBS, SEALED = "message.output_text.logprobs", "reasoning.encrypted_content"
INCLUDABLE = (
    LOGPROBS,
    SEALED,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
ID_PREFIX = "resp_"


class _Items(Struct, frozen=True):
    input: list[WireItem]


_BODY, _ITEMS = Shape(ResponsesBody), Shape(_Items)


def read_responses(
    data: bytes, options: ReaderOptions, *, now: Callable[[], int] | None = None, compact: bool = False
) -> ResponsesCall:
    """now: Unix seconds. compact: the answer is to be a compaction, as if a trigger asked for it.

    Raises RequestError, and nothing else.
    """
    parsed = Body(data)
    body = parsed.read(_BODY)
    # First of all what is refused by name: whoever sends a stored prompt sends no input.
    warnings, unknown = RESPONSES.judge(parsed.others(_BODY.names))
    items = _items(body, parsed.fields)
    _check(body, warnings)
    if compact and body.model is None:
        raise missing("model")
    compact = compact or _is_triggered(items)
    toolbox = Toolbox(body.tools or (), warnings)

    def messages(items: Sequence[WireItem], warnings: list[str]) -> tuple[Message, ...]:
        said = read_items(items, toolbox.joined, options.sealing, warnings)
        first = (Message(Role.SYSTEM, (Text(body.instructions),)),) if body.instructions else ()
        return (*first, *said, WISH) if compact else (*first, *said)

    def reread(items: Sequence[bytes]) -> tuple[Message, ...]:
        return messages(Body(b'{"input":[%s]}' % b",".join(items)).read(_ITEMS).input, [])

    tool_choice, shown_choice = toolbox.choice(body.tool_choice)
    conversation = _conversation(body, messages(items, warnings), toolbox, tool_choice, warnings)
    view = _view(body, toolbox, options.sealing, now, warnings)
    request = _request(body, options, conversation, view.logprobs)
    if compact:
        view, request = _compacting(view, options.sealing), wish_for_summary(request)
    echo, id = _echo(body, toolbox.echo, shown_choice), AnswerId(ID_PREFIX, body.request_id)
    return ResponsesCall(
        call=Call((request,), bool(body.stream), ID_PREFIX, writer_of(id, view, echo), tuple(warnings), unknown),
        input=_normal(items, parsed.fields),
        echo=echo,
        view=view,
        id=id,
        read=reread,
        previous_response_id=echo.previous_response_id,
        conversation=echo.conversation,
        store=body.store,
        background=echo.background,
    )


def _is_triggered(items: Sequence[WireItem]) -> bool:
    for i, item in enumerate(items):
        if item.type == TRIGGER and i < len(items) - 1:
            raise invalid(f"input[{i}]", f"'{TRIGGER}' must be the last item")
    return bool(items) and items[-1].type == TRIGGER


def _compacting(view: ResponsesView, sealing: Sealing | None) -> ResponsesView:
    if sealing is None:
        raise Unsupported("Compaction is not supported here: this server has no key to encrypt summaries.")
    return msgspec.structs.replace(view, compact=partial(sealing.seal, Purpose.COMPACTION))


def _conversation(
    body: ResponsesBody,
    messages: tuple[Message, ...],
    toolbox: Toolbox,
    tool_choice: ToolChoice,
    warnings: list[str],
) -> Conversation:
    kwargs = json_text(body.chat_template_kwargs, "chat_template_kwargs")
    return Conversation(
        messages,
        toolbox.tools,
        tool_choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=_reasoning(body, warnings),
        template=TemplateOptions(kwargs=kwargs, template=body.chat_template),
        drop_oldest=body.truncation == "auto",
    )


def _items(body: ResponsesBody, fields: Mapping[str, Raw]) -> list[WireItem]:
    """The input; a string is a message of the user."""
    if isinstance(body.input, str):
        return [WireItem(type="message", role="user", content=body.input)]
    if body.input or body.previous_response_id or body.conversation:
        return body.input or []
    if "messages" in fields:
        raise missing("input", " A body with 'messages' is a chat request: POST it to /v1/chat/completions.")
    raise missing("input")


def _normal(items: Sequence[WireItem], fields: Mapping[str, Raw]) -> tuple[InputItem, ...]:
    raws: list[dict[str, Raw]] = [{}] * len(items)
    if any(item.type in HOSTED for item in items):
        raws = msgspec.json.decode(fields["input"], type=list[dict[str, Raw]])
    found = zip(items, raws, strict=True)
    return tuple(normal_item(item, raw, f"input[{i}]") for i, (item, raw) in enumerate(found))


def _check(body: ResponsesBody, warnings: list[str]) -> None:
    """What changes nothing, or less than it says."""
    if body.previous_response_id and body.conversation:
        raise invalid("previous_response_id", "it cannot be combined with 'conversation'")
    if body.background and body.store is False:
        raise invalid("background", "it needs 'store' to be true")
    check_metadata(body.metadata)
    check_service_tier(body.service_tier, warnings)
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        raise Unsupported(
            "'stream_options.include_obfuscation' is not supported here: events are not padded.",
            param="stream_options.include_obfuscation",
        )
    if body.truncation is not None:
        one_of(body.truncation, ("auto", "disabled"), "truncation")
    verbosity = body.text.verbosity if body.text is not None else None
    if verbosity is not None and one_of(verbosity, ("low", "medium", "high"), "text.verbosity") != "medium":
        warnings.append("text.verbosity is ignored; ask for the desired length in the prompt")
    warnings.extend(f"include: {quote(name)} is not supported" for name in body.include or () if name not in INCLUDABLE)


def _reasoning(body: ResponsesBody, warnings: list[str]) -> ReasoningOptions:
    """The template's own switch, where it was set, says more exactly than an effort what is wanted."""
    asked = body.reasoning or Reasoning()
    if asked.effort is not None:
        one_of(asked.effort, EFFORTS, "reasoning.effort")
    if asked.context not in (None, "auto"):
        warnings.append("reasoning.context is ignored: the chat template determines which past reasoning is included")
    if asked.mode not in (None, "standard"):
        warnings.append("reasoning.mode is ignored: there is only one mode")
    switch = thinking_switch(body.chat_template_kwargs)
    enabled = False if switch is None and asked.effort == "none" else switch
    budget = body.thinking_token_budget
    return ReasoningOptions(enabled, asked.effort, None if budget == -1 else budget)


def _summary(body: ResponsesBody) -> str | None:
    if body.reasoning is None:
        return None
    summary = body.reasoning.summary or body.reasoning.generate_summary
    return None if summary is None else one_of(summary, ("auto", "concise", "detailed"), "reasoning.summary")


def _view(
    body: ResponsesBody, toolbox: Toolbox, sealing: Sealing | None, now: Callable[[], int] | None, warnings: list[str]
) -> ResponsesView:
    include = body.include or ()
    if SEALED in include and sealing is None:
        warnings.append(
            f"include: the server has no key for {SEALED}; reasoning is returned only as content or summary"
        )
    scored = LOGPROBS in include or bool(body.top_logprobs)
    return ResponsesView(
        logprobs=(body.top_logprobs or 0) if scored else None,
        summary=_summary(body) is not None,
        hide_reasoning=body.include_reasoning is False,
        names=toolbox.names,
        seal=partial(sealing.seal, Purpose.REASONING) if sealing is not None and SEALED in include else None,
        now=now,
    )


def _request(
    body: ResponsesBody, options: ReaderOptions, conversation: Conversation, logprobs: int | None
) -> GenerateRequest:
    most = body.max_output_tokens
    if most == 0:
        raise invalid("max_output_tokens", "expected -1 or an integer >= 1")
    return GenerateRequest(
        model=model_of(body.model, options),
        prompt=conversation,
        sampling=body.sampling(),
        limits=body.ending(None if most == -1 else most, stop_strings(body.stop, options.max_stop)),
        constraint=only_one([*_format(body), *structured(body)]),
        logprobs=logprobs,
        special_tokens_in_text=body.skip_special_tokens is False,
        add_special_tokens=bool(body.add_special_tokens),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        extras=body.extras(),
    )


def _format(body: ResponsesBody) -> list[tuple[str, Constraint]]:
    format = body.text.format if body.text is not None else None
    if format is None:
        return []
    match one_of(format.type, ("text", "json_object", "json_schema"), "text.format.type"):
        case "json_object":
            return [("text.format", JsonObject())]
        case "json_schema":
            schema = schema_text(format.schema, "text.format.schema")
            if schema is None:
                raise missing("text.format.schema")
            return [("text.format", JsonSchema(schema, strict=bool(format.strict), name=format.name))]
        case _:
            return []


def _echo(body: ResponsesBody, tools: bytes, tool_choice: bytes) -> Echo:
    conversation = body.conversation.id if isinstance(body.conversation, ConversationId) else body.conversation
    fields = {
        "instructions": quoted_or_null(body.instructions),
        "max_output_tokens": number(None if body.max_output_tokens == -1 else body.max_output_tokens),
        "max_tool_calls": number(body.max_tool_calls),
        "metadata": line_safe(msgspec.json.encode(body.metadata or {})),
        "parallel_tool_calls": flag(body.parallel_tool_calls is not False),
        "presence_penalty": msgspec.json.encode(body.presence_penalty or 0.0),
        "frequency_penalty": msgspec.json.encode(body.frequency_penalty or 0.0),
        "prompt_cache_key": quoted_or_null(body.prompt_cache_key),
        "reasoning": b'{"effort":%s,"summary":%s}'
        % (quoted_or_null(body.reasoning.effort if body.reasoning else None), quoted_or_null(_summary(body))),
        "safety_identifier": quoted_or_null(body.safety_identifier),
        "service_tier": b'"default"',
        "temperature": msgspec.json.encode(1.0 if body.temperature is None else body.temperature),
        "text": _shown_text(body.text or TextOptions()),
        "tool_choice": tool_choice,
        "tools": tools,
        "top_logprobs": number(body.top_logprobs or 0),
        "top_p": msgspec.json.encode(1.0 if body.top_p is None else body.top_p),
        "truncation": quoted(body.truncation or "disabled"),
    }
    if body.user is not None:
        fields["user"] = quoted(body.user)
    return Echo(
        rest=b",".join(b'"%s":%s' % (name.encode(), value) for name, value in fields.items()),
        store=body.store is not False,
        background=bool(body.background),
        previous_response_id=body.previous_response_id or None,
        conversation=conversation or None,
    )


def _shown_text(text: TextOptions) -> bytes:
    return b'{"format":%s,"verbosity":%s}' % (_shown_format(text.format), quoted(text.verbosity or "medium"))


def _shown_format(format: TextFormat | None) -> bytes:
    """All keys are there, as Open Responses wants them."""
    if format is None or format.type != "json_schema":
        return b'{"type":%s}' % quoted("text" if format is None else format.type)
    return b'{"type":"json_schema","name":%s,"description":%s,"schema":%s,"strict":%s}' % (
        quoted(format.name or "response"),
        quoted_or_null(format.description),
        compacted_json(format.schema),
        flag(bool(format.strict)),
    )
