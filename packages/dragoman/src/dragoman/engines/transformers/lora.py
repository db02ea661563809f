"""LoRA adapters for the rows of a step: each row gets the output of its own adapter, or
of none.

Adapters are read in PEFT's format (adapter_config.json, adapter_model.safetensors)
without running PEFT. For an input row x, a layer returns W x + scale * B A x (Hu et al.
2021, https://arxiv.org/abs/2106.09685).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...core.errors import RequestError
from ..batching import Chunk
from .backend import Network, Tensor, safetensors, torch
from .recurrent import RecurrentLayers

_PREFIX = "base_model.model."
_NAME = re.compile(r"(?P<layer>.+)\.lora_(?P<half>[AB])\.weight")
"""Name of one matrix in adapter_model.safetensors: the layer's name, and `A` or `B`."""
_PLAIN_NAME = re.compile(r"[\w.]+")
"""A layer's name in a pattern of adapter_config.json, without regular expression
syntax.
"""


class _Config(Struct, frozen=True):
    """The fields of adapter_config.json that affect the computation. Patterns match the
    end of a layer's name.
    """

    peft_type: str
    r: int
    lora_alpha: float
    use_rslora: bool = False
    use_dora: bool = False
    alpha_pattern: dict[str, float] = {}
    rank_pattern: dict[str, int] = {}

    def compute_scale(self, layer: str) -> float:
        alpha = _find_by_layer(layer, self.alpha_pattern, self.lora_alpha)
        rank = _find_by_layer(layer, self.rank_pattern, self.r)
        return alpha / (sqrt(rank) if self.use_rslora else rank)


class LoraPair(Struct, frozen=True):
    """The two matrices of one layer.

    down: [input width, rank].
    up: [rank, output width], scaled.
    """

    down: Tensor
    up: Tensor


LoraWeights = Mapping[str, LoraPair]
"""Weights of one adapter, by the layer's name in the network."""


