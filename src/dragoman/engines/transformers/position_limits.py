"""Limits in a model that change its computation from some position on: windows, chunks and scales.

A trial of a few tokens never reaches the real ones, so they are reduced while it runs, for both sides of it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

from .backend import Network

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
