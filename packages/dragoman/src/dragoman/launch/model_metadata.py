"""The metadata in a model's directory: chat template, formats, end tokens, defaults."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..core.syntax import ReasoningFormat, ToolFormat
from ..parsers import registry, response_template
from ..prompts.chat_template import ChatTemplate
from ..prompts.hf_tokenizer import HfTokenizer
from ..prompts.template_loader import load_template
from ..settings import GenerationConfig, Settings


def resolve_served_names(settings: Settings, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the model's name and its aliases. Responses contain the first served name,
    as in vLLM.

    name: the name if the settings do not name the model.
    """
    names = settings.served_model_name or (name,)
    if "*" in names[0] or "?" in names[0]:
        raise ValueError(
            f"the first served model name appears in responses, so it cannot be a pattern: "
            f"{names[0]}"
        )
    return names[0], names[1:]


class _EosConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def load_eos_ids(directory: Path) -> frozenset[int]:
    """Load the end-of-sequence ids: generation_config.json takes precedence over
    config.json, as in transformers.
    """
    for name in ("generation_config.json", "config.json"):
        file = directory / name
        ids = (
            msgspec.json.decode(file.read_bytes(), type=_EosConfig).eos_token_id
            if file.exists()
            else None
        )
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    raise ValueError(f"{directory} has no eos_token_id in generation_config.json or config.json")


def load_generation_config(directory: Path) -> GenerationConfig:
    """Load the model's sampling defaults from generation_config.json, as vLLM does with
    `--generation-config auto`.
    """
    file = directory / "generation_config.json"
    if not file.exists():
        return GenerationConfig()
    raw_config = msgspec.json.decode(file.read_bytes(), type=dict[str, object])
    known_fields = {
        name: value
        for name, value in raw_config.items()
        if name in GenerationConfig.__struct_fields__
    }
    try:
        return msgspec.convert(known_fields, GenerationConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"{file}: {error}") from error


def load_chat_template(settings: Settings, directory: Path) -> ChatTemplate | None:
    """Load the configured chat template, or else the model's own."""
    return load_configured_template(settings) or load_template(directory)


def load_configured_template(settings: Settings) -> ChatTemplate | None:
    """Load the configured chat template, which is either a template's source or the
    path of a file.
    """
    source_or_path = settings.chat_template
    if source_or_path is None:
        return None
    is_source = "{{" in source_or_path or "{%" in source_or_path
    return ChatTemplate(
        source_or_path if is_source else Path(source_or_path).read_text(encoding="utf-8")
    )


class _TokenizerConfig(msgspec.Struct):
    response_template: msgspec.Raw = msgspec.Raw(b"null")


def resolve_formats(
    settings: Settings, directory: Path, template: ChatTemplate | None, tokenizer: HfTokenizer
) -> tuple[ReasoningFormat | None, ToolFormat | None]:
    """Resolve the reasoning and tool formats: configured, else declared by the model,
    else detected (template).
    """
    special_tokens = tokenizer.special_tokens.keys()
    is_configured = settings.reasoning_parser is not None or settings.tool_call_parser is not None
    config = directory / "tokenizer_config.json"
    if not is_configured and config.exists():
        declared = msgspec.json.decode(config.read_bytes(), type=_TokenizerConfig).response_template
        if bytes(declared) != b"null":
            return response_template.load(bytes(declared), special_tokens)
    return detect_formats(settings, template, tokenizer)


def detect_formats(
    settings: Settings, template: ChatTemplate | None, tokenizer: HfTokenizer
) -> tuple[ReasoningFormat | None, ToolFormat | None]:
    """Resolve the reasoning and tool formats: configured, else detected from the chat
    template.
    """
    special_tokens = tokenizer.special_tokens.keys()
    detected = (
        (None, None)
        if template is None
        else registry.detect_formats(template.source, special_tokens)
    )
    reasoning = settings.reasoning_parser or detected[0]
    tools = settings.tool_call_parser or detected[1]
    return (
        None if reasoning is None else registry.find_reasoning_format(reasoning, special_tokens),
        None if tools is None else registry.find_tool_format(tools, special_tokens),
    )
