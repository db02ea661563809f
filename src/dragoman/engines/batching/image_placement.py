"""Positions of images in the token ids of a prompt. Pure; independent of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.errors import RequestError
from ...core.vision import PreparedImage, PromptImage


def place_images(
    prompt: Sequence[int], token: int, images: Sequence[PreparedImage], counts: Sequence[int]
) -> tuple[PromptImage, ...]:
    """Find the span of every image, as `core.vision.ImageProcessor.locate`.

    token: the image placeholder id; it stands for nothing else.
    counts: placeholder tokens of each image.
    """
    positions = np.flatnonzero(np.asarray(prompt) == token).tolist()
    if len(positions) != sum(counts):
        raise RequestError("The prompt does not contain every image exactly once.", param="messages")
    placements: list[PromptImage] = []
    # Only the placeholders' count is known here, not which image each belongs to; they are in the order of the images.
    start = 0
    for image, count in zip(images, counts, strict=True):
        begin, end = positions[start], positions[start + count - 1] + 1
        placements.append(PromptImage(begin, end, image.digest, image.model_inputs))
        start += count
    return tuple(placements)
