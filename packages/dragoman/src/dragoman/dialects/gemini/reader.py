"""Parses the bodies of generateContent, streamGenerateContent and countTokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from msgspec import Struct

from ...core.errors import RequestError
from ...core.message import FunctionTool, Role, Text, ToolChoice
from ...core.request import (
    AnyJsonObject,
    Constraint,
    Conversation,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    ReasoningOptions,
    StringChoices,
    TemplateOptions,
)
from ..constraint_fields import read_schema
from ..field_errors import abbreviate, check_one_of, invalid_value
from ..generation_fields import read_stop_strings
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..parameter_table import read_part
from ..request_body import BodySchema, ParsedBody, prefix_param, read_json_value
from ..sealing import Purpose, SealingKey, pack_reasoning
from .contents import read_contents, read_system
from .errors import GEMINI_NAMES
from .field_spelling import normalize_spelling
from .schemas import read_schema_field
from .wire import (
    DESCRIBED_RESULTS,
    GEMINI,
    GEMINI_CONFIG,
    GEMINI_COUNT,
    GEMINI_NESTED,
    GEMINI_SAMPLING,
    HOSTED_TOOLS,
    GeminiBody,
    GeminiConfig,
    GeminiCountBody,
    GeminiPromptFields,
    GeminiThinkingConfig,
    GeminiTool,
    GeminiToolConfig,
)
from .writer import Framing, GeminiRenderOptions, GeminiWriter, Seal

ID_PREFIX = "gemini-"
MAX_DECLARATION_NAME = 128
_CONFIG_PATH = "generationConfig"
_LEVELS = ("minimal", "low", "medium", "high", "xhigh")
_MODES = ("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED")
"""In the order of their numbers."""
_MIME_TYPES = ("text/plain", "application/json", "text/x.enum")
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-")
_BODY = BodySchema(GeminiBody, GEMINI_NESTED, numbers_as_strings=True)
_COUNT = BodySchema(GeminiCountBody, GEMINI_NESTED, numbers_as_strings=True)
_CONFIG = BodySchema(GeminiConfig, numbers_as_strings=True)


class GeminiCountCall(Struct, frozen=True):
    """The conversation of a countTokens request.

    warnings, unknown: as in `GenerationCall`.
    """

    model: str
    conversation: Conversation
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def read_generate_content(
    data: bytes, options: ReaderOptions, *, model: str, framing: Framing | None
) -> GenerationCall:
    """Parse a body of generateContent. Raises only RequestError.

    model: the name in the path.
    framing: the format of the stream; None for one object.
    """
    parsed = ParsedBody(normalize_spelling(data, GeminiBody, (_CONFIG_PATH, GeminiConfig)))
    body = parsed.decode(_BODY)
    warnings, unknown = GEMINI.classify_body(parsed, _BODY)
    config, unknown_config = _read_config(body, warnings)
    conversation = _read_conversation(body, config, options, warnings)
    constraint, constraint_param = _read_constraint(config)
    if constraint is not None and conversation.template.continue_final_message:
        raise RequestError(
            "A response format cannot be combined with a prefilled answer.", param="contents"
        )
    choices = config.candidateCount or 1
    if choices > options.max_n:
        raise invalid_value(
            f"{_CONFIG_PATH}.candidateCount", f"expected an integer <= {options.max_n}"
        )
    if config.logprobs and not config.responseLogprobs:
        raise invalid_value(f"{_CONFIG_PATH}.logprobs", "it needs 'responseLogprobs' to be true")
    logprobs = (config.logprobs or 0) if config.responseLogprobs else None
    request = GenerateRequest(
        model=model,
        prompt=conversation,
        choices=choices,
        sampling=GEMINI_SAMPLING.read(config),
        limits=GenerationLimits(
            max_tokens=config.maxOutputTokens or None,
            stop=read_stop_strings(
                config.stopSequences, options.max_stop, f"{_CONFIG_PATH}.stopSequences"
            ),
        ),
        constraint=constraint,
        constraint_param=constraint_param,
        logprobs=logprobs,
        add_special_tokens=False,
    )
    thinking = config.thinkingConfig
    view = GeminiRenderOptions(
        includes_thoughts=thinking is not None and bool(thinking.includeThoughts),
        logprobs=logprobs,
        seal=_build_seal(options.sealing_key),
        framing=framing or Framing.EVENTS,
    )

    def writer(header: Header) -> GeminiWriter:
        return GeminiWriter(header, view)

    return GenerationCall(
        (request,),
        framing is not None,
        ID_PREFIX,
        writer,
        tuple(warnings),
        (*unknown, *unknown_config),
        field_names=GEMINI_NAMES,
    )


def read_count_tokens(data: bytes, options: ReaderOptions, *, model: str) -> GeminiCountCall:
    """Parse a body of countTokens. Raises only RequestError."""
    parsed = ParsedBody(normalize_spelling(data, GeminiCountBody, (_CONFIG_PATH, GeminiConfig)))
    body = parsed.decode(_COUNT)
    warnings, unknown = GEMINI_COUNT.classify_body(parsed, _COUNT)
    request = body.generateContentRequest
    if request is not None:
        if body.contents:
            raise invalid_value("contents", "it cannot be combined with 'generateContentRequest'")
        with prefix_param("generateContentRequest"):
            inner = ParsedBody(bytes(parsed.fields["generateContentRequest"]))
            inner_warnings, inner_unknown = GEMINI.classify_body(inner, _BODY)
            warnings += inner_warnings
            unknown = (*unknown, *inner_unknown)
            config, unknown_config = _read_config(request, warnings)
            conversation = _read_conversation(request, config, options, warnings)
    else:
        config, unknown_config = _read_config(body, warnings)
        conversation = _read_conversation(body, config, options, warnings)
    return GeminiCountCall(model, conversation, tuple(warnings), (*unknown, *unknown_config))


def _read_config(
    body: GeminiPromptFields, warnings: list[str]
) -> tuple[GeminiConfig, tuple[str, ...]]:
    with prefix_param(_CONFIG_PATH):
        config, config_warnings, unknown = read_part(
            bytes(body.generationConfig), _CONFIG, GEMINI_CONFIG, _CONFIG_PATH
        )
    warnings += [f"{_CONFIG_PATH}.{warning}" for warning in config_warnings]
    return config, unknown


def _read_conversation(
    body: GeminiPromptFields, config: GeminiConfig, options: ReaderOptions, warnings: list[str]
) -> Conversation:
    messages = read_contents(body.contents, options.sealing_key, warnings)
    tools = _read_tools(body.tools or (), warnings)
    choice, is_validated = _read_choice(body.toolConfig, tools)
    if is_validated:
        tools = tuple(
            FunctionTool(tool.name, tool.description, tool.parameters, strict=True)
            for tool in tools
        )
    last = messages[-1]
    # The answer continues a model's text at the end.
    is_prefilled = last.role is Role.ASSISTANT and isinstance(last.parts[-1], Text)
    return Conversation(
        (*read_system(body.systemInstruction), *messages),
        tools,
        choice,
        reasoning=_read_thinking(config.thinkingConfig),
        template=TemplateOptions(
            add_generation_prompt=not is_prefilled, continue_final_message=is_prefilled
        ),
    )


def _read_tools(tools: Sequence[GeminiTool], warnings: list[str]) -> tuple[FunctionTool, ...]:
    declared: dict[str, FunctionTool] = {}
    described: list[str] = []
    for i, tool in enumerate(tools):
        for hosted in HOSTED_TOOLS:
            if read_json_value(getattr(tool, hosted), f"tools[{i}].{hosted}") is not None:
                warnings.append(f"tools[{i}].{hosted}: it is left out; this server does not run it")
        for j, function in enumerate(tool.functionDeclarations or ()):
            path = f"tools[{i}].functionDeclarations[{j}]"
            name = function.name
            if not 0 < len(name) <= MAX_DECLARATION_NAME or not _NAME_CHARACTERS.issuperset(name):
                raise invalid_value(
                    f"{path}.name",
                    f"expected 1 to {MAX_DECLARATION_NAME} of the characters a-z, A-Z, 0-9, '_', "
                    f"'.', ':' and '-', got {abbreviate(name)}",
                )
            if name in declared:
                raise invalid_value(f"{path}.name", f"{abbreviate(name)} is declared twice")
            parameters = read_schema_field(
                function.parameters,
                function.parametersJsonSchema,
                f"{path}.parameters",
                f"{path}.parametersJsonSchema",
            )
            declared[name] = FunctionTool(name, function.description, parameters)
            if (function.behavior or "").upper() == "NON_BLOCKING":
                warnings.append(f"{path}.behavior: only the Live API has calls without waiting")
            described += [
                f"{path}.{field}: the model is not shown it"
                for field in DESCRIBED_RESULTS
                if read_json_value(getattr(function, field), f"{path}.{field}") is not None
            ]
    # Google's SDK describes the result of every function with a return annotation.
    warnings += described[:1]
    return tuple(declared.values())


def _read_choice(
    config: GeminiToolConfig | None, tools: Sequence[FunctionTool]
) -> tuple[ToolChoice, bool]:
    """Return the choice, and whether arguments must follow their schemas."""
    calling = None if config is None else config.functionCallingConfig
    if calling is None:
        return ToolChoice(), False
    path = "toolConfig.functionCallingConfig"
    mode = calling.mode or "AUTO"
    if isinstance(mode, int) and 0 <= mode < len(_MODES):
        mode = _MODES[mode]
    mode = check_one_of(str(mode).upper(), _MODES, f"{path}.mode")
    names = tuple(calling.allowedFunctionNames or ()) or None
    if names is not None and mode not in ("ANY", "VALIDATED"):
        raise invalid_value(
            f"{path}.allowedFunctionNames", "it needs the mode 'ANY' or 'VALIDATED'"
        )
    known = {tool.name for tool in tools}
    for name in names or ():
        if name not in known:
            raise invalid_value(
                f"{path}.allowedFunctionNames", f"{abbreviate(name)} is not a declared function"
            )
    if mode == "ANY" and not tools:
        raise invalid_value(f"{path}.mode", "'ANY' needs 'tools' with functions")
    word = {"ANY": "required", "NONE": "none"}.get(mode, "auto")
    return ToolChoice(word, names), mode == "VALIDATED"


def _read_thinking(config: GeminiThinkingConfig | None) -> ReasoningOptions:
    if config is None:
        return ReasoningOptions()
    path = f"{_CONFIG_PATH}.thinkingConfig"
    wants_text = bool(config.includeThoughts)
    budget = config.thinkingBudget
    level = (config.thinkingLevel or "").lower()
    if level in ("", "thinking_level_unspecified"):
        if budget is None:
            return ReasoningOptions(wants_text=wants_text)
        # Gemini's clients send a budget to models that have none.
        return ReasoningOptions(
            budget != 0,
            None,
            budget if budget > 0 else None,
            budget_is_hint=budget > 0,
            wants_text=wants_text,
        )
    if budget is not None:
        raise invalid_value(f"{path}.thinkingLevel", "it cannot be combined with 'thinkingBudget'")
    effort = check_one_of(level, _LEVELS, f"{path}.thinkingLevel")
    return ReasoningOptions(True, effort, wants_text=wants_text)


def _read_constraint(config: GeminiConfig) -> tuple[Constraint | None, str]:
    mime_type = config.responseMimeType or "text/plain"
    param = f"{_CONFIG_PATH}.responseMimeType"
    check_one_of(mime_type, _MIME_TYPES, param)
    openapi_param = f"{_CONFIG_PATH}.responseSchema"
    schema = read_schema_field(
        config.responseSchema,
        config.responseJsonSchema,
        openapi_param,
        f"{_CONFIG_PATH}.responseJsonSchema",
    )
    has_openapi = read_schema(config.responseSchema, openapi_param) is not None
    schema_param = openapi_param if has_openapi else f"{_CONFIG_PATH}.responseJsonSchema"
    if mime_type == "text/plain":
        if schema is not None:
            raise invalid_value(schema_param, "it needs the responseMimeType 'application/json'")
        return None, param
    if mime_type == "application/json":
        if schema is None:
            return AnyJsonObject(or_array=True), param
        return JsonSchema(schema, strict=False), schema_param
    value = read_json_value(config.responseSchema, openapi_param)
    values = cast("dict[str, object]", value).get("enum") if isinstance(value, dict) else None
    options = cast("list[object]", values) if isinstance(values, list) else []
    texts = tuple([option for option in options if isinstance(option, str) and option])
    if not texts or len(texts) != len(options):
        raise invalid_value(openapi_param, "'text/x.enum' needs an 'enum' of strings")
    return StringChoices(texts), openapi_param


def _build_seal(key: SealingKey | None) -> Seal | None:
    return None if key is None else partial(_seal, key)


def _seal(key: SealingKey, text: str, vendor_seal: str) -> str:
    return key.seal(Purpose.REASONING, pack_reasoning(text, vendor_seal))
