"""Where images are in the ids of a prompt. Pure; knows no model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.errors import RequestError
from ...core.vision import ReadImage, ShownImage


def placed(
    prompt: Sequence[int], token: int, images: Sequence[ReadImage], counts: Sequence[int]
) -> tuple[ShownImage, ...]:
    """token: stands for images and nothing else. counts: how often, for each. As `core.vision.Vision.place`."""
    found = np.flatnonzero(np.asarray(prompt) == token).tolist()
    if len(found) != sum(counts):
        raise RequestError("The prompt does not contain every image exactly once.", param="messages")
    shown: list[ShownImage] = []
    start = 0
    for image, count in zip(images, counts, strict=True):
        begin, end = found[start], found[start + count - 1] + 1
        shown.append(ShownImage(begin, end, image.digest, image.prepared))
        start += count
    return tuple(shown)
