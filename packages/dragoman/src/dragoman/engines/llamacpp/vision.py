"""Images for GGUF models: token counts and prompt encoding. llama.cpp decodes the
images.

llama.cpp accepts a prompt with images only as text with markers. Token ids are
converted to such text; a text that llama.cpp tokenizes to other ids is rejected.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct

from ...core.errors import EngineError, RequestError, Unsupported
from ...core.images import PreparedImage, PromptImage
from ..batching import place_images
from .client import LlamaCppClient, MultimodalPrompt, count_tokens, tokenize
from .process import LlamaCppProcess

# File signatures of PNG, JPEG and GIF.
_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8")
# A PNG of one pixel, to try whether the projector accepts images.
_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)


class ImageToken(Struct, frozen=True):
    """A control token used only as the image placeholder."""

    name: str
    id: int


class EncodedImage(Struct, frozen=True):
    """One image, stored in `PreparedImage.model_inputs`.

    data: the file, in base64.
    count: number of tokens that llama.cpp uses for it.
    """

    data: str
    count: int


class LlamaCppVision:
    """Implements `core.images.ImageProcessor`.

    The constructor blocks, needs a running process, and raises EngineError if the
    projector does not support images.
    """

    def __init__(self, process: LlamaCppProcess, marker: str, token: ImageToken) -> None:
        self._process = process
        self._marker = marker
        self._token = token
        try:
            # A control token is one token and separates its neighbors, as an image
            # does.
            self._overhead_tokens = self._count_tokens({"type": "text", "text": token.name}) - 1
            self._encode_image(_PIXEL)
        except RequestError as error:
            raise EngineError(f"the projector does not support images: {error.message}") from error

    @property
    def placeholder(self) -> str:
        return self._marker

    @property
    def uses_text_placeholder(self) -> bool:
        return True

    def prepare(self, images: Sequence[bytes]) -> tuple[PreparedImage, ...]:
        prepared: list[PreparedImage] = []
        for number, data in enumerate(images, 1):
            try:
                if not data.startswith(_SIGNATURES):
                    raise RequestError("llama.cpp supports PNG, JPEG and GIF")
                image = self._encode_image(base64.b64encode(data).decode())
            except RequestError as error:
                raise RequestError(
                    f"Image {number} of the messages cannot be decoded: {error.message}",
                    param="messages",
                    code="image_parse_error",
                ) from error
            digest = blake2b(data, digest_size=16).digest()
            prepared.append(PreparedImage(self._token.name * image.count, digest, image))
        return tuple(prepared)

    def locate(
        self, prompt: Sequence[int], images: Sequence[PreparedImage]
    ) -> tuple[PromptImage, ...]:
        return place_images(
            prompt, self._token.id, images, [get_encoded_image(image).count for image in images]
        )

    def _encode_image(self, data: str) -> EncodedImage:
        url = {"url": f"data:image/png;base64,{data}"}  # llama.cpp detects the actual image type
        return EncodedImage(
            data,
            self._count_tokens({"type": "image_url", "image_url": url}) - self._overhead_tokens,
        )

    def _count_tokens(self, part: dict[str, object]) -> int:
        return count_tokens(self._process.socket, self._process.key, part)


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


def get_encoded_image(image: PreparedImage | PromptImage) -> EncodedImage:
    """Return the image as `LlamaCppVision` encoded it. Raises EngineError for an image
    of another engine.
    """
    if not isinstance(image.model_inputs, EncodedImage):
        raise EngineError("the image was preprocessed for another engine")
    return image.model_inputs


def _build_text_error() -> Unsupported:
    return Unsupported(
        "llama.cpp takes a prompt with images as text, and would read other tokens in the text of "
        "this one; a control "
        "token's name in a message does that.",
        param="messages",
    )
