"""Recurrent and convolutional layers: their state beside keys and values, a slot for each running sequence.

The library computes a layer's rows with a cache. Here each row of a step is computed with the state of its own sequence:
sequences with one new token together, chunks of several tokens one by one. Independent of requests and architectures: a
layer is recurrent if its code updates such a state in the library's cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from ..batching import Chunk
from .backend import Network, Tensor, library, torch

_CACHES: Any = import_module("transformers.cache_utils")
_UPDATES = frozenset({"update_conv_state", "update_recurrent_state"})
"""Methods of the library's cache that store state beside keys and values."""
_CACHE_NAMES = ("cache_params", "past_key_values")
_KINDS = ("conv_states", "recurrent_states")
"""Attributes of a layer of the library's cache: states by number."""

StateKey: TypeAlias = tuple[int, str, int]
"""Layer, kind and number of a state."""


class StatePool:
    """The states of all recurrent layers: [slots, ...] each. Allocated on first use, in main memory page by page."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._states: dict[StateKey, Tensor] = {}

    @property
    def bytes_per_slot(self) -> int:
        return sum(state[0].numel() * state.element_size() for state in self._states.values())

    def get_layer(self, index: int) -> list[tuple[StateKey, Tensor]]:
        """Return the states of a layer, for all slots."""
        return [(key, state) for key, state in self._states.items() if key[0] == index]

    def write(self, key: StateKey, slots: slice | Tensor, state: Tensor) -> None:
        """Write states of [sequences, ...] to their slots, unless they are in them already."""
        if key not in self._states:
            self._states[key] = self._allocate(state)
        if isinstance(slots, slice) and self._states[key][slots].data_ptr() == state.data_ptr():
            return
        self._states[key][slots] = state

    def _allocate(self, like: Tensor) -> Tensor:
        shape = (self._num_slots, *like.shape[1:])
        if like.device.type != "cpu":
            return like.new_zeros(shape)
        # numpy leaves zeroing to the system, which gives memory to a page when it is first written.
        size = self._num_slots * like[0].numel() * like.element_size()
        return torch.from_numpy(np.zeros(size, np.uint8)).view(like.dtype).view(shape)


class StateGroup(Struct, frozen=True, eq=False):
    """Rows of a step that a recurrent layer computes in one call.

    rows: of the step, by sequence and then by position.
    slots: of their sequences; a slice if they are consecutive.
    num_sequences: each has the same number of rows.
    continues: whether the sequences have state from earlier steps.
    """

    rows: Tensor
    slots: slice | Tensor
    num_sequences: int
    continues: bool


class _ActiveStep(Struct, frozen=True, eq=False):
    groups: list[StateGroup]
    pool: StatePool


class _Layer(Struct, frozen=True, eq=False):
    """A recurrent layer of the library.

    index: in the library's cache.
    parameters: of `forward`.
    cache_name: the parameter for the cache.
    """

    forward: Callable[..., Any]
    index: int
    parameters: list[str]
    cache_name: str


class RecurrentLayers:
    """The recurrent layers of a network. Others are left alone, and so are all of them between steps.

    by_token: compute chunks that continue a sequence token by token, for layers that begin anew with every longer chunk.
    """

    def __init__(self, network: Network) -> None:
        self._device = network.device
        self._step: _ActiveStep | None = None
        self._num_states: dict[int, int] = {}
        self.by_token = False
        for module in network.modules():
            cache_name = _find_cache_name(module)
            if cache_name is not None:
                self._num_states[module.layer_idx] = 1
                names = list(inspect.signature(module.forward).parameters)
                module.forward = partial(self._compute, _Layer(module.forward, module.layer_idx, names, cache_name))
        if self._num_states:
            layers = library.DynamicCache(config=network.config.get_text_config()).layers
            for index in self._num_states:
                self._num_states[index] = layers[index].number_of_states

    @property
    def has_state(self) -> bool:
        return bool(self._num_states)

    @contextmanager
    def activate(self, chunks: Sequence[Chunk], pool: StatePool) -> Generator[None]:
        """Compute the layers with the states of a step's chunks until the end of the block."""
        if self.has_state:
            self._step = _ActiveStep(self._build_groups(chunks), pool)
        try:
            yield
        finally:
            self._step = None

    def _build_groups(self, chunks: Sequence[Chunk]) -> list[StateGroup]:
        """Group the rows. Sequences with one new token form one group, in the order of their slots."""
        groups: list[StateGroup] = []
        decoding: list[tuple[int, int]] = []
        start = 0
        for chunk in chunks:
            slot = chunk.sequence.state_slot
            if slot is None:
                raise ValueError(f"{chunk.sequence.request.id} has no state slot")
            rows = range(start, start + chunk.num_tokens)
            if chunk.begin == 0 or (chunk.num_tokens > 1 and not self.by_token):
                groups.append(self._build_group(rows, [slot], continues=chunk.begin > 0))
            elif chunk.num_tokens == 1:
                decoding.append((slot, start))
            else:
                groups += [self._build_group([row], [slot], continues=True) for row in rows]
            start = rows.stop
        if decoding:
            slots, rows = zip(*sorted(decoding), strict=True)
            groups.append(self._build_group(rows, slots, continues=True))
        return groups

    def _build_group(self, rows: Sequence[int], slots: Sequence[int], *, continues: bool) -> StateGroup:
        first, end = slots[0], slots[-1] + 1
        is_consecutive = end - first == len(slots)
        return StateGroup(
            torch.tensor(rows, device=self._device),
            slice(first, end) if is_consecutive else torch.tensor(slots, device=self._device),
            len(slots),
            continues,
        )

    def _compute(self, layer: _Layer, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as the library's layer
        """Compute one layer: tensors of [1, rows, ...]."""
        step = self._step
        if step is None:
            return layer.forward(*args, **options)
        given = {**dict(zip(layer.parameters, args, strict=False)), **options}
        # The step is an argument of attention, and masks are for padded batches.
        kept = {name: None if name.endswith("mask") else value for name, value in given.items() if name != "step"}
        num_rows = given["hidden_states"].shape[1]
        parts: list[Any] = []
        for group in step.groups:
            inputs = {name: _take_rows(value, group, num_rows) for name, value in kept.items()}
            states = self._load(layer.index, group, step.pool)
            inputs[layer.cache_name] = library.Cache(layers=[None] * layer.index + [states])
            parts.append(layer.forward(**inputs))
            _store(states, layer.index, group, step.pool)
        order = torch.cat([group.rows for group in step.groups]).argsort()
        if isinstance(parts[0], tuple):
            return tuple(_join(column, order) for column in zip(*parts, strict=True))
        return _join(parts, order)

    def _load(self, index: int, group: StateGroup, pool: StatePool) -> Any:  # noqa: ANN401 - untyped
        """Build a layer of the library's cache. States of consecutive slots are views of the pool, which the library
        updates in place."""
        layer = _CACHES.LinearAttentionLayer(self._num_states[index])
        if group.continues:
            for (_, kind, number), state in pool.get_layer(index):
                getattr(layer, kind)[number] = state[group.slots]
                getattr(layer, f"is_{kind}_initialized")[number] = True
                layer.has_previous_state[number] = True
                if kind == "conv_states":
                    layer.conv_kernel_size[number] = state.shape[-1]
        return layer


def _store(layer: Any, index: int, group: StateGroup, pool: StatePool) -> None:  # noqa: ANN401 - untyped
    """Store the states of a layer of the library's cache."""
    for kind in _KINDS:
        for number, state in getattr(layer, kind).items():
            if state is not None:
                pool.write((index, kind, number), group.slots, state)


def _join(parts: Sequence[Tensor], order: Tensor) -> Tensor:
    """Join tensors of [sequences, tokens, ...] to [1, rows, ...]."""
    return torch.cat([part.flatten(0, 1) for part in parts])[order][None]


def _take_rows(value: Any, group: StateGroup, num_rows: int) -> Any:  # noqa: ANN401 - an argument of a layer
    """Take the group's rows of a tensor of [1, rows, ...]: [sequences, tokens, ...]. Returns other arguments as they
    are."""
    if not isinstance(value, torch.Tensor) or tuple(value.shape[:2]) != (1, num_rows):
        return value
    return value[0, group.rows].unflatten(0, (group.num_sequences, -1))


def _find_cache_name(module: Network) -> str | None:
    """Find under which name a recurrent layer takes the library's cache; None for other modules."""
    functions = [
        inspect.unwrap(function)
        for kind in type(module).__mro__
        for function in vars(kind).values()
        if inspect.isfunction(function)
    ]
    if not any(_UPDATES.intersection(function.__code__.co_names) for function in functions):
        return None
    parameters = inspect.signature(type(module).forward).parameters
    return next((name for name in _CACHE_NAMES if name in parameters and "hidden_states" in parameters), None)
