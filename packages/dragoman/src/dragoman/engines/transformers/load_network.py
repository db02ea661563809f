"""Loads a network of the transformers library onto its device."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...core.errors import EngineError
from ..batching.paging_self_check import find_reason
from .backend import Network, library, torch
from .packed_linears import build_quantization_args, find_quantization
from .vision import is_vision_model

log = logging.getLogger(__name__)

_MODELOPT_FILE = "hf_quant_config.json"
_SCALE = re.compile(r"(?<![kqv]_)(?<!prob_)(scale|zero)")
"""The last part of the name of a scale or zero point of weights. Those of keys, queries
and attention weights are for a quantized KV cache, which this engine does not have.
"""


class _ModelOptQuantization(Struct):
    quant_algo: str | None = None


class _ModelOptFile(Struct):
    quantization: _ModelOptQuantization


class TransformersOptions(Struct, frozen=True):
    """Options of a transformers model.

    dtype: `auto` is the checkpoint's; float32 on a CPU without bfloat16.
    device: `auto` is an accelerator if there is one.
    trust_remote_code: whether to run Python code from the model's directory.
    quantization: method to quantize weights while loading, see
        `packed_linears.build_quantization_args`.
    attention_backend: see `paged_attention.select_kernels`.
    threads: number of CPU threads; None is all cores that the process may use.
    sampling_device: `host`, `model` (its device), or `auto`: the model's device if that
        is an accelerator.
    """

    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    quantization: str | None = None
    attention_backend: str = "auto"
    threads: int | None = None
    sampling_device: str = "auto"


def load_network(
    directory: Path,
    options: TransformersOptions,
    auto_class: Any = None,  # noqa: ANN401 - untyped
    *,
    unread_module: str | None = None,
) -> Network:
    """Load a model in evaluation mode on its device.

    auto_class: of the library; by default that of a model that generates text.
    unread_module: a module whose output nobody reads, so that its tensors may be missing.

    Raises: EngineError for an unsupported model.
    """
    library.utils.logging.disable_progress_bar()
    if not list(directory.glob("*.safetensors")):
        raise EngineError(
            f"{directory} contains no safetensors file; other formats are not supported, because "
            f"they may run code"
        )
    device = options.device
    if device == "auto":
        is_mps = torch.backends.mps.is_available()
        device = "cuda" if torch.cuda.is_available() else "mps" if is_mps else "cpu"
    else:
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, ValueError) as error:
            raise EngineError(
                f"the device {device!r} cannot be used: {str(error).splitlines()[0]}"
            ) from None
    local: dict[str, Any] = {
        "local_files_only": True,
        "trust_remote_code": options.trust_remote_code,
    }
    try:
        config = library.AutoConfig.from_pretrained(directory, **local)
        _check_quantization(directory, config)
        quantization_args = build_quantization_args(
            config, options.quantization, options.dtype, device
        )
        if auto_class is None:
            auto_class = (
                library.AutoModelForImageTextToText
                if is_vision_model(config)
                else library.AutoModelForCausalLM
            )
        arguments = {
            "config": config,
            "dtype": options.dtype,
            "use_safetensors": True,
            "output_loading_info": True,
            # `_check_tensors` reports them by name.
            "ignore_mismatched_sizes": True,
            **quantization_args,
            **local,
        }
        try:
            network, loading_info = auto_class.from_pretrained(
                directory, attn_implementation="sdpa", **arguments
            )
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            # SDPA lacks features of some models, such as sinks; paged attention has its
            # own code for them.
            network, loading_info = auto_class.from_pretrained(
                directory, attn_implementation="eager", **arguments
            )
    except EngineError:
        raise
    except Exception as error:  # the library's code may raise any exception
        raise EngineError(f"transformers cannot load {directory}: {find_reason(error)}") from error
    _check_tensors(directory, network, loading_info, unread_module)
    # A quantized network cannot be moved; it was loaded onto its device.
    return network.eval() if quantization_args else network.to(device).eval()


def _check_quantization(directory: Path, config: Any) -> None:  # noqa: ANN401 - untyped
    """Raise EngineError if the weights are quantized in a form that the library does
    not know, since it would then compute with the stored numbers as if they were the
    weights.
    """
    declared = find_quantization(config)
    if declared is None:
        method = _read_modelopt_method(directory / _MODELOPT_FILE)
        source = _MODELOPT_FILE
    elif library.quantizers.AutoHfQuantizer.supports_quant_method(declared):
        return
    else:
        method = str(declared["quant_method"])
        source = "config.json"
    if method is not None:
        raise EngineError(
            f"{directory}: the quantization {method!r} of {source} is not supported by "
            f"transformers; use the unquantized model, or another engine"
        )


def _read_modelopt_method(path: Path) -> str | None:
    """Read the method by which NVIDIA ModelOpt quantized the weights; None if they are
    not quantized. Raises EngineError.
    """
    if not path.exists():
        return None
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_ModelOptFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"{path}: {error}") from error
    return file.quantization.quant_algo


def _check_tensors(
    directory: Path,
    network: Network,
    info: Mapping[str, Collection[Any]],
    unread_module: str | None,
) -> None:
    """Raise EngineError if the checkpoint lacks tensors of the network, which the
    library fills with random numbers.

    info: the library's loading info.
    """
    kind = type(network).__name__
    next_step = "download the model again, or use the config.json that belongs to it"
    for name, found, expected in sorted(info["mismatched_keys"]):
        raise EngineError(
            f"{directory}: {name} has shape {tuple(found)}, but config.json says "
            f"{tuple(expected)}; {next_step}"
        )
    missing = sorted(
        name for name in info["missing_keys"] if name.partition(".")[0] != unread_module
    )
    if missing:
        raise EngineError(
            f"{directory} lacks {len(missing)} tensors of {kind}, such as {missing[0]}; {next_step}"
        )
    unused = sorted(info["unexpected_keys"])
    for name in unused:
        # A module of which nothing is used is one that the model does not have, such as
        # a layer that predicts further tokens.
        module, _, tensor = name.rpartition(".")
        if _SCALE.search(tensor) and f"{module}.weight" not in info["unexpected_keys"]:
            raise EngineError(
                f"{directory}: {kind} would ignore {name}, so that the weights beside it would be "
                f"wrong; their quantization is not supported"
            )
    if unused:
        log.warning(
            "%s: %s does not use %d of the tensors, such as %s",
            directory,
            kind,
            len(unused),
            unused[0],
        )
