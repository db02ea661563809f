"""Packed weights of linear layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from ...core.errors import EngineError
from .backend import Network, Tensor, library, torch

_ROWS = 32
"""Number of rows for which the layout is chosen. It is fast for other numbers too; one
for a single row is not.
"""


class _PackedWeight:
    """The weight of one or more linear layers.

    keeps_plain: whether other modules need the plain form, as a tied input embedding
        does.
    packed: None while the model has no weights.
    """

    def __init__(self, parameter: Tensor, *, keeps_plain: bool) -> None:
        self.parameter = parameter
        self.keeps_plain = keeps_plain
        self.packed: Tensor | None = None

    def set(self, plain: Tensor, packed: Tensor | None) -> None:
        """Set both forms of a value. packed: None if the weight is unpacked or
        discarded.
        """
        self.packed = packed
        self.parameter.data = plain if self.keeps_plain or packed is None else plain.new_empty(0)


class PackedLinears:
    """The linear layers of a network's language model, which can be packed and
    unpacked.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._layers: list[Network] = []
        self._weights: dict[int, _PackedWeight] = {}
        if (
            network.device.type == "cpu"
            and torch.backends.mkldnn.is_available()
            and (
                network.dtype == torch.float32
                or (
                    network.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
                )
            )
        ):
            modules = [*network.get_decoder().modules(), network.get_output_embeddings()]
            # Subclasses compute something else, quantized weights for example.
            self._layers = [
                module for module in dict.fromkeys(modules) if type(module) is torch.nn.Linear
            ]
        layers = set(self._layers)
        self._others = {
            id(parameter)
            for module in network.modules()
            if module not in layers
            for parameter in module.parameters(recurse=False)
        }

    def pack(self) -> None:
        """Pack the weights of all layers, one by one."""
        for layer in self._layers:
            key = id(layer.weight)
            if key not in self._weights:
                weight = _PackedWeight(layer.weight, keeps_plain=key in self._others)
                # Frees the plain form before the next layer is packed: the whole model
                # is never in memory twice.
                weight.set(layer.weight.data, _pack(layer.weight.data))
                self._weights[key] = weight
            layer.forward = partial(_compute, layer, self._weights[key])
        # The other tensors are views of the mapped file, each of which would keep all
        # of it in memory. They are copied, unless they are the larger part of the
        # model.
        others = [*self._network.parameters(), *self._network.buffers()]
        num_packed = sum(
            weight.packed.numel() for weight in self._weights.values() if weight.packed is not None
        )
        if sum(tensor.numel() for tensor in others) < num_packed:
            for tensor in others:
                tensor.data = tensor.data.clone()

    def unpack(self) -> None:
        """Restore the layers' plain weights."""
        for weight in self._weights.values():
            if weight.packed is not None:
                weight.set(weight.packed.to_dense(), None)
        for layer in self._layers if self._weights else ():
            del layer.forward
        self._weights.clear()

    def stage(self, parameter: Tensor, value: Tensor) -> Callable[[], None]:
        """Prepare a new value of a parameter. Returns a function that sets it and
        cannot fail.

        value: plain, on the parameter's device; an empty one frees the memory.
        """
        weight = self._weights.get(id(parameter))
        if weight is None:
            return lambda: setattr(parameter, "data", value)
        return partial(weight.set, value, _pack(value) if value.numel() else None)


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)


def _compute(layer: Network, weight: _PackedWeight, states: Tensor) -> Tensor:
    """Compute the layer, with the signature of its `forward`."""
    return torch.ops.mkldnn._linear_pointwise(states, weight.packed, layer.bias, "none", [], "")


def build_quantization_args(
    config: Any,  # noqa: ANN401 - untyped
    quantization: str | None,
    dtype: str,
    device: str,
) -> dict[str, Any]:
    """Build the arguments of `from_pretrained`; empty for a model without quantization.

    quantization: `bitsandbytes` is 4-bit NF4, as in vLLM; `torchao` is 8-bit, weights
        only.

    Raises: EngineError for an impossible combination, ImportError if a library is
        missing.
    """
    if quantization is None:
        return _build_device_map(device) if is_quantized(config) else {}
    if declared := find_quantization(config):
        method = declared.get("quant_method")
        raise EngineError(f"the weights are already quantized ({method}); omit --quantization")
    match quantization:
        case "bitsandbytes":
            # bitsandbytes computes in float32 by default.
            compute_dtype = (
                config.get_text_config().dtype if dtype == "auto" else getattr(torch, dtype)
            )
            quantization_config = library.BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_compute_dtype=compute_dtype or torch.float32,
            )
        case "torchao":
            quantization_config = library.TorchAoConfig(
                import_module("torchao.quantization").Int8WeightOnlyConfig()
            )
        case _:
            raise EngineError(f"{quantization!r} is not a quantization method of this engine")
    return {"quantization_config": quantization_config, **_build_device_map(device)}


def is_quantized(config: Any) -> bool:  # noqa: ANN401 - untyped
    return find_quantization(config) is not None


def find_quantization(config: Any) -> Any:  # noqa: ANN401 - untyped
    """Find the quantization in a configuration or in that of its text part; None for a
    model without one. It is a dict before the model is loaded.
    """
    parts = (config, config.get_text_config())
    declared = (getattr(part, "quantization_config", None) for part in parts)
    return next((one for one in declared if one is not None), None)


def _build_device_map(device: str) -> dict[str, Any]:
    """Build a device map: quantized weights are loaded directly onto their device.
    Needs accelerate.
    """
    return {"device_map": {"": device}}
