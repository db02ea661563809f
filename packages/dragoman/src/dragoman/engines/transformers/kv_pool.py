"""The KV cache of all layers, in blocks of one pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..batching import BLOCK_SIZE
from .backend import Device, Tensor, safetensors, torch

_PARTS = ("keys", "values")


def allocate_slots(num_slots: int, like: Tensor) -> Tensor:
    """Allocate a pool of zeros, [slots, ...], for entries like those of `like`,
    [entries, ...].
    """
    shape = (num_slots, *like.shape[1:])
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    # numpy leaves zeroing to the system, which allocates a page only when it is first
    # written.
    size = num_slots * like[0].numel() * like.element_size()
    return torch.from_numpy(np.zeros(size, np.uint8)).view(like.dtype).view(shape)


class KvPool:
    """The KV cache of all layers, in blocks of BLOCK_SIZE tokens.

    A layer's memory is allocated on first use, in main memory page by page.
    """

    def __init__(self, num_blocks: int, device: Device) -> None:
        self._num_slots = num_blocks * BLOCK_SIZE
        self._device = device
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def get_layer(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's keys and values, [slots, heads, width] each.

        keys, values: new ones, [tokens, heads, width], whose shape and dtype an
            unallocated layer gets.
        """
        layer = self._layers.get(index)
        if layer is None:
            layer = (allocate_slots(self._num_slots, keys), allocate_slots(self._num_slots, values))
            self._layers[index] = layer
        return layer

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Zero reused blocks. Masked entries have weight 0, but 0 * NaN is NaN: stale
        values could change results.
        """
        if not blocks or not self._layers:
            return
        # One copy to the device for all layers.
        index = torch.tensor(blocks, device=self._device)
        for parts in self._layers.values():
            for part in parts:
                part.view(-1, BLOCK_SIZE, *part.shape[1:]).index_fill_(0, index, 0)

    def save(self, block: int) -> bytes:
        """Serialize a block as safetensors: keys and values of each allocated layer, by
        its number.
        """
        span = slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
        parts = {
            f"{index}.{name}": part[span].cpu()
            for index, layer in self._layers.items()
            for name, part in zip(_PARTS, layer, strict=True)
        }
        return safetensors.torch.save(parts)

    def restore(self, block: int, contents: bytes) -> None:
        """Restore a block from the output of `save`. Missing layers are allocated."""
        span = slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
        parts = {
            name: part.to(self._device) for name, part in safetensors.torch.load(contents).items()
        }
        # A block may be restored before the first step, when no layer has allocated its
        # memory yet. A layer that a step has allocated can be written in this mode only.
        with torch.inference_mode():
            for index in {int(name.partition(".")[0]) for name in parts}:
                loaded = tuple(parts[f"{index}.{name}"] for name in _PARTS)
                for part, saved in zip(self.get_layer(index, *loaded), loaded, strict=True):
                    part[span] = saved

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token over all allocated layers."""
        return sum(
            part[0].numel() * part.element_size()
            for layer in self._layers.values()
            for part in layer
        )
