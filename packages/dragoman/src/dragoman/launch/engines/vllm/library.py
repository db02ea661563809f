"""The architectures that vLLM supports."""

from __future__ import annotations

from dragoman_cli.entry_points import find_entry_points

from ...architecture_check import ArchitectureConfig, Library, find_root, knows, read_names
from ..transformers.library import knows_model_type


def _supports(config: ArchitectureConfig) -> bool:
    # vLLM also runs models that only transformers supports, and its plug-ins may add any
    # architecture.
    return (
        bool(find_entry_points("vllm.general_plugins"))
        or knows(
            read_names("vllm", "model_executor/models/registry.py"), config.architectures or ()
        )
        or (find_root("transformers") is not None and knows_model_type(config))
    )


VLLM = Library("vllm", _supports)
