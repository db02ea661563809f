"""Parses a body of OpenAI's `/v1/decisions` into a GenerationCall."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from ...core.field_names import FieldNames
from ...core.message import (
    Image,
    Message,
    Part,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from ..field_errors import check_one_of, invalid_value, require_value
from ..generation_fields import resolve_model
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..media import read_image_url
from ..request_body import ParsedBody, read_json_value
from .openai_wire import (
    DECISION_SCHEMA,
    DECISIONS,
    DecisionContent,
    DecisionItem,
    DecisionPart,
    DecisionQuestion,
)
from .openai_writer import OpenAIDecisionWriter
from .questions import AnswerOption, Question, QuestionPart, build_request

ID_PREFIX = "decision-"
_QUESTION_TYPES = ("predicate", "choice", "score")
_ITEM_TYPES = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)
_ROLES = ("user", "developer", "system", "assistant")
_INPUT_PARTS = ("input_text", "input_image", "input_json")
_DETAILS = ("auto", "low", "high", "original")
_NAMES = FieldNames(("messages", "input"), ("(?:top_)?logprobs", "questions"))


def read_decisions(data: bytes, options: ReaderOptions) -> GenerationCall:
    """Parse a body. Raises RequestError, and nothing else."""
    parsed = ParsedBody(data)
    body = parsed.decode(DECISION_SCHEMA)
    warnings, unknown = DECISIONS.classify_body(parsed, DECISION_SCHEMA)
    model = resolve_model(body.model, options)
    history = (
        (Message(Role.USER, (Text(body.input),)),)
        if isinstance(body.input, str)
        else _read_items(body.input)
    )
    questions = tuple(
        _read_question(question, f"questions[{index}]")
        for index, question in enumerate(body.questions)
    )

    def writer(header: Header) -> OpenAIDecisionWriter:
        return OpenAIDecisionWriter(header, tuple(body.questions), questions)

    return GenerationCall(
        tuple(
            build_request(model, history, question, cache_salt=body.cache_salt or "")
            for question in questions
        ),
        stream=False,
        id_prefix=ID_PREFIX,
        writer=writer,
        warnings=tuple(warnings),
        unknown=unknown,
        field_names=_NAMES,
    )


def _read_question(question: DecisionQuestion, path: str) -> Question:
    instructions = _read_content(question.instructions, f"{path}.instructions", _INPUT_PARTS)
    match check_one_of(question.type, _QUESTION_TYPES, f"{path}.type"):
        case "predicate":
            options = (AnswerOption("false"), AnswerOption("true"))
        case "choice":
            choices = require_value(question.choices, f"{path}.choices")
            if len({(type(choice.value), choice.value) for choice in choices}) < len(choices):
                raise invalid_value(f"{path}.choices", "the values must differ")
            options = tuple(
                # As JSON, so that the model can tell true from "true".
                AnswerOption(msgspec.json.encode(choice.value).decode(), choice.description)
                for choice in choices
            )
        case _:
            levels = require_value(question.levels, f"{path}.levels")
            options = tuple(AnswerOption(level.label, level.description) for level in levels)
    parts = tuple(part for part in instructions if isinstance(part, QuestionPart))
    return Question(parts, options)


def _read_items(items: list[DecisionItem]) -> tuple[Message, ...]:
    messages: list[Message] = []
    for index, item in enumerate(items):
        message = _read_item(item, f"input[{index}]")
        # The calls of one turn are items of their own.
        if messages and message.role is Role.ASSISTANT is messages[-1].role:
            message = Message(Role.ASSISTANT, (*messages.pop().parts, *message.parts))
        messages.append(message)
    return tuple(messages)


def _read_item(item: DecisionItem, path: str) -> Message:
    kind = check_one_of(item.type, _ITEM_TYPES, f"{path}.type")
    if kind == "message":
        role = Role(check_one_of(require_value(item.role, f"{path}.role"), _ROLES, f"{path}.role"))
        allowed = {
            Role.USER: _INPUT_PARTS,
            Role.ASSISTANT: ("output_text", "refusal"),
        }.get(role, ("input_text",))
        content = require_value(item.content, f"{path}.content")
        return Message(role, _read_content(content, f"{path}.content", allowed))
    call_id = require_value(item.call_id, f"{path}.call_id")
    if kind.endswith("_output"):
        output = require_value(item.output, f"{path}.output")
        content = _read_content(output, f"{path}.output", ("input_text", "input_image"))
        parts = tuple(part for part in content if isinstance(part, Text | Image))
        return Message(Role.TOOL, (ToolResult(call_id, parts),))
    is_custom = kind == "custom_tool_call"
    field = "input" if is_custom else "arguments"
    arguments = require_value(item.input if is_custom else item.arguments, f"{path}.{field}")
    name = require_value(item.name, f"{path}.name")
    if item.namespace:
        name = f"{item.namespace}.{name}"
    return Message(Role.ASSISTANT, (ToolCall(call_id, name, arguments, custom=is_custom),))


def _read_content(
    content: DecisionContent, path: str, allowed: tuple[str, ...]
) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(
        _read_part(part, f"{path}[{index}]", allowed) for index, part in enumerate(content)
    )


def _read_part(part: DecisionPart, path: str, allowed: tuple[str, ...]) -> Part:
    match check_one_of(part.type, allowed, f"{path}.type"):
        case "input_image":
            url = require_value(part.image_url, f"{path}.image_url")
            detail = check_one_of(part.detail or "auto", _DETAILS, f"{path}.detail")
            return Image(read_image_url(url, f"{path}.image_url"), detail)
        case "input_json":
            return Text(_read_json(part.data, f"{path}.data"))
        case "refusal":
            return Refusal(require_value(part.refusal, f"{path}.refusal"))
        case _:
            return Text(require_value(part.text, f"{path}.text"))


def _read_json(raw: Raw, path: str) -> str:
    value = read_json_value(raw, path)
    if not isinstance(value, dict | list):
        raise invalid_value(path, "expected an object or an array of objects")
    return msgspec.json.encode(value).decode()
