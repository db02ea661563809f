"""The RoPE modules of a network with longrope's short and long factors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

from ...core.errors import EngineError
from ..batching import Chunk
from .backend import Network, Tensor, torch

_ROPE_TYPE = "longrope"


def find_rope_parameters(holder: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - untyped
    """Find the RoPE parameters of a configuration: those of all layers, and those of
    each type of layer.
    """
    parameters: dict[str, Any] | None = getattr(holder, "rope_parameters", None)
    if isinstance(parameters, dict):
        yield parameters
        yield from (value for value in parameters.values() if isinstance(value, dict))


class LongRope:
    """The RoPE modules of a network with longrope's short and long factors. Other
    modules are unchanged.
    """

    def __init__(self, network: Network) -> None:
        self._config = network.config.get_text_config()
        self._short_rows: Tensor | None = None
        self._long_rows: Tensor | None = None
        for module in network.modules():
            rope_types = getattr(module, "rope_type", None)
            if rope_types == _ROPE_TYPE or (
                isinstance(rope_types, dict) and _ROPE_TYPE in rope_types.values()
            ):
                module.forward = partial(self._compute, module.forward)

    @property
    def window(self) -> int | None:
        """Length in tokens of the longest sequence with short factors; None for a model
        without longrope.

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
        self._short_rows = torch.tensor(rows[False])
        self._long_rows = torch.tensor(rows[True])

    def deactivate(self) -> None:
        """Leave the choice to the library, which computes one sequence at a time."""
        self._short_rows = self._long_rows = None

    def _compute(self, forward: Any, states: Tensor, position_ids: Tensor, **options: Any) -> Any:  # noqa: ANN401 - untyped
        """Compute the embeddings of each row with its sequence's factors: [1, rows,
        width], or a tuple of them.
        """
        if self._short_rows is None or self._long_rows is None:
            return forward(states, position_ids, **options)
        parts: list[tuple[Tensor, Any]] = []
        if len(self._short_rows):
            parts.append(
                (self._short_rows, forward(states, position_ids[..., self._short_rows], **options))
            )
        if len(self._long_rows):
            positions = position_ids[..., self._long_rows]
            # A position beyond the window makes the library choose long factors; its
            # row is dropped.
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
