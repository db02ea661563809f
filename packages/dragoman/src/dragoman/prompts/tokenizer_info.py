"""The fields of tokenizer_config.json that clients request."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from .template import Template
from .tokenizer_config import TokenizerConfig, decode_tokenizer_config


class TokenizerInfo(Struct, frozen=True, omit_defaults=True):
    """The fields of tokenizer_config.json that clients request, under their own names."""

    tokenizer_class: str
    bos_token: str | None = None
    eos_token: str | None = None
    unk_token: str | None = None
    pad_token: str | None = None
    sep_token: str | None = None
    cls_token: str | None = None
    mask_token: str | None = None
    chat_template: str | None = None


def load_tokenizer_info(directory: Path, template: Template | None = None) -> TokenizerInfo:
    """Load the fields. template: the served template. Raises ValueError for an invalid
    configuration.
    """
    path = directory / "tokenizer_config.json"
    config = decode_tokenizer_config(path.read_bytes()) if path.is_file() else TokenizerConfig()
    source = None if template is None else template.source
    return TokenizerInfo(
        config.tokenizer_class, **config.list_special_tokens(), chat_template=source
    )
