"""Images on their way to a model: as its engine made them ready, and where they are in the ids of a prompt.

Knows no picture's format; see `picture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class ReadImage(Struct, frozen=True):
    """An image as a model's own processor made it ready.

    text: what stands for it in the prompt, instead of the one placeholder that the chat template writes. digest: of
    what it shows. prepared: for the engine that made it; nobody else looks into it.
    """

    text: str
    digest: bytes
    prepared: object


class ShownImage(Struct, frozen=True):
    """An image in a prompt: the ids from `begin` to `end` stand for it. digest, prepared: as in ReadImage.

    Keys and values of a prompt are shared only where digests and places are equal too.
    """

    begin: int
    end: int
    digest: bytes
    prepared: object


class Vision(Protocol):
    """How a model takes images in. Blocking; safe to use from several threads."""

    @property
    def placeholder(self) -> str:
        """What stands for an image in a rendered prompt before its own text is put there.

        What the model's chat template writes: the name of a control token; or, `in_text`, what nobody can guess.
        """
        ...

    @property
    def in_text(self) -> bool:
        """The template is shown no images, but texts that are the placeholder."""
        ...

    def read(self, images: Sequence[bytes]) -> tuple[ReadImage, ...]:
        """Those of one prompt, in its order. Raises RequestError for one that cannot be decoded."""
        ...

    def place(self, prompt: Sequence[int], images: Sequence[ReadImage]) -> tuple[ShownImage, ...]:
        """Where each of them is in the ids of a prompt. Raises RequestError where they are not all there."""
        ...
