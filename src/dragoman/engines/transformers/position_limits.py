"""Limits in a model that change its computation from some position on: windows, chunks and scales.

A trial of a few tokens never reaches the real ones, so they are reduced while it runs, for both sides of it.

RoPE of type `longrope` (Ding et al. 2024, https://arxiv.org/abs/2402.13753), with one factor per sequence.

Such a model has two sets of frequencies: short factors for sequences within the window of its original training, and
long ones beyond it. The library chooses by the largest position of a forward, which here is a step of many sequences.
A sequence that outgrows the window is computed again with long factors, as in the library's `generate` for Phi-3.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from ...core.errors import EngineError
from ..batching import Chunk
from .backend import Network, Tensor, torch

_ATTRIBUTES = {
    "sliding_window": 24,
    "sliding_window_size": 24,
    "attention_chunk_size": 24,
    "floor_scale": 16,
    "original_max_position_embeddings": 40,
}
"""Attributes of configurations and modules, and their values in a trial."""
_ROPE_WINDOW = "original_max_position_embeddings"
_LONG_FREQUENCIES = "long_inv_freq"
"""Ends the names under which the library's RoPE modules keep what they computed from the window."""


@contextmanager
def reduce_limits(network: Network) -> Generator[None]:
    """Reduce the limits of a network until the end of the block."""
    holders = list({id(holder): holder for holder in _find_holders(network)}.values())
    changed: list[tuple[Any, str, int]] = []
    for name, value in _ATTRIBUTES.items():
        limits = [(holder, getattr(holder, name, None)) for holder in holders]
        large = [(holder, limit) for holder, limit in limits if isinstance(limit, int) and limit > value]
        # Some modules add 1 to the window of the configuration: differences stay.
        reduction = min((limit for _, limit in large), default=value) - value
        for holder, limit in large:
            setattr(holder, name, limit - reduction)
            changed.append((holder, name, limit))
    windows = [
        (parameters, parameters[_ROPE_WINDOW])
        for holder in holders
        for parameters in find_rope_parameters(holder)
        if parameters.get(_ROPE_WINDOW, 0) > _ATTRIBUTES[_ROPE_WINDOW]
    ]
    for parameters, _ in windows:
        parameters[_ROPE_WINDOW] = _ATTRIBUTES[_ROPE_WINDOW]
    _forget_long_frequencies(network)
    try:
        yield
    finally:
        for holder, name, limit in changed:
            setattr(holder, name, limit)
        for parameters, window in windows:
            parameters[_ROPE_WINDOW] = window
        _forget_long_frequencies(network)


def _forget_long_frequencies(network: Network) -> None:
    for module in network.modules():
        names = [str(name) for name in cast("dict[str, Any]", vars(module))]
        for name in (name for name in names if name.endswith(_LONG_FREQUENCIES)):
            delattr(module, name)


def _find_holders(network: Network) -> Iterator[Any]:
    yield network.config
    yield network.config.get_text_config()
    for module in network.modules():
        yield module
        if getattr(module, "config", None) is not None:
            yield module.config


def find_rope_parameters(holder: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - untyped
    """Find the RoPE parameters of a configuration: of all layers, and of each type of layer."""
    parameters: dict[str, Any] | None = getattr(holder, "rope_parameters", None)
    if isinstance(parameters, dict):
        yield parameters
        yield from (value for value in parameters.values() if isinstance(value, dict))


_ROPE_TYPE = "longrope"


class LongRope:
    """The longrope modules of a network. Others are left alone."""

    def __init__(self, network: Network) -> None:
        self._config = network.config.get_text_config()
        self._short_rows: Tensor | None = None
        self._long_rows: Tensor | None = None
        for module in network.modules():
            rope_types = getattr(module, "rope_type", None)
            if rope_types == _ROPE_TYPE or (isinstance(rope_types, dict) and _ROPE_TYPE in rope_types.values()):
                module.forward = partial(self._compute, module.forward)

    @property
    def window(self) -> int | None:
        """Tokens of the longest sequence with short factors; None for a model without longrope.

        Raises: EngineError if layers differ.
        """
        windows: set[int] = {
            parameters["original_max_position_embeddings"]
            for parameters in find_rope_parameters(self._config)
            if parameters.get("rope_type") == _ROPE_TYPE
        }
        if len(windows) > 1:
            raise EngineError(f"its layers have different windows of longrope: {sorted(windows)}")
        return windows.pop() if windows else None

    def activate(self, chunks: Sequence[Chunk]) -> None:
        """Choose the factors of a step's rows. Called on the worker thread."""
        rows: dict[bool, list[int]] = {False: [], True: []}
        start = 0
        for chunk in chunks:
            rows[chunk.sequence.is_long].extend(range(start, start + chunk.num_tokens))
            start += chunk.num_tokens
        self._short_rows, self._long_rows = torch.tensor(rows[False]), torch.tensor(rows[True])

    def deactivate(self) -> None:
        """Leave the choice to the library, which computes one sequence at a time."""
        self._short_rows = self._long_rows = None

    def _compute(self, forward: Any, states: Tensor, position_ids: Tensor, **options: Any) -> Any:  # noqa: ANN401 - untyped
        """Compute the embeddings of each row with its own factors: [1, rows, width], or a tuple of them."""
        if self._short_rows is None or self._long_rows is None:
            return forward(states, position_ids, **options)
        parts: list[tuple[Tensor, Any]] = []
        if len(self._short_rows):
            parts.append((self._short_rows, forward(states, position_ids[..., self._short_rows], **options)))
        if len(self._long_rows):
            positions = position_ids[..., self._long_rows]
            # A position beyond the window makes the library choose long factors; its row is dropped.
            beyond = torch.full_like(positions[..., :1], self.window)
            embeddings = forward(states, torch.cat([positions, beyond], dim=-1), **options)
            parts.append((self._long_rows, _drop_last(embeddings)))
        order = torch.cat([rows for rows, _ in parts]).argsort().to(position_ids.device)
        if isinstance(parts[0][1], tuple):
            columns = zip(*(embeddings for _, embeddings in parts), strict=True)
            return tuple(torch.cat(column, dim=-2)[..., order, :] for column in columns)
        return torch.cat([embeddings for _, embeddings in parts], dim=-2)[..., order, :]


def _drop_last(embeddings: Any) -> Any:  # noqa: ANN401 - a tensor or a tuple of them
    """Drop the last row."""
    if type(embeddings) is tuple:
        return tuple(map(_drop_last, cast("tuple[Tensor, ...]", embeddings)))
    return embeddings[..., :-1, :]
