"""The settings of the engine `vllm` beside those of the server."""

from typing import Annotated

from msgspec import Struct

from ....settings.option import Option


class VllmEngineSettings(Struct, frozen=True, kw_only=True):
    """Settings of the engine `vllm`."""

    vllm_args: Annotated[
        str | None,
        Option(
            "Model",
            "Additional vLLM engine arguments for `vllm:`.",
            metavar="JSON",
        ),
    ] = None
