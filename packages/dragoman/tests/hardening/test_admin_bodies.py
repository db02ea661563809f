"""No body makes an admin route fail with a 500: these routes do not use the dialects'
readers.
"""

from __future__ import annotations

import pytest
from tests.serving.harness import build_server

from dragoman.serving.auth import Access

from .test_routes import TABLE

JSON = {"content-type": "application/json"}
BODIES = {
    "deep": b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}",
    "not UTF-8": b'{"a":"\xff"}',
    "lone surrogate": b'{"a":"\\ud800"}',
    "no JSON": b"{",
    "other type": b"[1]",
    "number": b"1e999",
    "NUL in each string": b'{"lora_name":"\\u0000","lora_path":"\\u0000","new_version":"\\u0000"}',
}
ROUTES = [
    (path, method)
    for path, route in TABLE.items()
    for method in route.operations
    if route.access is Access.ADMIN and method != "GET"
]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_admin_routes_malformed_body_never_returns_500(body: bytes):
    async with build_server().http() as client:
        for path, method in ROUTES:
            answer = await client.request(method, path, content=body, headers=JSON)
            assert answer.status_code in (200, 204, 400, 404), path


@pytest.mark.parametrize("body", [BODIES["deep"], BODIES["not UTF-8"]], ids=["deep", "not UTF-8"])
@pytest.mark.parametrize("path", ["/abort_requests", "/dragoman/reply", "/v1/load_lora_adapter"])
async def test_admin_routes_unreadable_body_returns_400(path: str, body: bytes):
    async with build_server().http() as client:
        assert (await client.post(path, content=body, headers=JSON)).status_code == 400
