"""Limits of a key over several worker processes: one count in the store that they
share.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from dragoman.tenants import KeyHash, Tenant, edit_key_file, hash_key

from .processes import Workers, chat, serving

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")

HEADERS = {"authorization": "Bearer one", "content-type": "application/json"}
SCRIPT = [{"reply": [{"text": "One "}, {"delay": 600}, {"text": "two."}], "repeat": True}]


def ask(running: Workers) -> int:
    """Return the status of a chat request."""
    connection = running.connect()
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()), HEADERS)
        return connection.getresponse().status
    finally:
        connection.close()


def test_concurrency_limit_counts_requests_across_workers(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(yaml.safe_dump(SCRIPT))
    tenant = Tenant(secrets=(KeyHash(hash_key("one")),), role="admin", concurrent_requests=1)
    edit_key_file(tmp_path / "keys.yaml", lambda tenants: tenants.update(a=tenant))
    with serving(tmp_path, "--keys-file", "keys.yaml", model="scripted:script.yaml") as running:
        first = running.connect()
        first.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True)), HEADERS)
        with first.getresponse() as response:
            assert response.status == 200
            assert response.readline().startswith(b"data:")
            before = running.read_shares(HEADERS)
            for _ in range(10**4):
                assert ask(running) == 429
                # Reading the metrics counts as one request per worker; all others were
                # rejected.
                after = running.read_shares(HEADERS)
                if all(new > old + 1 for new, old in zip(after, before, strict=True)):
                    break
            else:
                raise AssertionError(before)
        first.close()
