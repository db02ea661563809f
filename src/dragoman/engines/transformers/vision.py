"""Images as a model of the transformers library takes them: decoded, made ready by its own processor, counted.

Nothing of the model itself computes here: that is `sight`'s work. Runs on any thread, never on the event loop.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from importlib import import_module
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from msgspec import Struct

from ...core.errors import EngineError, RequestError
from ...core.picture import MAX_PIXELS
from ...core.vision import ReadImage, ShownImage
from ..batching import placed
from .backend import Tensor, library
from .recent import Recent

Picture: TypeAlias = Any
"""A `PIL.Image.Image`."""
Inputs: TypeAlias = Mapping[str, Tensor]
"""What the model's vision takes, by the names of its arguments."""

_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_OF_TEXT = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "text_replacement_offsets"})
_KEPT_BYTES = 128 << 20
_GRIDS = frozenset({"qwen2_vl", "qwen2_5_vl"})
"""Their processors want torchvision for videos, which are not served; of an image they only count patches."""
_BROKEN = (
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
"""What Pillow and processors raise at files that are damaged, or have a shape that they cannot take."""


class Pixels(Struct, frozen=True):
    """One image, as `ReadImage.prepared`. count: placeholders in its text, each for one row of features."""

    inputs: Inputs
    count: int

    @property
    def size(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.inputs.values())


class Processor(Struct, frozen=True):
    """What lies with a model for its images. placeholder, token: what its template writes for an image, and its id.

    read: the text that stands for each of several images, and what the vision takes of all of them.
    """

    placeholder: str
    token: int
    tokenizer: Any
    read: Callable[[Sequence[Picture]], tuple[list[str], Inputs]]


def load_processor(directory: Path, config: Any, *, trust_remote_code: bool) -> Processor:  # noqa: ANN401 - untyped
    """Raises EngineError for a directory without one, or with one that cannot be used."""
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        if config.model_type in _GRIDS:
            tokenizer = library.AutoTokenizer.from_pretrained(directory, **local)
            token: int = config.image_token_id
            name: str = tokenizer.convert_ids_to_tokens(token)
            images = library.AutoImageProcessor.from_pretrained(directory, **local)
            return Processor(name, token, tokenizer, lambda pictures: _by_grid(images, name, pictures))
        whole = library.AutoProcessor.from_pretrained(directory, **local)
        return Processor(
            whole.image_token,
            config.image_token_id,
            whole.tokenizer,
            lambda pictures: _by_processor(whole, pictures),
        )
    except (OSError, ValueError, ImportError, RuntimeError, AttributeError, KeyError) as error:
        raise EngineError(f"the processor in {directory} cannot be used: {error}") from error


def _by_processor(processor: Any, pictures: Sequence[Picture]) -> tuple[list[str], Inputs]:  # noqa: ANN401 - untyped
    text = processor.image_token * len(pictures)
    made = processor(text=[text], images=[list(pictures)], return_tensors="pt", return_text_replacement_offsets=True)
    texts = [replaced["replacement"] for replaced in made["text_replacement_offsets"][0]]
    return texts, {name: value for name, value in made.items() if name not in _OF_TEXT}


def _by_grid(processor: Any, placeholder: str, pictures: Sequence[Picture]) -> tuple[list[str], Inputs]:  # noqa: ANN401
    made = processor(images=list(pictures), return_tensors="pt")
    patches = made["image_grid_thw"].prod(-1) // processor.merge_size**2
    return [placeholder * count for count in patches.tolist()], dict(made)


class TransformersVision:
    """As `core.vision.Vision`."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        # The library's processors and tokenizers are not made for several threads.
        self._lock = Lock()
        self._recent = Recent[tuple[str, Pixels]](_KEPT_BYTES, lambda read: read[1].size)

    @property
    def placeholder(self) -> str:
        return self._processor.placeholder

    @property
    def in_text(self) -> bool:
        return False

    def read(self, images: Sequence[bytes]) -> tuple[ReadImage, ...]:
        return tuple(self._read(data, number) for number, data in enumerate(images, 1))

    def place(self, prompt: Sequence[int], images: Sequence[ReadImage]) -> tuple[ShownImage, ...]:
        return placed(prompt, self._processor.token, images, [pixels_of(image).count for image in images])

    def _read(self, data: bytes, number: int) -> ReadImage:
        digest = blake2b(data, digest_size=16).digest()
        text, pixels = self._recent.get(digest, lambda: self._made(data, number))
        return ReadImage(text, digest, pixels)

    def _made(self, data: bytes, number: int) -> tuple[str, Pixels]:
        """Each image by itself, so that it is the same whatever stands beside it."""
        try:
            picture = decoded(data)
            with self._lock:
                (text,), inputs = self._processor.read([picture])
        except _BROKEN as error:
            raise RequestError(
                f"Image {number} of the messages cannot be decoded: {error}", param="messages", code="image_parse_error"
            ) from error
        return text, Pixels(inputs, text.count(self._processor.placeholder))


def pixels_of(image: ReadImage | ShownImage) -> Pixels:
    """What `TransformersVision` made of it."""
    if not isinstance(image.prepared, Pixels):
        raise EngineError("the image was preprocessed for another engine")
    return image.prepared


def decoded(data: bytes) -> Picture:
    """In RGB, upright, on white where it is transparent; the first frame. Raises what Pillow does, ValueError."""
    pillow, operations = import_module("PIL.Image"), import_module("PIL.ImageOps")
    with pillow.open(BytesIO(data), formats=_FORMATS) as opened:
        # What a header said before need not be what the decoder goes by.
        if opened.width * opened.height > MAX_PIXELS:
            raise ValueError(f"it has more than {MAX_PIXELS} pixels")
        upright = operations.exif_transpose(opened)
        if not upright.has_transparency_data:
            return upright.convert("RGB")
        layer = upright.convert("RGBA")
        white = pillow.new("RGBA", layer.size, "white")
        return pillow.alpha_composite(white, layer).convert("RGB")


def sees(config: Any) -> bool:  # noqa: ANN401 - untyped
    """Whether a configuration is that of a model that takes text and images."""
    return type(config) in library.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and hasattr(config, "image_token_id")
