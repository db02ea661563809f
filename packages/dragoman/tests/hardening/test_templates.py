"""Templates in requests: SGLang CVE-2026-5760; their internal names: vLLM
CVE-2025-62426. The limits of all templates are tested in
tests/prompts/test_template.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

HI: Any = [{"role": "user", "content": "hi"}]
ESCAPES = [
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ self._TemplateReference__context }}",
    "{% include '/etc/passwd' %}",
    "{% for a in range(999999999) %}{{ a }}{% endfor %}",
    "{{ 'x' * 9999999999 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
]


@asynccontextmanager
async def serve(settings: Settings) -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(settings, SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await models.stop()


async def test_request_template_is_rejected_unless_trusted():
    async with serve(Settings()) as client:
        for path in ("/v1/chat/completions", "/tokenize"):
            answer = await client.post(path, json={"messages": HI, "chat_template": "x"})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "chat_template"


async def test_trusted_request_template_cannot_escape_sandbox():
    async with serve(Settings(trust_request_chat_template=True)) as client:
        assert (
            await client.post("/tokenize", json={"messages": HI, "chat_template": "x"})
        ).status_code == 200
        for template in ESCAPES:
            answer = await client.post(
                "/tokenize", json={"messages": HI, "chat_template": template}
            )
            # Inaccessible names are an error or render nothing.
            assert answer.status_code == 400 or answer.json()["tokens"] == [], template


BOMBS = [
    "{{ ('a\n'*99999)|indent(99999) }}",
    "{{ ('a '*99999)|wordwrap(1, wrapstring='x'*1000) }}",
    "{% set ns = namespace(l=[]) %}{% for a in range(9999) %}{% set ns.l = ns.l + "
    "['x'|center(99999)] %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ range(99999)|list|batch(1)|list|string|length }}" * 99,
]


async def test_request_template_over_time_limit_returns_400():
    async with serve(Settings(trust_request_chat_template=True, worker_timeout=0.5)) as client:
        bodies = [{"messages": HI, "chat_template": bomb} for bomb in BOMBS]
        answers = await asyncio.gather(*(client.post("/tokenize", json=body) for body in bodies))
        assert [answer.status_code for answer in answers] == [400] * len(BOMBS)
        body = {"messages": HI, "chat_template": "{{ messages[0].content }}"}
        assert (await client.post("/tokenize", json=body)).status_code == 200


@pytest.mark.parametrize(
    "name", ["tokenize", "chat_template", "tools", "messages", "raise_exception", "__class__"]
)
async def test_template_kwargs_cannot_override_internal_names(name: str):
    async with serve(Settings()) as client:
        body = {"messages": HI, "max_tokens": 1, "chat_template_kwargs": {name: False}}
        answer = await client.post("/v1/chat/completions", json=body)
        named = (
            answer.status_code == 400 and answer.json()["error"]["param"] == "chat_template_kwargs"
        )
        assert named or (name.startswith("__") and name in answer.headers["x-dragoman-warnings"])
