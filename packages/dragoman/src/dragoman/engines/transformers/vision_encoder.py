"""The vision encoder of a model: image features, inserted at the images' tokens."""

from __future__ import annotations

from collections import abc
from weakref import WeakKeyDictionary

from ...core.errors import EngineError
from ...core.prompt_images import PromptImage
from ..batching import Chunk
from ..batching.sequence import Sequence
from .backend import Network, Tensor, torch
from .vision import LruBytes, get_pixels

_FEATURE_CACHE_BYTES = 512 << 20


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
        self._prompt_positions: WeakKeyDictionary[Sequence, Tensor] = WeakKeyDictionary()

    def prepare_images(self, images: abc.Sequence[PromptImage]) -> None:
        for image in images:
            self._get_features(image)

    def clear_cache(self) -> None:
        """Drop all features, after the weights have changed."""
        self._cache.clear()

    def build_embeddings(self, ids: Tensor, chunks: abc.Sequence[Chunk]) -> Tensor:
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

    def build_positions(self, chunks: abc.Sequence[Chunk], text_positions: Tensor) -> Tensor:
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
