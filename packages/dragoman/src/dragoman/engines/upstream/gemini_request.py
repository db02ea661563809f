"""Encodes requests for Google's Gemini API. Pure."""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from ...core.errors import Unsupported
from ...core.message import (
    Audio,
    File,
    FunctionTool,
    Image,
    InlineMedia,
    MediaSource,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    SealKind,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    build_misplaced_error,
)
from ...core.request import (
    AnyJsonObject,
    Conversation,
    GenerateRequest,
    JsonSchema,
    ReasoningOptions,
    StringChoices,
)
from .chat_messages import build_media_url
from .server_kind import ServerKind
from .shared_encoding import (
    encode_arguments,
    merge_sampling,
    require_conversation,
    resolve_max_tokens,
    to_raw,
    warn_of_history,
)
from .upstream_request import UpstreamDefaults, UpstreamRequest, encode_body

_PREFIXES = ("models/", "tunedModels/")
_LEVELS = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH"}
_HIGHEST = "high"
_BUDGETS = {"minimal": 1_024, "low": 1_024, "medium": 8_192, "high": 24_576}
"""Thinking budgets for efforts, of models that have no levels: those of Google's own
Chat Completions.
"""
_HAS_BUDGETS = re.compile(r"gemini-2\.")
"""Models whose thinking has budgets and no levels."""
_HAS_LEVELS = re.compile(r"gemini-[3-9]")
"""Models that always think, whose thinking has levels."""
_THINKS = re.compile(r"gemini-(2\.5|[3-9])(?!.*(image|tts|live))")
"""Models that think, and send their thoughts if asked to; others may reject that."""
_NEEDS_SIGNATURES = re.compile(r"gemini-[3-9]")
"""Models that reject calls of the conversation without a signature."""
_PLACEHOLDER = "skip_thought_signature_validator"
"""The signature that Google documents for calls that another model has made."""
_MODES = {"none": "NONE", "required": "ANY", "auto": "VALIDATED"}
_MAX_SEED = 2**31 - 1


def encode_gemini_request(
    request: GenerateRequest, kind: ServerKind, model: str, defaults: UpstreamDefaults
) -> UpstreamRequest:
    """Encode a request. Raises Unsupported for features that Gemini lacks, RequestError
    for invalid messages.
    """
    conversation = require_conversation(request, kind)
    warnings: list[str] = []
    body = _encode_prompt(conversation, model, warnings)
    sampling = merge_sampling(request.sampling, defaults.sampling)
    config: dict[str, Any] = {
        kind.parameter_names.get(name, name): getattr(sampling, name)
        for name in sampling.list_set_fields()
        if name in kind.parameters
    }
    if config.get("topK") == 0:
        del config["topK"]
    if sampling.seed is not None:
        # Google's are 32 bits long.
        config["seed"] = sampling.seed & _MAX_SEED
    limit = resolve_max_tokens(request, defaults)
    if limit is not None:
        config["maxOutputTokens"] = limit
    if request.limits.stop:
        config["stopSequences"] = request.limits.stop
    config |= _encode_format(request)
    thinking = _encode_thinking(conversation.reasoning, model, warnings)
    if thinking:
        config["thinkingConfig"] = thinking
    if config:
        body["generationConfig"] = config
    path = f"{build_model_path(model)}:streamGenerateContent?alt=sse"
    return UpstreamRequest(path, encode_body(body), warnings=tuple(warnings))


def encode_count_tokens_request(
    request: GenerateRequest, kind: ServerKind, model: str
) -> UpstreamRequest:
    """Encode a request to count the tokens of a prompt. Raises as
    `encode_gemini_request`.
    """
    prompt = _encode_prompt(require_conversation(request, kind), model, [])
    body = {"generateContentRequest": {"model": name_model(model), **prompt}}
    return UpstreamRequest(f"{build_model_path(model)}:countTokens", encode_body(body))


def name_model(model: str) -> str:
    """Return a model's resource name."""
    return model if model.startswith(_PREFIXES) else f"models/{model}"


