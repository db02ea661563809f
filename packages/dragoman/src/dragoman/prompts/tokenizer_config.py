"""tokenizer_config.json: a model's special tokens and chat templates."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class _NamedTemplate(Struct):
    name: str
    template: str


class _Token(Struct):
    content: str


class TokenizerConfig(Struct):
    """The fields of the file that templates need."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    chat_template: str | list[_NamedTemplate] | None = None
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    unk_token: str | _Token | None = None
    pad_token: str | _Token | None = None
    sep_token: str | _Token | None = None
    cls_token: str | _Token | None = None
    mask_token: str | _Token | None = None

    def find_template(self, name: str) -> str | None:
        if isinstance(self.chat_template, list):
            return next(
                (entry.template for entry in self.chat_template if entry.name == name), None
            )
        return self.chat_template if name == "default" else None

    def list_special_tokens(self) -> dict[str, str]:
        tokens = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "unk_token": self.unk_token,
            "pad_token": self.pad_token,
            "sep_token": self.sep_token,
            "cls_token": self.cls_token,
            "mask_token": self.mask_token,
        }
        return {
            name: t if isinstance(t, str) else t.content
            for name, t in tokens.items()
            if t is not None
        }


def decode_tokenizer_config(raw: bytes) -> TokenizerConfig:
    try:
        return msgspec.json.decode(raw, type=TokenizerConfig)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"tokenizer_config.json: {error}") from error
