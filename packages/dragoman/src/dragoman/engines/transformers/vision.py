"""Images for models of the transformers library: preprocessing by the model's own
processor, and the vision encoder.

Preprocessing runs on threads other than the event loop's, the encoder on the worker
thread.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Struct

from ...core.errors import EngineError
from ...core.images import PreparedImage, PromptImage
from ..batching import Chunk, place_images
from ..batching.sequence import Sequence as Running
from ..image_decoding import PillowImage, build_image_error, decode_image
from .backend import Network, Tensor, library, torch

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
_FEATURE_CACHE_BYTES = 512 << 20
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
    token: id of the placeholder's token.
    process: returns the expanded text of each image, and the vision inputs of all.
    """

    placeholder: str
    token: int
    tokenizer: Any
    process: Callable[[Sequence[PillowImage]], tuple[list[str], VisionInputs]]


def load_processor(directory: Path, config: Any, *, trust_remote_code: bool) -> VisionProcessor:  # noqa: ANN401 - untyped
    """Load the processor. Raises EngineError if it is missing or unsupported."""
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
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
    except (OSError, ValueError, ImportError, RuntimeError, AttributeError, KeyError) as error:
        raise EngineError(f"the processor in {directory} cannot be used: {error}") from error


def _process_with_library(
    processor: Any, pictures: Sequence[PillowImage]
) -> tuple[list[str], VisionInputs]:  # noqa: ANN401 - untyped
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
    """Implements `core.images.ImageProcessor`."""

    def __init__(self, processor: VisionProcessor) -> None:
        self._processor = processor
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
        except _IMAGE_ERRORS as error:
            raise build_image_error(number, error) from error
        return text, ImagePixels(inputs, text.count(self._processor.placeholder))


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


# The vision encoder.


class TransformersVisionRunner:
    """Implements `batching.VisionRunner`: image features, inserted at the images'
    tokens, and the model's positions.

    Evicted features are computed again when needed.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._image_token_id: int = network.config.image_token_id
        self._cache = LruBytes[Tensor](
            _FEATURE_CACHE_BYTES, lambda rows: rows.numel() * rows.element_size()
        )
        # Models with M-RoPE (rows and columns as positions) compute the positions of
        # all tokens themselves.
        self._compute_rope_index = getattr(network.model, "get_rope_index", None)
        # Weak keys, since nothing reports the end of a sequence to this class.
        self._prompt_positions: WeakKeyDictionary[Running, Tensor] = WeakKeyDictionary()

    def prepare_images(self, images: Sequence[PromptImage]) -> None:
        for image in images:
            self._get_features(image)

    def clear_cache(self) -> None:
        """Drop all features, after the weights have changed."""
        self._cache.clear()

    def build_embeddings(self, ids: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        """Build the input embeddings [1, tokens, width] of a step's ids [1, tokens],
        with features at image tokens.
        """
        embeddings = self._network.get_input_embeddings()(ids).clone()
        start = 0
        for chunk in chunks:
            for image in chunk.sequence.request.images:
                begin = max(image.begin, chunk.begin)
                end = min(image.end, chunk.end)
                if begin >= end:
                    continue
                image_ids = torch.tensor(
                    chunk.sequence.tokens[image.begin : image.end], device=ids.device
                )
                positions = (image_ids == self._image_token_id).nonzero()[:, 0] + image.begin
                in_span = (positions >= begin) & (positions < end)
                features = self._get_features(image)[in_span]
                embeddings[0, start - chunk.begin + positions[in_span]] = features.to(
                    embeddings.dtype
                )
            start += chunk.num_tokens
        return embeddings

    def build_positions(self, chunks: Sequence[Chunk], text_positions: Tensor) -> Tensor:
        """Build the positions of a step: [3, 1, tokens] (time, row, column) with
        M-RoPE, else text_positions.

        text_positions: [1, tokens].
        """
        if self._compute_rope_index is None:
            return text_positions
        parts = [self._build_chunk_positions(chunk).to(text_positions.device) for chunk in chunks]
        return torch.cat(parts, dim=1)[:, None]

    def _get_features(self, image: PromptImage) -> Tensor:
        return self._cache.get_or_compute(image.digest, lambda: self._compute_features(image))

    def _compute_features(self, image: PromptImage) -> Tensor:
        """Compute the features of an image, [pieces, width]."""
        pixels = get_pixels(image)
        network = self._network
        inputs = {name: move_to_device(network, tensor) for name, tensor in pixels.inputs.items()}
        with torch.inference_mode():
            output = network.get_image_features(**inputs, return_dict=True).pooler_output
            rows = (
                output.flatten(0, -2) if isinstance(output, torch.Tensor) else torch.cat([*output])
            )
        if len(rows) != pixels.count:
            raise EngineError(
                f"an image has {pixels.count} tokens, but the vision model returned {len(rows)}"
            )
        return rows

    def _build_chunk_positions(self, chunk: Chunk) -> Tensor:
        """Build the positions of a chunk, [3, tokens]. After the prompt all three
        increase by 1 per token.
        """
        sequence = chunk.sequence
        text_positions = torch.arange(chunk.begin, chunk.end).expand(3, -1)
        if not sequence.request.images:
            return text_positions
        prompt = self._prompt_positions.get(sequence)
        if prompt is None:
            assert self._compute_rope_index is not None
            ids = torch.tensor([sequence.request.prompt])
            image_mask = torch.zeros_like(ids)
            for image in sequence.request.images:
                image_mask[0, image.begin : image.end] = 1
            grids = torch.cat(
                [get_pixels(image).inputs["image_grid_thw"] for image in sequence.request.images]
            )
            positions, _ = self._compute_rope_index(
                ids, mm_token_type_ids=image_mask, image_grid_thw=grids
            )
            prompt = self._prompt_positions[sequence] = positions[:, 0]
        length = prompt.shape[1]
        after_prompt = text_positions[:, text_positions[0] >= length] - length + prompt.max() + 1
        return torch.cat([prompt[:, chunk.begin : chunk.end], after_prompt], dim=1)


def move_to_device(network: Network, tensor: Tensor) -> Tensor:
    """Move a tensor to the network's device, and floating point tensors to its dtype."""
    return tensor.to(network.device, network.dtype if tensor.is_floating_point() else tensor.dtype)


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
