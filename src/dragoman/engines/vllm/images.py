"""Images for vLLM: preprocessed by the model's own processor, as vLLM has it, before the request is made.

Each image is processed alone. A request then has the token ids of the whole prompt, and for each image its tensors, its
hash and its place, as `vllm.inputs.engine.MultiModalInput` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any

from msgspec import Struct

from ...core.errors import EngineError, RequestError
from ...core.images import PreparedImage, PromptImage
from ..image_decoding import PillowImage, build_image_error, decode_image
from . import backend
from .backend import MultiModalItem, PlaceholderMask, Processor, VllmConfig

_PROBE_SIZE = 224


class VllmImage(Struct, frozen=True):
    """A processed image, in `PreparedImage.model_inputs`.

    ids: the token ids that replace the placeholder.
    item, hash: as in vLLM's inputs. mask: which of the ids stand for features; None is all.
    """

    ids: tuple[int, ...]
    item: MultiModalItem
    hash: str
    mask: PlaceholderMask


class VllmVision:
    """As `core.images.ImageProcessor`.

    processor: vLLM's, with the tokenizer.
    prompt: token ids of the model's text for one image.
    """

    def __init__(self, processor: Processor, tokenizer: Any, prompt: Sequence[int]) -> None:  # noqa: ANN401 - untyped
        self._processor, self._tokenizer = processor, tokenizer
        self._prompt = list(prompt)
        # The processors of transformers are not thread-safe.
        self._lock = Lock()
        self._index, _ = self._process(backend.pillow.new("RGB", (_PROBE_SIZE, _PROBE_SIZE)))
        self._max_images: int = processor.info.allowed_mm_limits["image"]

    @property
    def placeholder(self) -> str:
        return self._tokenizer.convert_ids_to_tokens(self._prompt[self._index])

    @property
    def uses_text_placeholder(self) -> bool:
        return False

    def prepare(self, images: Sequence[bytes]) -> tuple[PreparedImage, ...]:
        if len(images) > self._max_images:
            raise RequestError(f"A request can have at most {self._max_images} images.", param="messages")
        return tuple(self._prepare(data, number) for number, data in enumerate(images, 1))

    def _prepare(self, data: bytes, number: int) -> PreparedImage:
        try:
            with self._lock:
                _, image = self._process(decode_image(data))
        except EngineError:
            raise
        except Exception as error:  # Pillow's and the processors' for damaged files and unsupported shapes
            raise build_image_error(number, error) from error
        text = self._tokenizer.decode(list(image.ids), skip_special_tokens=False)
        return PreparedImage(text, blake2b(data, digest_size=16).digest(), image)

    def _process(self, picture: PillowImage) -> tuple[int, VllmImage]:
        """Process one image. Returns the index of the placeholder in the prompt too. Raises EngineError."""
        data = self._processor.info.parse_mm_data({"image": [picture]})
        inputs = backend.mm_inputs.ProcessorInputs(list(self._prompt), data)
        output = self._processor.apply(inputs, backend.mm_context.TimingContext(enabled=False))
        ids: list[int] = output["prompt_token_ids"]
        (place,) = output["mm_placeholders"]["image"]
        begin, end = place.offset, place.offset + place.length
        if (*ids[:begin], self._prompt[begin], *ids[end:]) != tuple(self._prompt):
            raise EngineError("vLLM replaces more than one token of the prompt by an image")
        (item,), (digest,) = output["mm_kwargs"]["image"], output["mm_hashes"]["image"]
        return begin, VllmImage(tuple(ids[begin:end]), item, digest, place.is_embed)

    def locate(self, prompt: Sequence[int], images: Sequence[PreparedImage]) -> tuple[PromptImage, ...]:
        places: list[PromptImage] = []
        end = 0
        for image in images:
            ids = get_image(image).ids
            # From the end of the image before: equal images have equal ids.
            begin = _find(prompt, ids, end)
            end = begin + len(ids)
            places.append(PromptImage(begin, end, image.digest, image.model_inputs))
        return tuple(places)


def _find(prompt: Sequence[int], ids: tuple[int, ...], start: int) -> int:
    for begin in range(start, len(prompt) - len(ids) + 1):
        if prompt[begin] == ids[0] and tuple(prompt[begin : begin + len(ids)]) == ids:
            return begin
    raise RequestError("The prompt does not contain every image exactly once.", param="messages")


def get_image(image: PreparedImage | PromptImage) -> VllmImage:
    """Return the image that `VllmVision` processed."""
    if not isinstance(image.model_inputs, VllmImage):
        raise EngineError("the image was preprocessed for another engine")
    return image.model_inputs


def load_vision(config: VllmConfig) -> VllmVision | None:
    """Load the image processor of a model. None if the model has none, or one that cannot be used image by image."""
    model = config.model_config
    if not model.is_multimodal_model:
        return None
    tokenizer = backend.tokenizers.cached_tokenizer_from_config(model)
    processor = backend.multimodal.MULTIMODAL_REGISTRY.create_processor(model, tokenizer=tokenizer)
    if not processor.info.allowed_mm_limits.get("image"):
        return None
    text: str | None = backend.model_loader.get_model_cls(model).get_placeholder_str("image", 1)
    if text is None:
        return None
    try:
        return VllmVision(processor, tokenizer, tokenizer.encode(text, add_special_tokens=False))
    except EngineError:
        return None
