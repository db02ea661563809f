"""The settings of the engine `transformers` beside those of the server."""

from typing import Annotated, Literal

from msgspec import Struct

from ....settings.option import Option


class TransformersSettings(Struct, frozen=True, kw_only=True):
    """Settings of the engine `transformers`."""

    device: Annotated[
        str,
        Option(
            "Model",
            "Device for torch: `cpu`, `cuda`, `cuda:1` or `mps`; `auto` uses an accelerator if "
            "there is one.",
        ),
    ] = "auto"
    quantization: Annotated[
        Literal["bitsandbytes", "torchao"] | None,
        Option(
            "Model",
            "Quantize the weights of a transformers model at load time: 4-bit NF4 "
            "(`bitsandbytes`) or 8-bit "
            "(`torchao`). Pre-quantized checkpoints need no flag.",
        ),
    ] = None
    attention_backend: Annotated[
        Literal["auto", "flash", "efficient", "cudnn", "math"],
        Option(
            "Model",
            "Torch attention kernel for transformers models; `auto` lets torch choose at each "
            "step. Loading "
            "fails if the kernel does not support the model or the device.",
        ),
    ] = "auto"
    sampling_device: Annotated[
        Literal["auto", "host", "model"],
        Option(
            "Model",
            "Where tokens of transformers models are sampled: on the `host`, or on the device of "
            "the `model`; `auto` "
            "uses the model's device if that is an accelerator.",
        ),
    ] = "auto"
