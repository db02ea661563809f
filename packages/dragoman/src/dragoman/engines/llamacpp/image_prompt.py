"""Prompts with images, as text: llama.cpp accepts them only as text with markers.

Token ids are converted to such text; a text that llama.cpp tokenizes to other ids is
rejected.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import EngineError, Unsupported
from ...core.prompt_images import PromptImage
from .client import LlamaCppClient, tokenize
from .process import LlamaCppProcess
from .vision import get_encoded_image
from .wire import MultimodalPrompt


class PromptWriter:
    """Converts token ids with images to text.

    prefix_ids: ids that llama.cpp prepends to any text.
    """

    def __init__(
        self, token_bytes: Sequence[bytes], marker: str, prefix_ids: tuple[int, ...]
    ) -> None:
        self._token_bytes = token_bytes
        self._marker = marker
        self._prefix_ids = prefix_ids

    async def write(
        self, client: LlamaCppClient, tokens: tuple[int, ...], images: Sequence[PromptImage]
    ) -> MultimodalPrompt:
        """Write a prompt. Raises Unsupported if llama.cpp would tokenize the text to
        other ids.
        """
        count = len(self._prefix_ids)
        if tokens[:count] != self._prefix_ids:
            raise Unsupported(
                "llama.cpp begins every prompt with images with the model's first token; this one "
                "does not have it.",
                param="messages",
            )
        if images[-1].end == len(tokens):
            # llama.cpp aborts: the last token of a prompt must have logits.
            raise Unsupported(
                "llama.cpp does not accept a prompt that ends with an image.", param="messages"
            )
        texts: list[str] = []
        start = count
        for image in images:
            texts.append(await self._render_text(client, tokens[start : image.begin]))
            start = image.end
        texts.append(await self._render_text(client, tokens[start:]))
        return MultimodalPrompt(
            self._marker.join(texts), tuple(get_encoded_image(image).data for image in images)
        )

    async def _render_text(self, client: LlamaCppClient, ids: tuple[int, ...]) -> str:
        try:
            text = b"".join(self._token_bytes[id] for id in ids).decode()
        except UnicodeDecodeError as error:
            raise _build_text_error() from error
        # Some vocabularies prepend a space to every text.
        for candidate in (text, text.removeprefix(" ")):
            if await client.tokenize(candidate) == ids:
                return candidate
        raise _build_text_error()


def build_prompt_writer(
    process: LlamaCppProcess, token_bytes: Sequence[bytes], marker: str
) -> PromptWriter:
    """Build a prompt writer. Blocking. Raises EngineError for a vocabulary that appends
    tokens to a text.
    """
    plain_ids, full_ids = (
        tokenize(process.socket, process.key, "a", add_special=add_special)
        for add_special in (False, True)
    )
    if full_ids[len(full_ids) - len(plain_ids) :] != plain_ids:
        raise EngineError(
            "llama.cpp ends every prompt with a token of its own: images cannot be shown to this "
            "model"
        )
    return PromptWriter(token_bytes, marker, full_ids[: len(full_ids) - len(plain_ids)])


def _build_text_error() -> Unsupported:
    return Unsupported(
        "llama.cpp takes a prompt with images as text, and would read other tokens in the text of "
        "this one; a control "
        "token's name in a message does that.",
        param="messages",
    )
