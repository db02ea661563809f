"""Model repositories: references to them, what to download of them, the shared Hugging Face cache.

Knows no engine, no settings and no HTTP server. `huggingface_hub` is imported on use, since it takes time to import.
"""

from .cache import LocalModel, UsageRecord, list_local_models, note_use, remove_local_model
from .download import DownloadCancelled, DownloadEvent, download, format_bytes
from .errors import HubError
from .reference import ModelReference, looks_like_repository, parse_reference
from .repository import Repository, find_cached_repository, open_repository
from .selection import (
    DownloadPlan,
    GgufModel,
    RepositoryFile,
    find_gguf_models,
    is_adapter,
    select_adapter_files,
    select_gguf_files,
    select_tokenizer_files,
    select_weight_files,
)

__all__ = [
    "DownloadCancelled",
    "DownloadEvent",
    "DownloadPlan",
    "GgufModel",
    "HubError",
    "LocalModel",
    "ModelReference",
    "Repository",
    "RepositoryFile",
    "UsageRecord",
    "download",
    "find_cached_repository",
    "find_gguf_models",
    "format_bytes",
    "is_adapter",
    "list_local_models",
    "looks_like_repository",
    "note_use",
    "open_repository",
    "parse_reference",
    "remove_local_model",
    "select_adapter_files",
    "select_gguf_files",
    "select_tokenizer_files",
    "select_weight_files",
]
