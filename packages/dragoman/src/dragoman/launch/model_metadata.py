"""The metadata in a model's directory: chat template, formats, end tokens, defaults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..parsers import registry, response_template
from ..pipeline.output_formats import OutputFormats
from ..prompts.hf_tokenizer import HfTokenizer
from ..prompts.template import Template
from ..prompts.tokenizer_config import decode_tokenizer_config
from ..settings import GenerationConfig, Settings

if TYPE_CHECKING:
    from ..prompts.chat_template import ChatTemplate


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
    """A configuration with end-of-sequence ids, and those of multimodal models that
    nest the one of their language model.
    """

    eos_token_id: int | list[int | None] | None = None
    text_config: _EosConfig | None = None
    llm_config: _EosConfig | None = None
    language_config: _EosConfig | None = None
    thinker_config: _EosConfig | None = None

    def list_ids(self) -> set[int]:
        ids = self.eos_token_id
        found = {id for id in (ids if isinstance(ids, list) else [ids]) if id is not None}
        for nested in (
            self.text_config,
            self.llm_config,
            self.language_config,
            self.thinker_config,
        ):
            if nested is not None:
                found |= nested.list_ids()
        return found


def load_eos_ids(directory: Path, tokenizer: HfTokenizer) -> frozenset[int]:
    """Load the end-of-sequence ids: those of generation_config.json, of config.json and
    of the tokenizer together, as in vLLM. Fine-tuned models often list only the base
    model's id in one of these files, and end their turns with that of another.

    Raises:
        ValueError: a file is invalid, or none of them has an id.
    """
    ids = find_eos_ids(directory, tokenizer)
    if not ids:
        raise ValueError(
            f"{directory} has no eos_token_id in generation_config.json or config.json, and no "
            "eos_token in tokenizer_config.json that the tokenizer knows"
        )
    return ids


def find_eos_ids(directory: Path, tokenizer: HfTokenizer) -> frozenset[int]:
    """Return the ids that `load_eos_ids` loads; empty if there are none."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        file = directory / name
        if not file.is_file():
            continue
        try:
            ids |= msgspec.json.decode(file.read_bytes(), type=_EosConfig).list_ids()
        except msgspec.MsgspecError as error:
            raise ValueError(f"{file}: {error}") from error
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = directory / name
        if file.is_file():
            special = decode_tokenizer_config(file.read_bytes()).list_special_tokens()
            id = tokenizer.special_tokens.get(special.get("eos_token", ""))
            ids |= set() if id is None else {id}
    # Some configurations say -1 for none.
    return frozenset(id for id in ids if id >= 0)


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
    from ..prompts.template_loader import load_template  # noqa: PLC0415 - as below

    return load_configured_template(settings) or load_template(directory)


def load_configured_template(settings: Settings) -> ChatTemplate | None:
    """Load the configured chat template, which is either a template's source or the
    path of a file.
    """
    source_or_path = settings.chat_template
    if source_or_path is None:
        return None
    from ..prompts.chat_template import ChatTemplate  # noqa: PLC0415 - jinja2 takes long to import

    is_source = "{{" in source_or_path or "{%" in source_or_path
    return ChatTemplate(
        source_or_path if is_source else Path(source_or_path).read_text(encoding="utf-8")
    )


class _TokenizerConfig(msgspec.Struct):
    response_template: msgspec.Raw = msgspec.Raw(b"null")


def resolve_formats(
    settings: Settings, directory: Path, template: Template | None, tokenizer: HfTokenizer
) -> OutputFormats:
    """Resolve the reasoning and tool formats: configured, else declared by the model,
    else detected (template).
    """
    special_tokens = tokenizer.special_tokens.keys()
    is_configured = settings.reasoning_parser is not None or settings.tool_call_parser is not None
    config = directory / "tokenizer_config.json"
    if not is_configured and config.exists():
        declared = msgspec.json.decode(config.read_bytes(), type=_TokenizerConfig).response_template
        if bytes(declared) != b"null":
            return OutputFormats(*response_template.load(bytes(declared), special_tokens))
    return detect_formats(settings, template, tokenizer)


def detect_formats(
    settings: Settings, template: Template | None, tokenizer: HfTokenizer
) -> OutputFormats:
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
    return OutputFormats(
        None if reasoning is None else registry.find_reasoning_format(reasoning, special_tokens),
        None if tools is None else registry.find_tool_format(tools, special_tokens),
    )
