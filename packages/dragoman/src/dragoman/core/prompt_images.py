"""The preprocessed images of a prompt, with their positions in its token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class PreparedImage(Struct, frozen=True):
    """An image preprocessed by a model's own processor.

    text: its text in the prompt, which replaces the one placeholder that the chat
        template writes.
    digest: hash of its pixels.
    model_inputs: opaque; only the engine that produced it reads it.
    """

    text: str
    digest: bytes
    model_inputs: object


class PromptImage(Struct, frozen=True):
    """An image in a prompt: the token ids from `begin` to `end` (exclusive) represent
    it.

    digest, model_inputs: as in PreparedImage.

    Prompts share KV cache blocks only if their images' digests and positions are equal
    too.
    """

    begin: int
    end: int
    digest: bytes
    model_inputs: object


class ImageProcessor(Protocol):
    """A model's image processor. Its methods block; thread-safe."""

    @property
    def placeholder(self) -> str:
        """The text that represents an image in a rendered prompt before its own text
        replaces it.

        This is the control token that the chat template writes or, with
        `uses_text_placeholder`, a random string. It is random because a placeholder in
        a client's text must not be replaced by an image.
        """
        ...

    @property
    def uses_text_placeholder(self) -> bool:
        """Whether the template receives the placeholder as text instead of the images."""
        ...

    def prepare(self, images: Sequence[bytes]) -> tuple[PreparedImage, ...]:
        """Preprocess the images of one prompt, in order. Raises RequestError if one
        cannot be decoded.
        """
        ...

    def locate(
        self, prompt: Sequence[int], images: Sequence[PreparedImage]
    ) -> tuple[PromptImage, ...]:
        """Find the position of each image in the token ids. Raises RequestError if any
        is missing.
        """
        ...
