"""The settings of the engine `llamacpp` beside those of the server."""

from typing import Annotated

from msgspec import Struct

from ....settings.option import Option


class LlamaCppSettings(Struct, frozen=True, kw_only=True):
    """Settings of the engine `llamacpp`."""

    gpu_layers: Annotated[
        int,
        Option(
            "Model",
            "Number of layers that llama.cpp offloads to the GPU; -1 lets llama.cpp decide.",
            minimum=-1,
            maximum=100000,
        ),
    ] = -1
    deterministic: Annotated[
        bool,
        Option(
            "Model",
            "Run llama.cpp without flash attention on a CPU: slower, but concurrent requests "
            "change logits only in the "
            "last digits.",
        ),
    ] = False
    mmproj: Annotated[
        str | None,
        Option(
            "Model",
            "GGUF file with the multimodal projector, for llama.cpp. By default the only "
            "`mmproj*.gguf` file "
            "next to the model; `none` disables image input.",
            metavar="FILE",
        ),
    ] = None
