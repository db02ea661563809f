"""Images for GGUF models: their number of tokens. llama.cpp decodes them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct

from ...core.errors import EngineError, RequestError
from ...core.prompt_images import PreparedImage, PromptImage
from ..batching import place_images
from .client import count_tokens
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
    """Implements `core.prompt_images.ImageProcessor`.

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


def get_encoded_image(image: PreparedImage | PromptImage) -> EncodedImage:
    """Return the image as `LlamaCppVision` encoded it. Raises EngineError for an image
    of another engine.
    """
    if not isinstance(image.model_inputs, EncodedImage):
        raise EngineError("the image was preprocessed for another engine")
    return image.model_inputs
