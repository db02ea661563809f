"""Model repositories: references to them, the selection and download of their files,
and the shared Hugging Face cache.

`huggingface_hub` and the HTTP client are imported only when they are used: the first
takes a fifth of a second, and every server imports this package.
"""

from .cached_models import LastUse, LocalModel, list_local_models, record_use, remove_local_model
from .download import DownloadEvent, download, format_bytes
from .download_plan import DownloadPlan
from .errors import DownloadCancelled, HubError, clean_message, translate_errors
from .file_selection import (
    RepositoryFile,
    is_adapter,
    select_adapter_files,
    select_tokenizer_files,
    select_weight_files,
)
from .gguf_files import GgufModel, find_gguf_models, select_gguf_files
from .model_reference import ModelReference, looks_like_repository, parse_reference
from .repository import Repository, find_cached_repository, open_repository

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
    "clean_message",
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
    "translate_errors",
]