def build_model_path(model: str) -> str:
    return f"/{quote(name_model(model))}"


def _encode_prompt(conversation: Conversation, model: str, warnings: list[str]) -> dict[str, Any]:
    """Encode the fields that define the prompt."""
    system, contents = _encode_messages(conversation, model, warnings)
    body: dict[str, Any] = {"contents": contents}
    if system:
        body["systemInstruction"] = {"parts": system}
    if not conversation.tools:
        return body
    body["tools"] = [{"functionDeclarations": [_encode_tool(tool) for tool in conversation.tools]}]
    choice = conversation.tool_choice
    is_strict = any(isinstance(tool, FunctionTool) and tool.strict for tool in conversation.tools)
    calling: dict[str, Any] = {}
    # The mode VALIDATED lets the model choose as AUTO does, and AUTO takes no names.
    if choice.mode != "auto" or choice.names is not None or is_strict:
        calling["mode"] = _MODES[choice.mode]
    if choice.names is not None and choice.mode != "none":
        calling["allowedFunctionNames"] = choice.names
    if calling:
        body["toolConfig"] = {"functionCallingConfig": calling}
    if not conversation.parallel_tool_calls and choice.mode != "none":
        warnings.append(
            "parallel_tool_calls is ignored: the upstream may always call several tools"
        )
    return body


def _encode_format(request: GenerateRequest) -> dict[str, Any]:
    """Encode the format that the answer must have."""
    match request.constraint:
        case AnyJsonObject(or_array=True):
            return {"responseMimeType": "application/json"}
        case AnyJsonObject() | JsonSchema():
            schema = to_raw(request.constraint.schema)
            return {"responseMimeType": "application/json", "responseJsonSchema": schema}
        case StringChoices(options):
            schema = {"type": "STRING", "enum": options}
            return {"responseMimeType": "text/x.enum", "responseSchema": schema}
        case _:
            return {}


def _encode_thinking(options: ReasoningOptions, model: str, warnings: list[str]) -> dict[str, Any]:
    """Encode `thinkingConfig`; empty leaves the choice to the model's default."""
    effort = options.effort
    if options.enabled is False or effort == "none" or options.budget == 0:
        return {"thinkingBudget": 0}
    if options.budget is not None:
        return {"includeThoughts": True, "thinkingBudget": options.budget}
    if effort is not None:
        if effort not in _LEVELS:
            warnings.append(
                f"reasoning_effort: the upstream has no {effort!r:.40}; it is {_HIGHEST!r}"
            )
            effort = _HIGHEST
        if _HAS_BUDGETS.search(model):
            return {"includeThoughts": True, "thinkingBudget": _BUDGETS[effort]}
        return {"includeThoughts": True, "thinkingLevel": _LEVELS[effort]}
    if options.enabled and not _HAS_LEVELS.search(model):
        # Some models, such as Gemini 2.5 Flash-Lite, do not think without a budget.
        return {"includeThoughts": True, "thinkingBudget": -1}
    wants_thoughts = options.enabled or options.wants_text or _THINKS.search(model)
    return {"includeThoughts": True} if wants_thoughts else {}


