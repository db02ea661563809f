"""The layout of the shared Hugging Face cache: blobs by checksum, snapshots of commits
that link to them, and the commits of branches and tags.

https://huggingface.co/docs/huggingface_hub/guides/manage-cache. All names in it are
checked before: paths by `is_inside`, commits and checksums by their digits, revisions
by `parse_reference`.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from .file_selection import RepositoryFile


def get_cache_folder(repository: str) -> Path:
    """Find the repository's folder in the shared cache; it need not exist."""
    from huggingface_hub import constants  # noqa: PLC0415 - takes a fifth of a second
    from huggingface_hub.file_download import repo_folder_name  # noqa: PLC0415 - as above

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")


def find_blob(storage: Path, file: RepositoryFile) -> Path:
    """Return the place of a file's bytes, which need not exist.

    storage: from `get_cache_folder`.
    """
    return storage / "blobs" / file.checksum


def find_partial_blob(storage: Path, file: RepositoryFile) -> Path:
    """Return the place of the bytes of an interrupted download."""
    return storage / "blobs" / f"{file.checksum}.dragoman.incomplete"


def find_blob_lock(storage: Path, file: RepositoryFile) -> Path:
    """Return the lock file of huggingface_hub: another program waits instead of
    downloading the same file.
    """
    return storage.parent / ".locks" / storage.name / f"{file.checksum}.lock"


def link_blob(storage: Path, commit: str, file: RepositoryFile) -> None:
    """Add a downloaded file to the snapshot of a commit: a link, or a copy where there
    are no links.
    """
    from huggingface_hub import constants  # noqa: PLC0415 - takes a fifth of a second

    blob = find_blob(storage, file)
    pointer = storage / "snapshots" / commit / file.path
    pointer.parent.mkdir(parents=True, exist_ok=True)
    draft = pointer.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        if constants.HF_HUB_DISABLE_SYMLINKS:
            shutil.copyfile(blob, draft)
        else:
            try:
                draft.symlink_to(os.path.relpath(blob, pointer.parent))
            except OSError:
                shutil.copyfile(blob, draft)
        # Replaced atomically: another process must not read a partial copy.
        draft.replace(pointer)
    finally:
        draft.unlink(missing_ok=True)


def record_revision(storage: Path, revision: str, commit: str) -> None:
    """Record the commit of a branch or a tag, by which it is found without a request.

    Called only when all files are present.
    """
    if revision == commit:
        return
    record = storage / "refs" / revision
    if read_revision(storage, revision) == commit:
        # The cache may be read-only.
        return
    record.parent.mkdir(parents=True, exist_ok=True)
    draft = record.with_name(f"{record.name}.{secrets.token_hex(8)}.tmp")
    draft.write_text(commit, encoding="ascii")
    draft.replace(record)


def read_revision(storage: Path, revision: str) -> str | None:
    """Return the recorded text for a branch or a tag; None if there is none."""
    try:
        return (storage / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
