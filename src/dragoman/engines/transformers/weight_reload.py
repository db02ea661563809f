"""Weight updates of a loaded network: maps checkpoint tensors to the network's. Independent of requests."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...core.errors import EngineError
from ..arrays.weights import Tensors
from .backend import Device, Network, Tensor, torch


class WeightSlot(Struct, frozen=True):
    """A tensor of the network. names: in checkpoints, several if it is tied. shape, dtype: at load time."""

    names: tuple[str, ...]
    tensor: Tensor
    shape: tuple[int, ...]
    dtype: object


def find_weight_slots(network: Network) -> tuple[WeightSlot, ...]:
    """Find every parameter, and every buffer that is in checkpoints."""
    names_by_tensor: dict[int, tuple[list[str], Tensor]] = {}
    persistent = network.state_dict().keys()
    named_tensors = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    for name, tensor in named_tensors:
        if name in persistent:
            names_by_tensor.setdefault(id(tensor), ([], tensor))[0].append(name)
    return tuple(
        WeightSlot(tuple(names), value, tuple(value.shape), value.dtype) for names, value in names_by_tensor.values()
    )


def stage_weights(slots: Sequence[WeightSlot], tensors: Tensors) -> list[tuple[WeightSlot, Tensor]]:
    """Read and validate all tensors in the network's dtypes. Raises EngineError."""
    staged = [(slot, _read_weight(slot, tensors)) for slot in slots]
    tensors.check_all_used()
    return staged


def _read_weight(slot: WeightSlot, tensors: Tensors) -> Tensor:
    names = [name for name in slot.names if name in tensors] or [slot.names[0]]
    first, *others = [torch.from_numpy(tensors.take(name, *slot.shape).copy()) for name in names]
    if not all(torch.equal(first, other) for other in others):
        raise EngineError(f"{' and '.join(names)} are one tensor in this model, but differ")
    return first.to(slot.dtype)


def release_cached_memory(device: Device) -> None:
    """Return the allocator's cached memory to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
