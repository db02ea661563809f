"""Other weights for a network that is loaded: where each tensor of a checkpoint belongs. Knows nothing of requests."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...core.errors import EngineError
from ..arrays.weights import Tensors
from .backend import Device, Network, Tensor, torch


class Place(Struct, frozen=True):
    """A tensor of the network. names: what checkpoints call it, several where it is tied. shape, dtype: as it was."""

    names: tuple[str, ...]
    tensor: Tensor
    shape: tuple[int, ...]
    dtype: object


def places_of(network: Network) -> tuple[Place, ...]:
    """Every parameter, and every buffer that a checkpoint has."""
    found: dict[int, tuple[list[str], Tensor]] = {}
    kept = network.state_dict().keys()
    named = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        if name in kept:
            found.setdefault(id(tensor), ([], tensor))[0].append(name)
    return tuple(Place(tuple(names), each, tuple(each.shape), each.dtype) for names, each in found.values())


def staged_weights(places: Sequence[Place], tensors: Tensors) -> list[tuple[Place, Tensor]]:
    """All of them, read and checked, in the network's own kinds of numbers. Raises EngineError."""
    staged = [(place, _read(place, tensors)) for place in places]
    tensors.close()
    return staged


def _read(place: Place, tensors: Tensors) -> Tensor:
    given = [name for name in place.names if name in tensors] or [place.names[0]]
    first, *others = [torch.from_numpy(tensors.take(name, *place.shape).copy()) for name in given]
    if not all(torch.equal(first, other) for other in others):
        raise EngineError(f"{' and '.join(given)} are one tensor in this model, but differ")
    return first.to(place.dtype)


def free_accelerator(device: Device) -> None:
    """What the library keeps for later goes back to others."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
