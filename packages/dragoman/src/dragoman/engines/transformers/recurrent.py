"""Recurrent and convolutional layers, whose state has a slot for each running sequence.

The library computes a layer's rows with one cache. Here each row of a step is computed
with the state of its own sequence: sequences with one new token together, chunks of
several tokens one by one. No architecture is named: a layer is recurrent if its code
updates such a state in the library's cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias, cast

from msgspec import Struct

from ..batching import Chunk
from .backend import Network, Tensor, library, torch
from .kv_pool import allocate_slots

_CACHES: Any = import_module("transformers.cache_utils")
_UPDATES = frozenset({"update_conv_state", "update_recurrent_state"})
"""Methods of the library's cache that store state beside keys and values."""
CACHE_NAMES = ("cache", "cache_params", "past_key_values")
"""Names of the cache in inputs and outputs: `cache` since transformers 5.24, the others
in earlier versions.
"""
_KINDS = ("conv_states", "recurrent_states")
"""Attributes of a layer of the library's cache, each with states by number."""

StateKey: TypeAlias = tuple[str, int]
"""Kind and number of a state of a layer."""


class StatePool:
    """The states of all recurrent layers, [slots, ...] each; allocated on first use, in
    main memory page by page.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._layers: dict[int, dict[StateKey, Tensor]] = {}

    @property
    def bytes_per_slot(self) -> int:
        states = [state for layer in self._layers.values() for state in layer.values()]
        return sum(state[0].numel() * state.element_size() for state in states)

    def get_layer(self, index: int) -> dict[StateKey, Tensor]:
        """Return the states of a layer, for all slots."""
        return self._layers.get(index, {})

    def write(self, index: int, key: StateKey, slots: slice | Tensor, state: Tensor) -> None:
        """Write states, [sequences, ...], to their slots, unless they are already
        there.
        """
        layer = self._layers.setdefault(index, {})
        if key not in layer:
            layer[key] = allocate_slots(self._num_slots, state)
        # The library has updated a view of the pool in place, so there is nothing to
        # copy.
        if isinstance(slots, slice) and layer[key][slots].data_ptr() == state.data_ptr():
            return
        layer[key][slots] = state


class StateGroup(Struct, frozen=True, eq=False):
    """Rows of a step that a recurrent layer computes in one call.

    rows: their numbers in the step, by sequence and then by position.
    slots: slots of their sequences; a slice if they are consecutive.
    num_sequences: number of sequences, which have equally many rows.
    continues: whether the sequences have state from earlier steps.
    """

    rows: Tensor
    slots: slice | Tensor
    num_sequences: int
    continues: bool


class _ActiveStep(Struct, frozen=True, eq=False):
    """The step that is being computed.

    order: for each row of the step, its index in the concatenated rows of all groups.
    """

    groups: list[StateGroup]
    order: Tensor
    pool: StatePool


class _Layer(Struct, frozen=True, eq=False):
    """A recurrent layer of the library.

    linears: its linear layers.
    index: its index in the library's cache.
    parameters: names of the parameters of `forward`.
    cache_name: the parameter for the cache.
    """

    forward: Callable[..., Any]
    linears: tuple[Network, ...]
    index: int
    parameters: list[str]
    cache_name: str


class RecurrentLayers:
    """The recurrent layers of a network. Their computation is changed only during
    `activate`.

    by_token: whether to compute chunks that continue a sequence token by token, for
        layers that reset their state at every longer chunk.
    ignores_state: whether `observe` found a layer whose longer chunks do not depend on
        its state.
    row_linears: their linear layers that `observe` found to be called once for all rows
        of a call.
    """

    def __init__(self, network: Network) -> None:
        self._device = network.device
        self._step: _ActiveStep | None = None
        self._rows: Tensor | None = None
        self._layers: list[_Layer] = []
        self._num_rows: dict[_Layer, list[int]] | None = None
        self._num_linear_rows: dict[Network, list[int]] = {}
        self.by_token = False
        self.ignores_state = False
        self.row_linears: frozenset[Network] = frozenset()
        for module in network.modules():
            cache_name = _find_cache_name(module)
            if cache_name is not None:
                names = list(inspect.signature(module.forward).parameters)
                linears = tuple(
                    part for part in module.modules() if isinstance(part, torch.nn.Linear)
                )
                layer = _Layer(module.forward, linears, module.layer_idx, names, cache_name)
                self._layers.append(layer)
                module.forward = partial(self._compute, layer)
        caches: Any = (
            library.DynamicCache(config=network.config.get_text_config()).layers
            if self._layers
            else None
        )
        self._num_states: dict[int, int] = {
            layer.index: caches[layer.index].number_of_states for layer in self._layers
        }

    @property
    def has_state(self) -> bool:
        return bool(self._layers)

    @property
    def rows(self) -> Tensor | None:
        """Rows of the step that the current call of a recurrent layer computes; None
        outside of such calls.
        """
        return self._rows

    def contains(self, linear: Network) -> bool:
        """Whether a linear layer is part of a recurrent one."""
        return any(linear is part for layer in self._layers for part in layer.linears)

    @contextmanager
    def observe(self) -> Generator[None]:
        """Observe calls until the end of the block, and set `ignores_state` and
        `row_linears`.
        """
        self.ignores_state = False
        num_rows = self._num_rows = {layer: list[int]() for layer in self._layers}
        self._num_linear_rows = {linear: [] for layer in self._layers for linear in layer.linears}
        hooks = [linear.register_forward_hook(self._count_rows) for linear in self._num_linear_rows]
        try:
            yield
        finally:
            self._num_rows = None
            for hook in hooks:
                hook.remove()
        self.row_linears = frozenset(
            linear
            for layer in self._layers
            for linear in layer.linears
            if self._num_linear_rows[linear] == num_rows[layer]
        )

    def _count_rows(self, linear: Network, inputs: tuple[Tensor], output: Tensor) -> None:
        del output
        if self._rows is not None:
            self._num_linear_rows[linear].append(inputs[0].shape[:-1].numel())

    @contextmanager
    def activate(self, chunks: Sequence[Chunk], pool: StatePool) -> Generator[None]:
        """Compute the layers with the states of a step's chunks until the end of the
        block.
        """
        if self.has_state:
            groups = self._build_groups(chunks)
            self._step = _ActiveStep(
                groups, torch.cat([group.rows for group in groups]).argsort(), pool
            )
        try:
            yield
        finally:
            self._step = self._rows = None

    def _build_groups(self, chunks: Sequence[Chunk]) -> list[StateGroup]:
        """Group the rows. Sequences with one new token form one group, in the order of
        their slots.
        """
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
            # Adjacent slots are one slice of the pool, whose states are updated in
            # place instead of copied twice.
            slots, rows = zip(*sorted(decoding), strict=True)
            groups.append(self._build_group(rows, slots, continues=True))
        return groups

    def _build_group(
        self, rows: Sequence[int], slots: Sequence[int], *, continues: bool
    ) -> StateGroup:
        first = slots[0]
        end = slots[-1] + 1
        is_consecutive = end - first == len(slots)
        return StateGroup(
            torch.tensor(rows, device=self._device),
            slice(first, end) if is_consecutive else torch.tensor(slots, device=self._device),
            len(slots),
            continues,
        )

    def _compute(self, layer: _Layer, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as the library's layer
        """Compute one layer on tensors of [1, rows, ...]."""
        step = self._step
        if step is None:
            return layer.forward(*args, **options)
        named_args = {**dict(zip(layer.parameters, args, strict=False)), **options}
        # The step is only for attention, and masks are for padded batches.
        arguments: dict[str, Any] = {
            name: None if name.endswith("mask") else value
            for name, value in named_args.items()
            if name != "step"
        }
        num_rows = named_args["hidden_states"].shape[1]
        # Tensors of [1, rows, ...]; other arguments are passed on as they are.
        row_tensors: dict[str, Tensor] = {
            name: value[0]
            for name, value in arguments.items()
            if isinstance(value, torch.Tensor) and tuple(value.shape[:2]) == (1, num_rows)
        }
        parts: list[Any] = []
        for group in step.groups:
            # The group's rows of each tensor, [sequences, tokens, ...].
            group_args = {
                name: tensor[group.rows].unflatten(0, (group.num_sequences, -1))
                for name, tensor in row_tensors.items()
            }
            inputs = {**arguments, **group_args}
            is_chunk = group.continues and len(group.rows) > group.num_sequences
            without_state = (
                self._compute_without_state(layer, inputs, group, step.pool) if is_chunk else []
            )
            if self._num_rows is not None:
                self._num_rows[layer].append(len(group.rows))
            states = self._load(layer.index, group, step.pool)
            # The hooks of LoRA layers read which rows of the step this call computes.
            self._rows = group.rows
            parts.append(_call(layer, inputs, states))
            self._rows = None
            self.ignores_state |= any(_is_equal(part, parts[-1]) for part in without_state)
            updated = [(kind, *item) for kind in _KINDS for item in getattr(states, kind).items()]
            for kind, number, state in updated:
                if state is not None:
                    step.pool.write(layer.index, (kind, number), group.slots, state)
        if isinstance(parts[0], tuple):
            return tuple(_join(column, step.order) for column in zip(*parts, strict=True))
        return _join(parts, step.order)

    def _compute_without_state(
        self, layer: _Layer, inputs: dict[str, Any], group: StateGroup, pool: StatePool
    ) -> list[Any]:
        """Compute a chunk once for each kind of state with wrong values in it. Empty
        unless the layer is observed.
        """
        results: list[Any] = []
        for kind in _KINDS if self._num_rows is not None else ():
            states = self._load(layer.index, group, pool)
            for name in _KINDS:
                loaded = {
                    number: state
                    for number, state in getattr(states, name).items()
                    if state is not None
                }
                # 100 is far from values of a state: a layer that reads it cannot return
                # an equal result by chance.
                copies = {
                    n: torch.full_like(s, 100.0) if name == kind else s.clone()
                    for n, s in loaded.items()
                }
                getattr(states, name).update(copies)
                if name == kind and copies:
                    results.append(states)
        return [_call(layer, inputs, states) for states in results]

    def _load(self, index: int, group: StateGroup, pool: StatePool) -> Any:  # noqa: ANN401 - untyped
        """Build a layer of the library's cache with the states of a group.

        States of consecutive slots are views of the pool, which the library updates in
        place.
        """
        layer = _CACHES.LinearAttentionLayer(self._num_states[index])
        if group.continues:
            for (kind, number), state in pool.get_layer(index).items():
                getattr(layer, kind)[number] = state[group.slots]
                getattr(layer, f"is_{kind}_initialized")[number] = True
                layer.has_previous_state[number] = True
                if kind == "conv_states":
                    layer.conv_kernel_size[number] = state.shape[-1]
        return layer


def _call(layer: _Layer, inputs: dict[str, Any], states: Any) -> Any:  # noqa: ANN401 - untyped
    """Call a layer of the library with a cache of these states."""
    # The layer looks up its state by its own index, so the entries before it can be
    # None.
    caches = library.Cache(layers=[None] * layer.index + [states])
    return layer.forward(**{**inputs, layer.cache_name: caches})


def _is_equal(first: Any, second: Any) -> bool:  # noqa: ANN401 - tensors or tuples of them
    """Whether two results of a layer are equal to the last bit."""
    if isinstance(first, tuple):
        return all(map(torch.equal, cast("tuple[Tensor, ...]", first), second))
    return torch.equal(first, second)


def _join(parts: Sequence[Tensor], order: Tensor) -> Tensor:
    """Join tensors of [sequences, tokens, ...] into one of [1, rows, ...]."""
    return torch.cat([part.flatten(0, 1) for part in parts])[order][None]


def _find_cache_name(module: Network) -> str | None:
    """Find the name of a recurrent layer's parameter for the library's cache; None for
    other modules.
    """
    kind = cast("type[Any]", type(module))
    functions = [
        inspect.unwrap(function)
        for base in inspect.getmro(kind)
        for function in vars(base).values()
        if inspect.isfunction(function)
    ]
    if not any(_UPDATES.intersection(function.__code__.co_names) for function in functions):
        return None
    parameters = inspect.signature(kind.forward).parameters
    return next(
        (name for name in CACHE_NAMES if name in parameters and "hidden_states" in parameters), None
    )
