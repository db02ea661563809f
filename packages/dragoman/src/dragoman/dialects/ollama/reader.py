"""Parses the bodies of Ollama's /api/chat and /api/generate into an OllamaCall,
including messages and tools.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from msgspec import Raw, Struct

from ...core.errors import RequestError, Unsupported
from ...core.images import check_image
from ...core.message import (
    FunctionTool,
    Image,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from ...core.request import (
    Constraint,
    Conversation,
    GenerateRequest,
    GenerationLimits,
    JsonObject,
    JsonSchema,
    Prompt,
    ReasoningOptions,
    TemplateOptions,
)
from ..base import GenerationCall, Header, ReaderOptions
from ..body import (
    BodySchema,
    ParsedBody,
    abbreviate,
    check_one_of,
    invalid_value,
    prefix_param,
    read_base64,
    read_json_object,
    read_json_value,
)
from ..fields import read_schema, read_stop_strings, resolve_model
from ..parameter_table import read_part
from .wire import (
    Integer,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OLLAMA_NESTED,
    OLLAMA_OPTIONS,
    OLLAMA_SAMPLING,
    OllamaChatBody,
    OllamaFields,
    OllamaGenerateBody,
    OllamaOptions,
    OllamaTool,
    OllamaWireMessage,
    read_keep_alive,
)
from .writer import (
    OLLAMA_GENERATE_NAMES,
    OLLAMA_NAMES,
    OllamaRenderOptions,
    OllamaTimings,
    OllamaWriter,
)

ROLES = ("system", "user", "assistant", "tool")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def read_messages(messages: Sequence[OllamaWireMessage]) -> tuple[Message, ...]:
    """Parse messages. Raises RequestError with the path of the invalid field."""
    reader = _MessageReader()
    return tuple(reader.read(message, f"messages[{i}]") for i, message in enumerate(messages))


class _MessageReader:
    """Parses messages in order, and matches each tool result to its call.

    Only newer clients of Ollama send call ids; others name the tool in a result. A
    result without an id answers the first open call of its tool, or the first open call
    if it does not name a tool.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        # Ordered dictionaries find the first open call, and remove any, without a
        # search: a client sends many calls.
        self._open_ids: OrderedDict[str, None] = OrderedDict()
        self._open_ids_by_name: dict[str, OrderedDict[str, None]] = {}

    def read(self, message: OllamaWireMessage, path: str) -> Message:
        # Ollama converts roles to lower case when it decodes a message.
        role = Role(check_one_of(message.role.lower(), ROLES, f"{path}.role"))
        # Images come first: Ollama puts their placeholders before the text of the
        # message.
        images = tuple(read_images(message.images, f"{path}.images"))
        if role is Role.TOOL:
            id = message.tool_call_id
            name = message.tool_name
            if not id:
                open_ids = self._open_ids_by_name.get(name, ()) if name else self._open_ids
                id = next(iter(open_ids), f"call_{name or 'unknown'}")
            self._close(id)
            # Ollama's clients need not send ids, so a result without one may have no
            # call.
            result = ToolResult(
                id, (*images, Text(message.content or "")), answers_call=bool(message.tool_call_id)
            )
            return Message(Role.TOOL, (result,), name or self._names.get(id))
        parts: list[Part] = [*images]
        if role is Role.ASSISTANT and message.thinking:
            parts.append(Reasoning(message.thinking))
        if message.content:
            parts.append(Text(message.content))
        for i, call in enumerate(message.tool_calls or () if role is Role.ASSISTANT else ()):
            id = call.id or f"call_{len(self._names)}"
            function = call.function
            # An id that a client uses again means the later call.
            self._close(id)
            self._names[id] = function.name
            self._open_ids[id] = None
            self._open_ids_by_name.setdefault(function.name, OrderedDict())[id] = None
            arguments = read_json_object(
                function.arguments, f"{path}.tool_calls[{i}].function.arguments"
            )
            parts.append(ToolCall(id, function.name, arguments or "{}"))
        return Message(role, tuple(parts))

    def _close(self, id: str) -> None:
        """Remove a call from the open ones, if it is one of them."""
        if id in self._open_ids:
            del self._open_ids[id], self._open_ids_by_name[self._names[id]][id]


def read_images(images: Sequence[str] | None, param: str) -> Iterator[Image]:
    for i, data in enumerate(images or ()):
        path = f"{param}[{i}]"
        yield Image(check_image(read_base64(data, None, path), path))


