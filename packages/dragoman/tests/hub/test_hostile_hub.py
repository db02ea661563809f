"""Downloads from a hub that misbehaves: nothing is written outside the cache, nothing is
read without bound, and the error is one sentence.
"""

from __future__ import annotations

import errno
import itertools
import re
from collections.abc import Generator
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.hub.hostile_hub import COMMIT, MISBEHAVIOURS, HostileHub, run_hostile_hub

from dragoman.hub import (
    HubError,
    ModelReference,
    download,
    open_repository,
    parse_reference,
    translate_errors,
)
from dragoman.hub.file_selection import MAX_METADATA_BYTES
from dragoman.hub.hub_client import HubClient
from dragoman.launch.hub_models import prepare_pull
from dragoman.launch.hub_reference import find_reference
from dragoman.settings import Settings

SOCKET_BYTES = 16 << 20
"""What the sockets of both sides may hold beyond what the client reads."""


@pytest.fixture(scope="module")
def hub() -> Generator[HostileHub]:
    with run_hostile_hub() as running:
        yield running


@pytest.fixture
def cache(hub: HostileHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "a/b/c/d/cache"
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(directory))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return directory


def pull(name: str) -> str:
    """Download a model. Return the error; empty if there is none."""
    try:
        prepared = prepare_pull(Settings(), ModelReference(f"evil/{name}"), None)
        download(prepared.plan, lambda _: None, retry_seconds=0)
    except HubError as error:
        return str(error)
    assert prepared.choice.reason.isprintable()
    return ""


def find_files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if not path.is_dir() or path.is_symlink()}


@pytest.mark.parametrize("name", MISBEHAVIOURS)
def test_hostile_hub_stays_in_cache_and_bounds(
    hub: HostileHub, cache: Path, tmp_path: Path, name: str
):
    misbehaviour = MISBEHAVIOURS[name]
    error = pull(name)
    assert re.search(misbehaviour.error or "^$", error), error
    assert error.isprintable()
    assert "hf_secret" not in error
    storage = cache / f"models--evil--{name}"
    locks = cache / ".locks"
    outside = {
        path
        for path in find_files(tmp_path)
        if not path.is_relative_to(storage) and not path.is_relative_to(locks)
    }
    assert outside == set()
    assert not list(Path("/tmp").glob("dragoman_escape*"))
    blobs = storage / "blobs"
    assert all(path.resolve().parent == blobs for path in find_files(storage) if path.is_symlink())
    assert sum(path.stat().st_size for path in find_files(storage)) < 1 << 20
    assert hub.sent.get(name, 0) < MAX_METADATA_BYTES + SOCKET_BYTES
    if misbehaviour.answers:
        assert hub.sent[name] < SOCKET_BYTES
    assert hub.other_tokens == []


@pytest.mark.usefixtures("cache")
def test_open_repository_other_commit_than_pinned_is_rejected():
    pinned = ModelReference("evil/etag_empty", revision="b" * 40)
    with pytest.raises(HubError, match=f"lists the commit {COMMIT} of .* instead of b+;"):
        open_repository(pinned)


@pytest.mark.usefixtures("cache")
def test_file_list_sent_slowly_is_rejected():
    seconds = itertools.count(step=200)
    with HubClient(lambda: next(seconds)) as client, pytest.raises(HubError, match="took more"):
        client.fetch_file_list("evil/etag_empty", "main")


@pytest.mark.parametrize(
    "revision",
    ["a/../../x", "..", "a/..", "a//b", "a/./b", "a/", "/a", "a\0b", "a\nb", "b" * 201, "a\\b", ""],
)
def test_parse_reference_unsafe_revision_is_rejected(revision: str):
    with pytest.raises(HubError):
        parse_reference(f"org/name@{revision}")
    if revision:
        with pytest.raises(HubError):
            parse_reference("org/name", revision)


@pytest.mark.parametrize("text", ["a/" + "b" * 5000, "a" * 5000, "a/b\0c", "a/b:" + "c" * 5000])
def test_find_reference_unusable_name_is_no_reference(text: str):
    assert find_reference(text) is None
    for prefix in ("hf:", "hf.co/"):
        with pytest.raises(HubError, match="is not a model of a hub") as raised:
            find_reference(prefix + text)
        assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left"), "the disk is full; free space"),
        (OSError(errno.EFBIG, "File too large"), r"\(File too large\); check HF_HUB_CACHE"),
        (IsADirectoryError(errno.EISDIR, "Is a directory"), r"\(Is a directory\)"),
        (ValueError("embedded null byte"), "ValueError: embedded null byte"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (RecursionError("\x1b[31m\n"), "RecursionError: .*31m"),
    ],
)
def test_translate_errors_any_error_is_one_sentence(error: Exception, message: str):
    with pytest.raises(HubError, match=message) as raised, translate_errors("org/name"):
        raise error
    assert str(raised.value).isprintable()
