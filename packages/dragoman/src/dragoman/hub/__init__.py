"""Model repositories: references to them, the selection and download of their files,
and the shared Hugging Face cache.

`huggingface_hub` is imported only when it is used, since its import takes a fifth of a
second.
"""

from .download import DownloadEvent, download, format_bytes
from .model_files import (
    DownloadPlan,
    GgufModel,
    HubError,
    ModelReference,
    RepositoryFile,
    find_gguf_models,
    is_adapter,
    looks_like_repository,
    parse_reference,
    select_adapter_files,
    select_gguf_files,
    select_tokenizer_files,
    select_weight_files,
)
from .repository import (
    DownloadCancelled,
    LastUse,
    LocalModel,
    Repository,
    find_cached_repository,
    list_local_models,
    open_repository,
    record_use,
    remove_local_model,
)

__all__ = [
    "DownloadCancelled",
    "DownloadEvent",
    "DownloadPlan",
    "GgufModel",
    "HubError",
    "LastUse",
    "LocalModel",
    "ModelReference",
    "Repository",
    "RepositoryFile",
    "download",
    "find_cached_repository",
    "find_gguf_models",
    "format_bytes",
    "is_adapter",
    "list_local_models",
    "looks_like_repository",
    "open_repository",
    "parse_reference",
    "record_use",
    "remove_local_model",
    "select_adapter_files",
    "select_gguf_files",
    "select_tokenizer_files",
    "select_weight_files",
]
