"""What a model says of itself in its directory, and the settings that overrule it: names, template, formats, ends.

Knows no engine.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..core.syntax import ReasoningFormat, ToolFormat
from ..parsers import registry, response_template
from ..prompts.template import ChatTemplate, load_template
from ..prompts.tokenizer import HfTokenizer
from ..settings import GenerationConfig, Settings


def served_names(settings: Settings, name: str) -> tuple[str, tuple[str, ...]]:
    """The first served name is the one that answers carry; the others are aliases, as in vLLM."""
    names = settings.served_model_name or (name,)
    if "*" in names[0] or "?" in names[0]:
        raise ValueError(f"the first served model name appears in responses, so it cannot be a pattern: {names[0]}")
    return names[0], names[1:]


class _Eos(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def end_of_answer(directory: Path) -> frozenset[int]:
    """Ids that end an answer: generation_config.json has the word, else config.json, as in transformers."""
    for name in ("generation_config.json", "config.json"):
        file = directory / name
        ids = msgspec.json.decode(file.read_bytes(), type=_Eos).eos_token_id if file.exists() else None
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    raise ValueError(f"{directory} has no eos_token_id in generation_config.json or config.json")


def generation_config(directory: Path) -> GenerationConfig:
    """What the model wants where a request and the settings say nothing: its generation_config.json, as in vLLM."""
    file = directory / "generation_config.json"
    if not file.exists():
        return GenerationConfig()
    said = msgspec.json.decode(file.read_bytes(), type=dict[str, object])
    known = {name: value for name, value in said.items() if name in GenerationConfig.__struct_fields__}
    try:
        return msgspec.convert(known, GenerationConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"{file}: {error}") from error


def chat_template(settings: Settings, directory: Path) -> ChatTemplate | None:
    """The one that was asked for, else the one that lies with the model."""
    return given_template(settings) or load_template(directory)


def given_template(settings: Settings) -> ChatTemplate | None:
    """The one that was asked for, as source or as a file."""
    given = settings.chat_template
    if given is None:
        return None
    is_source = "{{" in given or "{%" in given
    return ChatTemplate(given if is_source else Path(given).read_text(encoding="utf-8"))


class _TokenizerConfig(msgspec.Struct):
    response_template: msgspec.Raw = msgspec.Raw(b"null")


def formats(
    settings: Settings, directory: Path, template: ChatTemplate | None, tokenizer: HfTokenizer
) -> tuple[ReasoningFormat | None, ToolFormat | None]:
    """The parsers that were asked for, else what the model itself declares, else what its chat template gives away."""
    added = tokenizer.special_tokens.keys()
    asked = settings.reasoning_parser is not None or settings.tool_call_parser is not None
    config = directory / "tokenizer_config.json"
    if not asked and config.exists():
        declared = msgspec.json.decode(config.read_bytes(), type=_TokenizerConfig).response_template
        if bytes(declared) != b"null":
            return response_template.load(bytes(declared), added)
    return guessed_formats(settings, template, tokenizer)


def guessed_formats(
    settings: Settings, template: ChatTemplate | None, tokenizer: HfTokenizer
) -> tuple[ReasoningFormat | None, ToolFormat | None]:
    """The parsers that were asked for, else what the model's chat template gives away."""
    added = tokenizer.special_tokens.keys()
    guessed = (None, None) if template is None else registry.detect(template.source, added)
    reasoning = settings.reasoning_parser or guessed[0]
    tools = settings.tool_call_parser or guessed[1]
    return (
        None if reasoning is None else registry.reasoning(reasoning, added),
        None if tools is None else registry.tools(tools, added),
    )
