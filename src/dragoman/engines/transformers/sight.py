"""What a model computes of images: features once an image, put where its tokens stand, at the positions it gives them.

Runs on the thread that computes the steps. Knows nothing of files or of how an image was made ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ...core.errors import EngineError
from ...core.vision import ShownImage
from ..batching import Chunk
from ..batching.sequence import Sequence as Running
from .backend import Network, Tensor, torch
from .recent import Recent
from .vision import pixels_of

_KEPT_BYTES = 512 << 20


class TransformersSight:
    """As `batching.Sight`. Features of an image that are no longer kept are computed again when they are needed."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._token: int = network.config.image_token_id
        self._recent = Recent[Tensor](_KEPT_BYTES, lambda rows: rows.numel() * rows.element_size())
        # Models that tell rows and columns of an image apart by positions (M-RoPE) say where everything is.
        self._index = getattr(network.model, "get_rope_index", None)
        self._placed: WeakKeyDictionary[Running, Tensor] = WeakKeyDictionary()

    def look(self, images: Sequence[ShownImage]) -> None:
        for image in images:
            self._features(image)

    def forget(self) -> None:
        """What was seen so far was seen with other weights."""
        self._recent.clear()

    def embeddings(self, ids: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        """ids: [1, tokens] of a step; [1, tokens, width], with features where images are."""
        made = self._network.get_input_embeddings()(ids).clone()
        start = 0
        for chunk in chunks:
            for image in chunk.sequence.request.images:
                begin, end = max(image.begin, chunk.begin), min(image.end, chunk.end)
                if begin < end:
                    rows, features = self._rows(ids.device, chunk.sequence, image, begin, end)
                    made[0, start - chunk.begin + rows] = features.to(made.dtype)
            start += chunk.num_tokens
        return made

    def positions(self, chunks: Sequence[Chunk], plain: Tensor) -> Tensor:
        """plain: [1, tokens], as text has them. [3, 1, tokens] for models that want time, row and column."""
        if self._index is None:
            return plain
        parts = [self._position(chunk).to(plain.device) for chunk in chunks]
        return torch.cat(parts, dim=1)[:, None]

    def _rows(
        self, device: object, sequence: Running, image: ShownImage, begin: int, end: int
    ) -> tuple[Tensor, Tensor]:
        """Places between begin and end that stand for pieces of the image, and the features of those pieces."""
        ids = torch.tensor(sequence.tokens[image.begin : image.end], device=device)
        places = (ids == self._token).nonzero()[:, 0] + image.begin
        inside = (places >= begin) & (places < end)
        return places[inside], self._features(image)[inside]

    def _features(self, image: ShownImage) -> Tensor:
        return self._recent.get(image.digest, lambda: self._computed(image))

    def _computed(self, image: ShownImage) -> Tensor:
        """[pieces, width]"""
        pixels, network = pixels_of(image), self._network
        inputs = {name: on_device(network, tensor) for name, tensor in pixels.inputs.items()}
        with torch.inference_mode():
            found = network.get_image_features(**inputs, return_dict=True).pooler_output
            rows = found.flatten(0, -2) if isinstance(found, torch.Tensor) else torch.cat([*found])
        if len(rows) != pixels.count:
            raise EngineError(f"an image has {pixels.count} tokens, but the vision model returned {len(rows)}")
        return rows

    def _position(self, chunk: Chunk) -> Tensor:
        """[3, tokens]. Behind the prompt every token is one further, for all three."""
        sequence = chunk.sequence
        plain = torch.arange(chunk.begin, chunk.end).expand(3, -1)
        if not sequence.request.images:
            return plain
        if sequence not in self._placed:
            self._placed[sequence] = self._indexed(sequence)
        prompt = self._placed[sequence]
        length = prompt.shape[1]
        behind = plain[:, plain[0] >= length] - length + prompt.max() + 1
        return torch.cat([prompt[:, chunk.begin : chunk.end], behind], dim=1)

    def _indexed(self, sequence: Running) -> Tensor:
        """[3, prompt]"""
        assert self._index is not None
        images = sequence.request.images
        ids = torch.tensor([sequence.request.prompt])
        shown = torch.zeros_like(ids)
        for image in images:
            shown[0, image.begin : image.end] = 1
        grids = torch.cat([pixels_of(image).inputs["image_grid_thw"] for image in images])
        positions, _ = self._index(ids, mm_token_type_ids=shown, image_grid_thw=grids)
        return positions[:, 0]


def on_device(network: Network, tensor: Tensor) -> Tensor:
    """Where the network computes; numbers with a point as it computes them."""
    return tensor.to(network.device, network.dtype if tensor.is_floating_point() else tensor.dtype)
