"""Recorded replies, looked up by prompt: JSON lines, read once.

    {"prompt": "What is the capital of Japan?", "reply": "Tokyo."}
    {"prompt_sha256": "9f86d0...", "reply": [{"reasoning": "Easy."}, {"text": "Tokyo."}]}

prompt: the text of the last user or tool message, or a plain prompt. reply: as in a script.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from ..script import ScriptEntry, ScriptError, read_entry
from .reply_generator import check_entry, hash_prompt


class _Row(Struct, frozen=True, forbid_unknown_fields=True):
    reply: Any
    prompt: str | None = None
    prompt_sha256: str | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.prompt_sha256 is None):
            raise ValueError("a row has either `prompt` or `prompt_sha256`")

    @property
    def key(self) -> str:
        return (self.prompt_sha256 or "").lower() if self.prompt is None else hash_prompt(self.prompt)


def read_dataset(lines: Iterable[str | bytes], source: str) -> dict[str, ScriptEntry]:
    """Read the replies by `hash_prompt`; of two for one prompt the later wins. Raises ScriptError, with the line."""
    replies: dict[str, ScriptEntry] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            row = msgspec.json.decode(line, type=_Row)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ScriptError(f"{where}: {error}") from None
        entry = read_entry({"reply": row.reply, "repeat": True}, where)
        check_entry(entry)
        replies[row.key] = entry
    return replies
