"""Parses the bodies of Ollama's /api/chat or /api/generate into an OllamaCall."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw, Struct

from ...core.errors import RequestError
from ...core.message import (
    Message,
    Role,
    Text,
    ToolCall,
)
from ...core.request import (
    AnyJsonObject,
    Constraint,
    Conversation,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    Prompt,
    ReasoningOptions,
    TemplateOptions,
)
from ..constraint_fields import read_schema
from ..field_errors import check_one_of, invalid_value
from ..generation_fields import read_stop_strings, resolve_model
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..parameter_table import read_part
from ..request_body import BodySchema, ParsedBody, prefix_param, read_json_value
from .errors import OLLAMA_GENERATE_NAMES, OLLAMA_NAMES
from .keep_alive import read_keep_alive
from .messages import read_images, read_messages, read_tools
from .wire import (
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OLLAMA_NESTED,
    OLLAMA_OPTIONS,
    OLLAMA_SAMPLING,
    Integer,
    OllamaChatBody,
    OllamaFields,
    OllamaGenerateBody,
    OllamaOptions,
)
from .writer import OllamaRenderOptions, OllamaTimings, OllamaWriter

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
    """

    call: GenerationCall
    has_prompt: bool
    keep_alive: float | None = None
    num_ctx: int | None = None

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
            suffix=suffix,
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
        return OllamaCall(call, has_prompt, read_keep_alive(body.keep_alive), self._num_ctx)


def _read_think(think: bool | str | None) -> ReasoningOptions:
    if isinstance(think, str):
        return ReasoningOptions(True, check_one_of(think, THINK_LEVELS, "think"))
    return ReasoningOptions(think)


def _read_format(raw: Raw) -> Constraint | None:
    match read_json_value(raw, "format"):
        case None | "":
            return None
        case "json":
            return AnyJsonObject()
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
