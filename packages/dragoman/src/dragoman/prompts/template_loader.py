"""Loads the chat template of a model's directory."""

from __future__ import annotations

from pathlib import Path

from .chat_template import ChatTemplate
from .tokenizer_config import TokenizerConfig, decode_tokenizer_config


def load_template(directory: Path, name: str = "default") -> ChatTemplate | None:
    """Load the chat template of a model's directory; return None if it has none of this
    name.

    The first of these counts: `chat_template.jinja` (or
    `additional_chat_templates/<name>.jinja`), the field `chat_template` of
    `chat_template.json`, the same field of `tokenizer_config.json`.

    Raises:
        RequestError: the template does not compile.
        ValueError: a configuration file is invalid.
    """
    path = directory / "tokenizer_config.json"
    config = decode_tokenizer_config(path.read_bytes()) if path.is_file() else TokenizerConfig()
    template_path = directory / "chat_template.jinja"
    if name != "default":
        template_path = directory / "additional_chat_templates" / f"{name}.jinja"
    # Transformers stored templates of multimodal models here until 2025.
    processor_path = directory / "chat_template.json"
    source: str | None = None
    if template_path.is_file():
        source = template_path.read_text(encoding="utf-8")
    elif processor_path.is_file():
        source = decode_tokenizer_config(processor_path.read_bytes()).find_template(name)
    source = source or config.find_template(name)
    return None if source is None else ChatTemplate(source, config.list_special_tokens())