def read_tools(tools: Sequence[OllamaTool] | None) -> tuple[FunctionTool, ...]:
    """Parse the declared tools. Raises RequestError with the path of the invalid field."""
    declared: dict[str, FunctionTool] = {}
    for i, tool in enumerate(tools or ()):
        path = f"tools[{i}]"
        name = tool.function.name
        if tool.type != "function":
            raise Unsupported(
                f"'{path}': tools of type {abbreviate(tool.type)} cannot be run here.", param=path
            )
        if not _TOOL_NAME.fullmatch(name):
            raise invalid_value(
                f"{path}.function.name",
                f"expected 1 to 64 of the characters a-z, A-Z, 0-9, '_', '.' and '-', got "
                f"{abbreviate(name)}",
            )
        if name in declared:
            raise RequestError(
                f"'tools' declares {abbreviate(name)} twice.", param="tools", code="invalid_value"
            )
        parameters = read_json_object(tool.function.parameters, f"{path}.function.parameters")
        declared[name] = FunctionTool(name, tool.function.description, parameters)
    return tuple(declared.values())


# Bodies.

ID_PREFIX = "ollama-"
THINK_LEVELS = ("low", "medium", "high")
_CHAT = BodySchema(OllamaChatBody, OLLAMA_NESTED)
_GENERATE = BodySchema(OllamaGenerateBody)
_OPTIONS = BodySchema(OllamaOptions)


class OllamaCall(Struct, frozen=True):
    """A parsed body of /api/chat or /api/generate.

    has_prompt: False if there is nothing to answer: the call only loads or unloads the
        model.
    keep_alive: idle seconds after which the model is unloaded; infinity is never, None
        is the server's setting.
    num_ctx: the context length that the client expects, in tokens.
    suffix: the text after the answer (fill-in-the-middle); the prompt is then a plain
        text.
    """

    call: GenerationCall
    has_prompt: bool
    keep_alive: float | None = None
    num_ctx: int | None = None
    suffix: str | None = None

    @property
    def model(self) -> str:
        return self.call.requests[0].model


class AnswerClock(Struct, frozen=True):
    """The sources of an answer's times.

    now: returns Unix seconds.
    measure: returns the durations, once the answer is complete.
    """

    now: Callable[[], float]
    measure: Callable[[], OllamaTimings]


def read_ollama_chat(data: bytes, options: ReaderOptions, *, clock: AnswerClock) -> OllamaCall:
    """Parse a body of /api/chat. Raises only RequestError."""
    parsed = ParsedBody(data)
    body = parsed.decode(_CHAT)
    reader = _CallReader(body, options, clock, OLLAMA_CHAT.classify_body(parsed, _CHAT))
    messages = read_messages(body.messages or ())
    last_parts = messages[-1].parts if messages and messages[-1].role is Role.ASSISTANT else ()
    # The answer continues an assistant's text at the end, as in most of Ollama's
    # templates.
    is_prefilled = (
        bool(last_parts)
        and isinstance(last_parts[-1], Text)
        and not any(isinstance(part, ToolCall) for part in last_parts)
    )
    prompt = Conversation(
        messages,
        read_tools(body.tools),
        reasoning=_read_think(body.think),
        template=TemplateOptions(
            add_generation_prompt=not is_prefilled, continue_final_message=is_prefilled
        ),
        drop_oldest=bool(body.truncate),
    )
    return reader.build_call(prompt, is_chat=True, has_prompt=bool(messages))


def read_ollama_generate(data: bytes, options: ReaderOptions, *, clock: AnswerClock) -> OllamaCall:
    """Parse a body of /api/generate. Raises only RequestError."""
    parsed = ParsedBody(data)
    body = parsed.decode(_GENERATE)
    reader = _CallReader(body, options, clock, OLLAMA_GENERATE.classify_body(parsed, _GENERATE))
    fields = {
        "system": body.system,
        "template": body.template,
        "context": body.context,
        "images": body.images,
    }
    conflicting = next((name for name, value in fields.items() if value), None)
    if body.raw and conflicting is not None:
        raise RequestError(
            "raw mode does not support template, system, context, or images", param=conflicting
        )
    if body.suffix and (body.raw or conflicting is not None or body.think):
        raise RequestError(
            "suffix cannot be combined with raw, think, template, system, context, or images",
            param="suffix",
        )
    # An empty prompt only loads the model. Ollama's clients send one before the first
    # question.
    text = body.prompt or ""
    prompt: Prompt = text
    if not body.raw and not body.suffix:
        system = (Message(Role.SYSTEM, (Text(body.system),)),) if body.system else ()
        user = Message(
            Role.USER, (*read_images(body.images, "images"), *((Text(text),) if text else ()))
        )
        prompt = Conversation(
            (*system, user),
            reasoning=_read_think(body.think),
            template=TemplateOptions(template=body.template or None),
            drop_oldest=bool(body.truncate),
            preceding_ids=tuple(body.context or ()),
        )
    return reader.build_call(
        prompt,
        is_chat=False,
        has_prompt=bool(text),
        returns_context=not body.raw,
        suffix=body.suffix or None,
    )


