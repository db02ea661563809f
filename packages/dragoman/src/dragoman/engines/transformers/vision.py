"""Preprocessing of images by the model's own processor."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from ...core.errors import EngineError
from ...core.prompt_images import PreparedImage, PromptImage
from ..batching import place_images
from ..image_decoding import PillowImage, build_image_error, decode_image
from .backend import Tensor, library

T = TypeVar("T")

VisionInputs: TypeAlias = Mapping[str, Tensor]
"""Inputs of the vision encoder, by argument name."""

_TEXT_INPUTS = frozenset(
    {
        "input_ids",
        "attention_mask",
        "token_type_ids",
        "mm_token_type_ids",
        "text_replacement_offsets",
    }
)
_CACHE_BYTES = 128 << 20
_GRID_MODEL_TYPES = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe"})
"""Model types whose full processor needs torchvision for videos, which are not
supported.

For images it only counts patches, which `_process_by_grid` does instead.
"""
_IMAGE_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
)
"""Exceptions of Pillow and processors for damaged files or unsupported shapes."""


class ImagePixels(Struct, frozen=True):
    """One preprocessed image, stored in `PreparedImage.model_inputs`.

    count: number of placeholder tokens, one per row of features.
    """

    inputs: VisionInputs
    count: int

    @property
    def size(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.inputs.values())


class VisionProcessor(Struct, frozen=True):
    """The image processor of a model.

    placeholder: text for an image in the chat template.
    token: id of the token of one row of features. In Gemma 3 and Aya Vision it is not
        the placeholder's, which stands for a whole image.
    process: returns the expanded text of each image, and the vision inputs of all.
    """

    placeholder: str
    token: int
    tokenizer: Any
    process: Callable[[Sequence[PillowImage]], tuple[list[str], VisionInputs]]


def load_processor(directory: Path, config: Any, *, trust_remote_code: bool) -> VisionProcessor:  # noqa: ANN401 - untyped
    """Load the processor. May raise any exception, since its code is the library's."""
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    if config.model_type in _GRID_MODEL_TYPES:
        tokenizer = library.AutoTokenizer.from_pretrained(directory, **local)
        token: int = config.image_token_id
        name: str = tokenizer.convert_ids_to_tokens(token)
        images = library.AutoImageProcessor.from_pretrained(directory, **local)
        return VisionProcessor(name, token, tokenizer, partial(_process_by_grid, images, name))
    processor = library.AutoProcessor.from_pretrained(directory, **local)
    return VisionProcessor(
        processor.image_token,
        config.image_token_id,
        processor.tokenizer,
        partial(_process_with_library, processor),
    )


def _process_with_library(
    processor: Any,  # noqa: ANN401 - untyped
    pictures: Sequence[PillowImage],
) -> tuple[list[str], VisionInputs]:
    text = processor.image_token * len(pictures)
    outputs = processor(
        text=[text],
        images=[list(pictures)],
        return_tensors="pt",
        return_text_replacement_offsets=True,
    )
    texts = [replacement["replacement"] for replacement in outputs["text_replacement_offsets"][0]]
    return texts, {name: value for name, value in outputs.items() if name not in _TEXT_INPUTS}


def _process_by_grid(
    processor: Any,  # noqa: ANN401
    placeholder: str,
    pictures: Sequence[PillowImage],
) -> tuple[list[str], VisionInputs]:
    outputs = processor(images=list(pictures), return_tensors="pt")
    patches = outputs["image_grid_thw"].prod(-1) // processor.merge_size**2
    return [placeholder * count for count in patches.tolist()], dict(outputs)


class TransformersVision:
    """Implements `core.prompt_images.ImageProcessor`."""

    def __init__(self, processor: VisionProcessor) -> None:
        self._processor = processor
        self._feature_text: str = processor.tokenizer.convert_ids_to_tokens(processor.token)
        # The library's processors and tokenizers are not thread-safe.
        self._lock = Lock()
        self._cache = LruBytes[tuple[str, ImagePixels]](_CACHE_BYTES, lambda read: read[1].size)

    @property
    def placeholder(self) -> str:
        return self._processor.placeholder

    @property
    def uses_text_placeholder(self) -> bool:
        return False

    def prepare(self, images: Sequence[bytes]) -> tuple[PreparedImage, ...]:
        prepared: list[PreparedImage] = []
        for number, data in enumerate(images, 1):
            digest = blake2b(data, digest_size=16).digest()
            text, pixels = self._cache.get_or_compute(digest, partial(self._process, data, number))
            prepared.append(PreparedImage(text, digest, pixels))
        return tuple(prepared)

    def locate(
        self, prompt: Sequence[int], images: Sequence[PreparedImage]
    ) -> tuple[PromptImage, ...]:
        return place_images(
            prompt, self._processor.token, images, [get_pixels(image).count for image in images]
        )

    def _process(self, data: bytes, number: int) -> tuple[str, ImagePixels]:
        """Process one image alone, so that its result does not depend on others."""
        try:
            picture = decode_image(data)
            with self._lock:
                (text,), inputs = self._processor.process([picture])
                count = text.count(self._feature_text)
        except _IMAGE_ERRORS as error:
            raise build_image_error(number, error) from error
        return text, ImagePixels(inputs, count)


def get_pixels(image: PreparedImage | PromptImage) -> ImagePixels:
    """Return the pixels prepared by `TransformersVision`."""
    if not isinstance(image.model_inputs, ImagePixels):
        raise EngineError("the image was preprocessed for another engine")
    return image.model_inputs


def is_vision_model(config: Any) -> bool:  # noqa: ANN401 - untyped
    """Whether the configuration is of a model with text and image input."""
    return type(config) in library.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and hasattr(
        config, "image_token_id"
    )


class LruBytes(Generic[T]):
    """An LRU cache of computed values. Thread-safe.

    max_bytes: limit of all values together; the most recent one is cached even if it is
        larger.
    size: returns the bytes of a value.
    """

    def __init__(self, max_bytes: int, size: Callable[[T], int]) -> None:
        self._max_bytes = max_bytes
        self._size = size
        self._items: OrderedDict[bytes, T] = OrderedDict()
        self._total_bytes = 0
        self._lock = Lock()

    def get_or_compute(self, key: bytes, compute: Callable[[], T]) -> T:
        """Return the cached value, or compute and cache it."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        # Computed without the lock: it is slow, and computing a value twice does no
        # harm.
        value = compute()
        with self._lock:
            if key not in self._items:
                self._items[key] = value
                self._total_bytes += self._size(value)
            while self._total_bytes > self._max_bytes and len(self._items) > 1:
                self._total_bytes -= self._size(self._items.popitem(last=False)[1])
        return value

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
            self._total_bytes = 0
