"""Images for a model in a GGUF file: how many tokens each takes, and how a prompt shows them. Decodes nothing.

llama.cpp takes a prompt with images as text, with a marker for each. The ids that were made here are told as that
text, and only where it reads the same ids in it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct

from ...core.errors import EngineError, RequestError, Unsupported
from ...core.vision import ReadImage, ShownImage
from ..batching import placed
from .client import Client, count_tokens, tokenize
from .process import Process
from .wire import Illustrated

_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8")
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"


class Token(Struct, frozen=True):
    """A control token that stands for images in ids, and nowhere else in a prompt."""

    name: str
    id: int


class Encoded(Struct, frozen=True):
    """One image in base64, as `ReadImage.prepared`. count: tokens that llama.cpp makes of it."""

    data: str
    count: int


class LlamaCppVision:
    """As `core.vision.Vision`. Blocking to make: the process runs already. Raises EngineError where it sees nothing."""

    def __init__(self, process: Process, marker: str, token: Token) -> None:
        self._process, self._marker, self._token = process, marker, token
        try:
            # The name of a control token is one token, and parts its neighbours as an image does.
            self._around = self._count({"type": "text", "text": token.name}) - 1
            self._image(_PIXEL)
        except RequestError as error:
            raise EngineError(f"the projector does not support images: {error.message}") from error

    @property
    def placeholder(self) -> str:
        return self._marker

    @property
    def in_text(self) -> bool:
        return True

    def read(self, images: Sequence[bytes]) -> tuple[ReadImage, ...]:
        return tuple(self._read(data, number) for number, data in enumerate(images, 1))

    def place(self, prompt: Sequence[int], images: Sequence[ReadImage]) -> tuple[ShownImage, ...]:
        return placed(prompt, self._token.id, images, [encoded(image).count for image in images])

    def _read(self, data: bytes, number: int) -> ReadImage:
        try:
            if not data.startswith(_SIGNATURES):
                raise RequestError("llama.cpp supports PNG, JPEG and GIF")
            made = self._image(base64.b64encode(data).decode())
        except RequestError as error:
            raise RequestError(
                f"Image {number} of the messages cannot be decoded: {error.message}",
                param="messages",
                code="image_parse_error",
            ) from error
        return ReadImage(self._token.name * made.count, blake2b(data, digest_size=16).digest(), made)

    def _image(self, data: str) -> Encoded:
        url = {"url": f"data:image/png;base64,{data}"}  # it looks at what the data are itself
        return Encoded(data, self._count({"type": "image_url", "image_url": url}) - self._around)

    def _count(self, part: dict[str, object]) -> int:
        return count_tokens(self._process.socket, self._process.key, part)


class Words:
    """Tells ids with images among them as text. before: ids that llama.cpp puts before any text."""

    def __init__(self, spelling: Sequence[bytes], marker: str, before: tuple[int, ...]) -> None:
        self._spelling, self._marker, self._before = spelling, marker, before

    async def tell(self, client: Client, tokens: tuple[int, ...], images: Sequence[ShownImage]) -> Illustrated:
        """Raises Unsupported where llama.cpp would read other ids than these."""
        count = len(self._before)
        if tokens[:count] != self._before:
            raise Unsupported(
                "llama.cpp begins every prompt with images with the model's first token; this one does not have it.",
                param="messages",
            )
        if images[-1].end == len(tokens):
            # It would end its process: the last token of a prompt has to be one that it can sample after.
            raise Unsupported("llama.cpp does not accept a prompt that ends with an image.", param="messages")
        texts: list[str] = []
        start = count
        for image in images:
            texts.append(await self._text(client, tokens[start : image.begin]))
            start = image.end
        texts.append(await self._text(client, tokens[start:]))
        return Illustrated(self._marker.join(texts), tuple(encoded(image).data for image in images))

    async def _text(self, client: Client, ids: tuple[int, ...]) -> str:
        try:
            text = b"".join(self._spelling[id] for id in ids).decode()
        except UnicodeDecodeError as error:
            raise _unreadable() from error
        # Some vocabularies put a blank before every text.
        for told in (text, text.removeprefix(" ")):
            if await client.tokenize(told) == ids:
                return told
        raise _unreadable()


def words(process: Process, spelling: Sequence[bytes], marker: str) -> Words:
    """Blocking. Raises EngineError for a vocabulary that puts something behind a text."""
    bare, added = (tokenize(process.socket, process.key, "a", add=add) for add in (False, True))
    if added[len(added) - len(bare) :] != bare:
        raise EngineError("llama.cpp ends every prompt with a token of its own: images cannot be shown to this model")
    return Words(spelling, marker, added[: len(added) - len(bare)])


def encoded(image: ReadImage | ShownImage) -> Encoded:
    """What `LlamaCppVision` made of it."""
    if not isinstance(image.prepared, Encoded):
        raise EngineError("the image was preprocessed for another engine")
    return image.prepared


def _unreadable() -> Unsupported:
    return Unsupported(
        "llama.cpp takes a prompt with images as text, and would read other tokens in the text of this one; a control "
        "token's name in a message does that.",
        param="messages",
    )
