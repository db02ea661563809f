"""Images for vLLM, processed with its processor of the model."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any

from msgspec import Struct

from ...core.errors import EngineError, RequestError
from ...core.prompt_images import PreparedImage, PromptImage
from ..image_decoding import PillowImage, build_image_error, decode_image
from . import backend
from .backend import (
    MultiModalItem,
    PlaceholderMask,
    Processor,
    VllmConfig,
)

_PROBE_SIZE = 224
"""Width and height in pixels of the blank image that is processed at startup to find
the placeholder.
"""


class VllmImage(Struct, frozen=True):
    """A processed image, in `PreparedImage.model_inputs`.

    ids: the token ids that replace the placeholder.
    item: the image's tensors, as in vLLM's inputs.
    hash: the image's hash, as in vLLM's inputs.
    mask: which of the ids stand for image features; None means all.
    """

    ids: tuple[int, ...]
    item: MultiModalItem
    hash: str
    mask: PlaceholderMask


class VllmVision:
    """Processes images with vLLM's processor of the model. Implements
    `core.prompt_images.ImageProcessor`.

    processor: vLLM's processor, which includes the tokenizer.
    prompt: token ids of the model's placeholder text for one image.
    """

    def __init__(self, processor: Processor, tokenizer: Any, prompt: Sequence[int]) -> None:  # noqa: ANN401 - untyped
        self._processor = processor
        self._tokenizer = tokenizer
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
            raise RequestError(
                f"A request can have at most {self._max_images} images.", param="messages"
            )
        prepared: list[PreparedImage] = []
        for number, data in enumerate(images, 1):
            try:
                with self._lock:
                    _, image = self._process(decode_image(data))
            except EngineError:
                raise
            # Pillow and the processors raise many types for damaged or unsupported
            # images
            except Exception as error:
                raise build_image_error(number, error) from error
            text = self._tokenizer.decode(list(image.ids), skip_special_tokens=False)
            prepared.append(PreparedImage(text, blake2b(data, digest_size=16).digest(), image))
        return tuple(prepared)

    def _process(self, picture: PillowImage) -> tuple[int, VllmImage]:
        """Process one image. Returns the index of the placeholder in the prompt, and
        the processed image.

        Raises: EngineError if vLLM replaces more than one token of the prompt.
        """
        data = self._processor.info.parse_mm_data({"image": [picture]})
        inputs = backend.mm_inputs.ProcessorInputs(list(self._prompt), data)
        output = self._processor.apply(inputs, backend.mm_context.TimingContext(enabled=False))
        ids: list[int] = output["prompt_token_ids"]
        (place,) = output["mm_placeholders"]["image"]
        begin = place.offset
        end = place.offset + place.length
        if (*ids[:begin], self._prompt[begin], *ids[end:]) != tuple(self._prompt):
            raise EngineError("vLLM replaces more than one token of the prompt by an image")
        (item,) = output["mm_kwargs"]["image"]
        (digest,) = output["mm_hashes"]["image"]
        return begin, VllmImage(tuple(ids[begin:end]), item, digest, place.is_embed)

    def locate(
        self, prompt: Sequence[int], images: Sequence[PreparedImage]
    ) -> tuple[PromptImage, ...]:
        places: list[PromptImage] = []
        end = 0
        for image in images:
            ids = get_image(image).ids
            # The search starts at the end of the preceding image, since equal images
            # have equal ids.
            begins = (
                begin
                for begin in range(end, len(prompt) - len(ids) + 1)
                if prompt[begin] == ids[0] and tuple(prompt[begin : begin + len(ids)]) == ids
            )
            begin = next(begins, None)
            if begin is None:
                raise RequestError(
                    "The prompt does not contain every image exactly once.", param="messages"
                )
            end = begin + len(ids)
            places.append(PromptImage(begin, end, image.digest, image.model_inputs))
        return tuple(places)


def get_image(image: PreparedImage | PromptImage) -> VllmImage:
    """Return the image that `VllmVision` processed."""
    if not isinstance(image.model_inputs, VllmImage):
        raise EngineError("the image was preprocessed for another engine")
    return image.model_inputs


def load_vision(config: VllmConfig) -> VllmVision | None:
    """Load the image processor of a model. None if the model has none, or one that
    cannot be used image by image.
    """
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
