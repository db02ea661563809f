"""Simulated embeddings, derived from the token ids alone; they take the time of a
prefill.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b, shake_256

import numpy as np

from dragoman.core.encoder_requests import EmbeddingInfo, Embeddings, EmbedRequest
from dragoman.core.engine import Health
from dragoman.core.errors import RequestError
from dragoman.core.image_header import read_image_info
from dragoman.core.prompt_images import PreparedImage, PromptImage
from dragoman.engines.batching import place_images

from .engine import SimulatorEngine


class SimulatorEmbedder:
    """Implements `core.engine.Embedder` on a generating engine, which is started and
    stopped separately.
    """

    def __init__(self, engine: SimulatorEngine, dimensions: int) -> None:
        self._engine = engine
        self._embedding_info = EmbeddingInfo(dimensions, engine.max_model_len, matryoshka=True)

    @property
    def embedding_info(self) -> EmbeddingInfo:
        return self._embedding_info

    async def start(self) -> None:
        """Do nothing: the generating engine has its own lifecycle."""

    async def stop(self) -> None:
        """Do nothing: the generating engine has its own lifecycle."""

    def health(self) -> Health:
        return self._engine.health()

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Embed the inputs. A short vector is, before normalization, a prefix of a
        longer one.
        """
        self._embedding_info.check_dimensions(request.dimensions)
        size = request.dimensions or self._embedding_info.dimensions
        tokens = await self._engine.simulate_prefill(request.inputs)
        vectors: list[bytes] = []
        for ids in request.inputs:
            # SHAKE has extendable output: the digest of a short vector is a prefix of
            # that of a longer one.
            raw = shake_256(np.array(ids, "<i8").tobytes()).digest(4 * size)
            vector = np.frombuffer(raw, "<u4").astype(np.float64) / 2**31 - 1
            length = math.sqrt(float(vector @ vector)) if request.normalize is not False else 1.0
            vectors.append((vector / (length or 1.0)).astype("<f4").tobytes())
        return Embeddings(tuple(vectors), size, tokens)


_TOKEN_NAMES = (
    "<|image_pad|>",
    "<|image|>",
    "<image>",
    "<image_soft_token>",
    "[IMG]",
    "<pad>",
    "<|endoftext|>",
    "<unk>",
)
"""Control tokens that can represent an image, best first."""


def find_image_token(
    special_tokens: Mapping[str, int], template: str, end_ids: Collection[int]
) -> tuple[str, int]:
    """Find a control token that prompts do not contain for any other reason. Raises
    ValueError if there is none.
    """
    for name in (*_TOKEN_NAMES, *special_tokens):
        if name in special_tokens and name not in template and special_tokens[name] not in end_ids:
            return name, special_tokens[name]
    raise ValueError(
        "--sim-image-tokens: the tokenizer has no control token that could represent an image"
    )


class SimulatedVision:
    """Implements `core.images.ImageProcessor`.

    count: number of tokens per image.
    token: name and id of the placeholder token.
    """

    def __init__(self, count: int, token: tuple[str, int]) -> None:
        self._count = count
        (self._name, self._id) = token
        # Random, so that no client can write it into a text, where an image would
        # replace it.
        self._placeholder = secrets.token_hex(16)

    @property
    def placeholder(self) -> str:
        return self._placeholder

    @property
    def uses_text_placeholder(self) -> bool:
        return True

    def prepare(self, images: Sequence[bytes]) -> tuple[PreparedImage, ...]:
        for number, data in enumerate(images, 1):
            if read_image_info(data) is None:
                raise RequestError(
                    f"Image {number} of the messages cannot be decoded.",
                    param="messages",
                    code="image_parse_error",
                )
        return tuple(
            PreparedImage(self._name * self._count, blake2b(data, digest_size=16).digest(), None)
            for data in images
        )

    def locate(
        self, prompt: Sequence[int], images: Sequence[PreparedImage]
    ) -> tuple[PromptImage, ...]:
        return place_images(prompt, self._id, images, [self._count] * len(images))
