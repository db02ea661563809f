"""Parses a body of `/v1/systemone` into a GenerationCall."""

from __future__ import annotations

from typing import cast

import msgspec
from msgspec import Raw

from ...core.errors import RequestError
from ...core.field_names import FieldNames
from ...core.message import Image, Message, Role, Text
from ...core.request import TemplateOptions
from ..field_errors import check_one_of, invalid_value, missing_parameter
from ..generation_fields import read_thinking_switch, resolve_model
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..media import read_image_url
from ..request_body import ParsedBody, read_json_object, read_json_value
from .questions import MAX_OPTIONS, MAX_QUESTIONS, AnswerOption, Question, build_request
from .systemone_wire import SYSTEMONE, SYSTEMONE_SCHEMA, SystemOneBody, SystemOneQuestion
from .systemone_writer import SystemOneWriter

ID_PREFIX = "decision-"
_QUESTION_TYPES = ("choice", "noul", "score")
_NAMES = FieldNames(("messages", "state"), ("(?:top_)?logprobs", "questions"))


def read_systemone(data: bytes, options: ReaderOptions) -> GenerationCall:
    """Parse a body. Raises RequestError, and nothing else."""
    parsed = ParsedBody(data)
    body = parsed.decode(SYSTEMONE_SCHEMA)
    warnings, unknown = SYSTEMONE.classify_body(parsed, SYSTEMONE_SCHEMA)
    model = resolve_model(body.model, options)
    if not 1 <= len(body.questions) <= MAX_QUESTIONS:
        raise invalid_value("questions", f"expected 1 to {MAX_QUESTIONS} questions")
    questions = {
        id: _read_question(question, f"questions.{id}") for id, question in body.questions.items()
    }
    types = {id: question.type for id, question in body.questions.items()}
    history = _read_history(body)
    template = TemplateOptions(
        kwargs=read_json_object(body.chat_template_kwargs, "chat_template_kwargs")
    )
    if read_thinking_switch(body.chat_template_kwargs):
        raise invalid_value(
            "chat_template_kwargs", "thinking must be off: the first token is the answer"
        )

    def writer(header: Header) -> SystemOneWriter:
        return SystemOneWriter(header, types, questions)

    return GenerationCall(
        tuple(
            build_request(
                model,
                history,
                question,
                template=template,
                priority=body.priority or 0,
                cache_salt=body.cache_salt or "",
            )
            for question in questions.values()
        ),
        stream=False,
        id_prefix=ID_PREFIX,
        writer=writer,
        warnings=tuple(warnings),
        unknown=unknown,
        field_names=_NAMES,
    )


def _read_history(body: SystemOneBody) -> tuple[Message, ...]:
    images = tuple(
        Image(read_image_url(url, f"images[{index}]"))
        for index, url in enumerate(body.images or ())
    )
    state = Message(Role.USER, (*images, Text(_render_text(body.state, "state"))))
    if not body.instructions:
        return (state,)
    return (Message(Role.SYSTEM, (Text(body.instructions),)), state)


def _read_question(question: SystemOneQuestion, path: str) -> Question:
    if path == "questions.":
        raise invalid_value("questions", "an id must not be empty")
    instructions = _render_text(question.instructions, f"{path}.instructions")
    kind = check_one_of(question.type, _QUESTION_TYPES, f"{path}.type")
    criteria = read_json_value(question.criteria, f"{path}.criteria")
    return Question(
        (Text(instructions),) if instructions else (),
        _read_options(kind, criteria, f"{path}.criteria"),
    )


def _read_options(kind: str, criteria: object, path: str) -> tuple[AnswerOption, ...]:
    if kind == "noul":
        descriptions = (
            cast(dict[str, object], criteria or {})
            if isinstance(criteria, dict | None)
            else {"": 0}
        )
        if not descriptions.keys() <= {"true", "false"}:
            raise invalid_value(path, "expected an object with 'true' and 'false'")
        return tuple(
            AnswerOption(name, _describe(descriptions.get(key), f"{path}.{key}"))
            for name, key in (("yes", "true"), ("no", "false"))
        )
    if criteria is None:
        raise missing_parameter(path)
    if kind == "choice":
        if not isinstance(criteria, dict):
            raise invalid_value(path, "expected an object of descriptions by choice")
        choices = cast(dict[str, object], criteria)
        options = tuple(
            AnswerOption(name, _describe(text, f"{path}.{name}")) for name, text in choices.items()
        )
    else:
        if not isinstance(criteria, list):
            raise invalid_value(path, "expected an array of levels")
        levels = cast(list[object], criteria)
        options = tuple(
            AnswerOption(_describe(level, f"{path}[{index}]")) for index, level in enumerate(levels)
        )
    if not 2 <= len(options) <= MAX_OPTIONS:
        raise invalid_value(path, f"expected 2 to {MAX_OPTIONS} options")
    return options


def _describe(value: object, path: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestError(
            f"Invalid type for '{path}': expected a string.", param=path, code="invalid_type"
        )
    return value


def _render_text(raw: Raw, path: str) -> str:
    """Return a text as it is, and any other value as JSON."""
    value = read_json_value(raw, path)
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
