"""Images on their way to a model: as its engine made them ready, and where they are in the ids of a prompt.

Knows no picture's format; see `picture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class PreparedImage(Struct, frozen=True):
    """An image as a model's own processor made it ready.

    text: what stands for it in the prompt, instead of the one placeholder that the chat template writes. digest: of
    what it shows. prepared: for the engine that made it; nobody else looks into it.
    """

    text: str
    digest: bytes
    model_inputs: object


class PromptImage(Struct, frozen=True):
    """An image in a prompt: the ids from `begin` to `end` stand for it. digest, prepared: as in ReadImage.

    Keys and values of a prompt are shared only where digests and places are equal too.
    """

    begin: int
    end: int
    digest: bytes
    model_inputs: object


class ImageProcessor(Protocol):
    """How a model takes images in. Blocking; safe to use from several threads."""

    @property
    def placeholder(self) -> str:
        """What stands for an image in a rendered prompt before its own text is put there.

        What the model's chat template writes: the name of a control token; or, `in_text`, what nobody can guess.
        """
        ...

    @property
    def uses_text_placeholder(self) -> bool:
        """The template is shown no images, but texts that are the placeholder."""
        ...

    def prepare(self, images: Sequence[bytes]) -> tuple[PreparedImage, ...]:
        """Those of one prompt, in its order. Raises RequestError for one that cannot be decoded."""
        ...

    def locate(self, prompt: Sequence[int], images: Sequence[PreparedImage]) -> tuple[PromptImage, ...]:
        """Where each of them is in the ids of a prompt. Raises RequestError where they are not all there."""
        ...