def _encode_messages(
    conversation: Conversation, model: str, warnings: list[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Encode the parts of the system instruction, and the turns. Adjacent messages of
    one role are merged into one turn.
    """
    messages = conversation.messages
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    names = {
        part.id: part.name
        for message in messages
        for part in message.parts
        if isinstance(part, ToolCall)
    }
    for message in messages:
        if message.role is Role.ASSISTANT:
            role = "model"
            needs_signature = _NEEDS_SIGNATURES.search(model) is not None
            parts = _encode_answer(message, names, needs_signature=needs_signature)
        else:
            role = "user"
            parts = [
                encoded for part in message.parts for encoded in _encode_part(part, message, names)
            ]
        if message.role in (Role.SYSTEM, Role.DEVELOPER):
            if not turns:
                system += parts
                continue
            warnings.append(
                "messages: a later system message is sent as the user's: the upstream has only "
                "one system instruction"
            )
        if turns and turns[-1]["role"] == role:
            turns[-1]["parts"] += parts
        elif parts:
            turns.append({"role": role, "parts": parts})
    continues = conversation.template.continue_final_message
    warn_of_history(
        messages,
        warnings,
        is_continued=bool(turns) and turns[-1]["role"] == "model" and not continues,
        keeps_reasoning=lambda part: SealKind.GEMINI.read(part.seal) is not None,
    )
    return system, turns


def _encode_answer(
    message: Message, names: Mapping[str, str], *, needs_signature: bool
) -> list[dict[str, Any]]:
    """Encode a turn of the model. The signature of reasoning is on the part behind it."""
    encoded: list[dict[str, Any]] = []
    signature = ""
    for part in message.parts:
        if isinstance(part, Reasoning):
            data = SealKind.GEMINI.read(part.seal)
            if data is None:
                continue
            if signature:
                encoded.append({"text": "", "thoughtSignature": signature})
            if part.text:
                encoded.append({"text": part.text, "thought": True})
            signature = data
            continue
        is_first_call = isinstance(part, ToolCall) and not any(
            "functionCall" in other for other in encoded
        )
        if is_first_call and needs_signature:
            signature = signature or _PLACEHOLDER
        for fields in _encode_part(part, message, names):
            encoded.append(fields | ({"thoughtSignature": signature} if signature else {}))
            signature = ""
    if signature:
        encoded.append({"text": "", "thoughtSignature": signature})
    return encoded


def _encode_part(  # noqa: PLR0911 - a table
    part: Part, message: Message, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Encode a part as one, or a tool result with media as several.

    names: the functions' names by the ids of their calls.
    """
    match part:
        case Text(text) | Refusal(text):
            return [{"text": text}] if text else []
        case Image(source):
            return [_encode_media(source, "image/png")]
        case File(source):
            return [_encode_media(source, "application/pdf")]
        case Audio(source, format):
            return [_encode_media(source, f"audio/{format or 'wav'}")]
        case ToolCall(custom=True):
            raise Unsupported("The upstream does not support free-form tools.", param="messages")
        case ToolCall(id, name, arguments) if message.role is Role.ASSISTANT:
            call = {"id": id, "name": name, "args": encode_arguments(arguments)}
            return [{"functionCall": call}]
        case ToolResult(id) if message.role is not Role.ASSISTANT:
            result = _encode_result(part, names.get(id) or message.name or "unknown")
            media = [inner for inner in part.content if not isinstance(inner, Text)]
            return [result, *(each for inner in media for each in _encode_part(inner, message, {}))]
        case ToolCall() | ToolResult():
            raise build_misplaced_error(part)
        case Reasoning():
            return []


def _encode_result(result: ToolResult, name: str) -> dict[str, Any]:
    text = "".join([inner.text for inner in result.content if isinstance(inner, Text)])
    response = {"error": text} if result.is_error else _build_response(text)
    return {"functionResponse": {"id": result.call_id, "name": name, "response": response}}


def _build_response(text: str) -> object:
    """Build the response of a function, which must be an object."""
    try:
        is_object = isinstance(msgspec.json.decode(text), dict)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        is_object = False
    return to_raw(text) if is_object else {"output": text}


def _encode_media(source: MediaSource, default_type: str) -> dict[str, Any]:
    match source:
        case InlineMedia(data, media_type):
            encoded = base64.b64encode(data).decode()
            return {"inlineData": {"mimeType": media_type or default_type, "data": encoded}}
        case _:
            url = build_media_url(source)
            guessed, _ = mimetypes.guess_type(url.partition("?")[0])
            return {"fileData": {"mimeType": guessed or default_type, "fileUri": url}}


def _encode_tool(tool: Tool) -> dict[str, Any]:
    assert isinstance(tool, FunctionTool)
    encoded: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        encoded["description"] = tool.description
    if tool.parameters is not None:
        encoded["parametersJsonSchema"] = to_raw(tool.parameters)
    return encoded