class _CallReader:
    """Parses the fields that both bodies share.

    classified: the body's warnings and unknown names, from
        `ParameterTable.classify_body`.
    """

    def __init__(
        self,
        body: OllamaFields,
        options: ReaderOptions,
        clock: AnswerClock,
        classified: tuple[list[str], tuple[str, ...]],
    ) -> None:
        self._body = body
        self._options = options
        self._clock = clock
        warnings, unknown = classified
        with prefix_param("options"):
            wire_options, option_warnings, unknown_options = read_part(
                bytes(body.options), _OPTIONS, OLLAMA_OPTIONS, "options"
            )
            seed = _read_integer(wire_options.seed, "seed", bits=63)
            top_k = _read_integer(wire_options.top_k, "top_k")
            self._sampling = OLLAMA_SAMPLING.read(
                wire_options,
                # In llama.cpp, a top_k of 0 or less disables it.
                top_k=None if top_k is None else max(top_k, 0),
                # -1 is llama.cpp's value for a random seed.
                seed=None if seed == -1 else seed,
            )
            num_predict = _read_integer(wire_options.num_predict, "num_predict")
            if num_predict is not None and num_predict < -2:
                raise invalid_value("num_predict", "expected -2, -1 or an integer >= 0")
            self._limits = GenerationLimits(
                max_tokens=num_predict if num_predict is not None and num_predict > 0 else None,
                stop=read_stop_strings(wire_options.stop, options.max_stop),
            )
            self._num_ctx = _read_integer(wire_options.num_ctx, "num_ctx")
        self._warnings = (*warnings, *(f"options.{warning}" for warning in option_warnings))
        self._unknown = (*unknown, *unknown_options)

    def build_call(
        self,
        prompt: Prompt,
        *,
        is_chat: bool,
        has_prompt: bool,
        returns_context: bool = False,
        suffix: str | None = None,
    ) -> OllamaCall:
        body = self._body
        model = resolve_model(body.model, self._options)
        if body.top_logprobs and not body.logprobs:
            raise invalid_value("top_logprobs", "it needs 'logprobs' to be true")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        constraint = _read_format(body.format)
        request = GenerateRequest(
            model=model,
            prompt=prompt,
            sampling=self._sampling,
            limits=self._limits,
            constraint=constraint,
            constraint_param="format",
            logprobs=logprobs,
            return_prompt=returns_context,
            # A chat template writes its special tokens itself.
            add_special_tokens=isinstance(prompt, str),
        )
        render_options = OllamaRenderOptions(
            model, self._clock.now, self._clock.measure, is_chat, logprobs, returns_context
        )

        def writer(_: Header) -> OllamaWriter:
            return OllamaWriter(render_options)

        warnings = self._warnings
        if body.think is not None and not isinstance(prompt, Conversation):
            warnings = (
                *warnings,
                "think is ignored: a raw prompt determines whether the model thinks",
            )
        call = GenerationCall(
            (request,),
            body.stream is not False,
            ID_PREFIX,
            writer,
            warnings,
            self._unknown,
            field_names=OLLAMA_NAMES if is_chat else OLLAMA_GENERATE_NAMES,
        )
        return OllamaCall(call, has_prompt, read_keep_alive(body.keep_alive), self._num_ctx, suffix)


def _read_think(think: bool | str | None) -> ReasoningOptions:
    if isinstance(think, str):
        return ReasoningOptions(True, check_one_of(think, THINK_LEVELS, "think"))
    return ReasoningOptions(think)


def _read_format(raw: Raw) -> Constraint | None:
    match read_json_value(raw, "format"):
        case None | "":
            return None
        case "json":
            return JsonObject()
        case dict():
            schema = read_schema(raw, "format")
            assert schema is not None, "it is an object"
            return JsonSchema(schema, strict=False)
        case _:
            raise invalid_value("format", "expected 'json' or a JSON Schema")


def _read_integer(value: Integer | None, param: str, *, bits: int = 31) -> int | None:
    if value is None:
        return None
    if value != value // 1 or not -(2**bits) <= value <= 2**bits - 1:
        raise invalid_value(param, f"expected an integer of {bits + 1} bits")
    return int(value)