class LoraLayers:
    """The adapted layers of one network. A layer without any adapter has no overhead.

    recurrent: layers that compute the rows of a step in several calls.
    """

    def __init__(self, network: Network, recurrent: RecurrentLayers) -> None:
        self._network = network
        self._recurrent = recurrent
        self._hooked: set[str] = set()
        self._active: list[tuple[LoraWeights, Tensor]] = []

    def read(self, directory: Path) -> LoraWeights:
        """Read an adapter. Raises RequestError unless it fits this network and is plain
        LoRA of linear layers.
        """
        config = _read_config(directory)
        try:
            tensors: dict[str, Tensor] = safetensors.torch.load_file(
                directory / "adapter_model.safetensors"
            )
        except (OSError, safetensors.SafetensorError) as error:
            raise _build_error(
                directory, f"adapter_model.safetensors cannot be read: {error}"
            ) from None
        halves: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            match = _NAME.fullmatch(name.removeprefix(_PREFIX))
            if match is None:
                raise _build_error(
                    directory,
                    f"it contains `{name}`; only lora_A and lora_B of linear layers are supported",
                )
            halves.setdefault(match["layer"], {})[match["half"]] = tensor
        weights: dict[str, LoraPair] = {}
        for layer, pair in halves.items():
            try:
                module = self._network.get_submodule(layer)
            except AttributeError:
                raise _build_error(directory, f"this model has no layer `{layer}`") from None
            # Image features are shared by all requests, so an adapter cannot change the
            # vision encoder.
            is_in_decoder = any(
                module is submodule for submodule in self._network.get_decoder().modules()
            )
            if not is_in_decoder or not isinstance(module, torch.nn.Linear):
                raise _build_error(
                    directory, f"`{layer}` is not a linear layer of the language model"
                )
            if self._recurrent.contains(module) and module not in self._recurrent.row_linears:
                raise _build_error(
                    directory,
                    f"the recurrent layer of `{layer}` does not compute it token by token",
                )
            if pair.keys() != {"A", "B"}:
                raise _build_error(directory, f"`{layer}` has only one half of its LoRA")
            a = pair["A"]
            b = pair["B"]
            width_in = module.in_features
            width_out = module.out_features
            if a.shape[1:] != (width_in,) or b.shape != (width_out, a.shape[0]):
                shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
                raise _build_error(
                    directory, f"`{layer}` maps {width_in} to {width_out}, not {shapes}"
                )
            tensor_options = {"device": module.weight.device, "dtype": self._network.dtype}
            # Scaled once here, in float32 and with one rounding, instead of in every
            # step.
            up = (b.T.float() * config.compute_scale(layer)).to(**tensor_options).contiguous()
            weights[layer] = LoraPair(a.T.to(**tensor_options).contiguous(), up)
        return weights

    def activate(self, chunks: Sequence[Chunk]) -> None:
        """Activate the adapters of a step's chunks, whose rows are consecutive. Called
        on the worker thread.
        """
        rows: dict[int, tuple[LoraWeights, list[int]]] = {}
        start = 0
        for chunk in chunks:
            adapter = chunk.sequence.adapter
            if adapter is not None:
                # Untyped in the registry; it is always the result of `read`.
                weights: Any = adapter.weights
                rows.setdefault(adapter.number, (weights, []))[1].extend(
                    range(start, start + chunk.num_tokens)
                )
            start += chunk.num_tokens
        self._active = [
            (lora, torch.tensor(indices, device=self._network.device))
            for lora, indices in rows.values()
        ]
        for lora, _ in self._active:
            for layer in lora.keys() - self._hooked:
                self._network.get_submodule(layer).register_forward_hook(partial(self._add, layer))
                # Hooks are never removed: without an active adapter for its layer a
                # hook returns the output unchanged.
                self._hooked.add(layer)

    def _add(self, layer: str, module: Network, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        """Add the adapters' output to a layer's. Returns a copy, since the layer may
        reuse its output.

        inputs, output: [1, rows, width], or [sequences, tokens, width] in a call of a
            recurrent layer.
        """
        del module
        pairs = [(lora[layer], rows) for lora, rows in self._active if layer in lora]
        if not pairs:
            return output
        output = output.clone(memory_format=torch.contiguous_format)
        flat_inputs = inputs[0].flatten(0, -2)
        flat_output = output.flatten(0, -2)
        call_rows = self._recurrent.rows
        for pair, step_rows in pairs:
            rows = (
                step_rows if call_rows is None else torch.isin(call_rows, step_rows).nonzero()[:, 0]
            )
            flat_output.index_add_(0, rows, flat_inputs[rows] @ pair.down @ pair.up)
        return output


def _read_config(directory: Path) -> _Config:
    path = directory / "adapter_config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
    except OSError as error:
        raise _build_error(directory, f"{path.name} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _build_error(directory, f"{path.name}: {error}") from None
    if config.peft_type != "LORA" or config.use_dora:
        kind = "DoRA" if config.use_dora else config.peft_type
        raise _build_error(directory, f"it is an adapter of type {kind}; only LORA is supported")
    if min(config.r, *config.rank_pattern.values(), config.r) < 1:
        raise _build_error(directory, "its rank `r` is less than 1")
    wildcards = [
        name
        for name in (*config.alpha_pattern, *config.rank_pattern)
        if not _PLAIN_NAME.fullmatch(name)
    ]
    if wildcards:
        raise _build_error(
            directory,
            f"`{wildcards[0]}` is a pattern with wildcards; only names of layers are supported",
        )
    return config


def _find_by_layer(layer: str, pattern: Mapping[str, float], default: float) -> float:
    """Find the value for the first pattern that the layer's name ends with, as PEFT
    does for names without wildcards.
    """
    matches = (
        number for name, number in pattern.items() if layer == name or layer.endswith("." + name)
    )
    return next(matches, default)


def _build_error(directory: Path, reason: str) -> RequestError:
    return RequestError(f"The adapter in {directory} cannot be used: {reason}.", param="lora_path")
