"""Templates in requests are rendered in processes that are killed at their limits."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import UTC, datetime

import pytest
from tests.prompts import vocabularies

from dragoman.core.errors import RequestError
from dragoman.core.message import Message, Role, Text
from dragoman.core.request import Conversation, TemplateOptions
from dragoman.isolation.worker_pool import WorkerLimits
from dragoman.prompts.chat_template import ChatTemplate
from dragoman.prompts.render import Renderer
from dragoman.prompts.request_templates import RequestTemplates

NOW = datetime(2026, 1, 2, tzinfo=UTC)
BASE = Renderer(ChatTemplate("", {"bos_token": "<s>"}), vocabularies.embedded())
TALK = Conversation((Message(Role.USER, (Text("hello"),)),))
PREFILL = TemplateOptions(add_generation_prompt=False, continue_final_message=True)
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def templates() -> Generator[RequestTemplates]:
    # A busy machine may give a process its little time late.
    created = RequestTemplates(WorkerLimits(seconds=0.3, clock_factor=1e6))
    yield created
    created.close()


async def render_text(
    templates: RequestTemplates, source: str, conversation: Conversation = TALK
) -> str:
    renderer = await templates.renderer(BASE, source)
    return (await templates.render(renderer, renderer.steps(conversation, now=NOW))).text


async def test_request_template_renders_same_as_server(templates: RequestTemplates) -> None:
    source = "{{ bos_token }}{{ messages[0].content }} {{ strftime_now('%Y') }}<end>"
    assert await render_text(templates, source) == "<s>hello 2026<end>"
    conversation = Conversation(
        (*TALK.messages, Message(Role.ASSISTANT, (Text("Hi"),))), template=PREFILL
    )
    source = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    here = (
        Renderer(ChatTemplate(source), vocabularies.embedded()).render(conversation, now=NOW).text
    )
    assert await render_text(templates, source, conversation) == here == "hello<end>Hi"


async def test_request_template_failure_raises_request_error(templates: RequestTemplates) -> None:
    with pytest.raises(RequestError, match="No thanks") as rejected:
        await render_text(templates, "{{ raise_exception('No thanks') }}")
    assert rejected.value.param == "messages"
    with pytest.raises(RequestError, match="does not compile") as wrong:
        await render_text(templates, "{% if %}")
    assert wrong.value.param == "chat_template"


async def test_request_template_timeout_kills_worker_and_next_succeeds(
    templates: RequestTemplates,
) -> None:
    with pytest.raises(RequestError, match="too much time") as caught:
        await render_text(templates, LOOP + "{{ messages[0].content }}")
    assert caught.value.param == "chat_template"
    assert await render_text(templates, "x") == "x"


async def test_request_template_is_compiled_once(templates: RequestTemplates) -> None:
    renderer = await templates.renderer(BASE, "x")
    assert await templates.renderer(BASE, "x") is renderer
    for number in range(40):
        await templates.renderer(BASE, f"x{number}")
    assert await templates.renderer(BASE, "x") is not renderer


async def test_request_template_cancel_kills_worker() -> None:
    templates = RequestTemplates(WorkerLimits(seconds=600.0))
    waiting = asyncio.create_task(render_text(templates, LOOP))
    while not templates.pool.pids:  # noqa: ASYNC110 - it starts in a thread
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    while templates.pool.pids:  # noqa: ASYNC110
        await asyncio.sleep(0)
