"""A hub on loopback with an empty cache, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.hub.shapes import build_repositories
from tests.hub.stub import HubStub, run_hub


@pytest.fixture
def hub(tmp_path: Path) -> Generator[HubStub]:
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    with run_hub(build_repositories(encoder)) as stub:
        yield stub


@pytest.fixture
def cache(hub: HubStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configure this process for the stub, like one that starts with HF_ENDPOINT and
    HF_HUB_CACHE.
    """
    directory = tmp_path / "cache"
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(directory))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return directory
