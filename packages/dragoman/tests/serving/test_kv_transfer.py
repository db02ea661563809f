"""`kv_transfer_params` reach an engine that supports them, and its own are returned in
every dialect.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.constraints.bounded_compiler import BoundedCompiler
from dragoman.core.capabilities import Capabilities, Feature
from dragoman.core.engine import Health
from dragoman.core.events import FinishReason
from dragoman.core.token_engine import Ended, OutputCallback, Sampled, Scheduled, TokenRequest
from dragoman.engines import tiny
from dragoman.parsers import registry
from dragoman.pipeline.detokenizer import Vocabulary
from dragoman.pipeline.engine_backends import TokenBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.output_formats import OutputFormats
from dragoman.pipeline.served_model import ServedModel
from dragoman.prompts.render import Renderer
from dragoman.prompts.template_loader import load_template
from dragoman.serving.app import build_asgi_app
from dragoman.serving.serving_options import ServingOptions

from .harness import FixedClock, SequentialIds, load_tiny_tokenizer

TRANSFER = {"do_remote_decode": True}


class PrefillEngine:
    """The prefill engine of a disaggregated pair: one token, and the location of the KV
    cache.
    """

    def __init__(self, *parameters: str) -> None:
        features = frozenset({Feature.TOKEN_IDS})
        self.capabilities = Capabilities(features, frozenset({"max_tokens", "stop", *parameters}))

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        transfer = request.extras.kv_transfer_params
        answer = (
            None
            if transfer is None
            else json.dumps({"asked": json.loads(transfer), "remote_block_ids": [1, 2]})
        )
        deliver(Scheduled(request.id, 0))
        deliver(Sampled(request.id, 65))
        deliver(Ended(request.id, FinishReason.LENGTH, kv_transfer_params=answer))

    def abort(self, id: str) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()


def app(*parameters: str, strict: bool = False) -> Any:
    tokenizer = load_tiny_tokenizer()
    directory = tiny.find_bundled_model()
    template = load_template(directory)
    assert template is not None
    renderer = Renderer(template, tokenizer)
    engine = PrefillEngine(*parameters)
    backend = TokenBackend(
        engine,
        tokenizer,
        Vocabulary(tokenizer),
        BoundedCompiler(tokenizer, [0]),
        frozenset({0}),
        renderer,
    )
    # Parsers pass the engine's parameters on to the writers.
    added = tokenizer.special_tokens.keys()
    reasoning = registry.find_reasoning_format("qwen3", added)
    tools = registry.find_tool_format("hermes", added)
    model = ServedModel("m", backend, 4096, 1_700_000_000, formats=OutputFormats(reasoning, tools))
    options = ServingOptions(strict=strict)
    return build_asgi_app(Models([model]), options=options, clock=FixedClock(), ids=SequentialIds())


MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi", "stop": ["END"]},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/responses": {"input": "Hi"},
}


async def post(app: Any, path: str, **extra: object) -> Any:
    import httpx2

    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.post(path, json={"model": "m", **BODIES[path], **extra})


@pytest.mark.parametrize("path", BODIES)
async def test_kv_transfer_params_passed_to_engine_and_returned(path: str):
    full = await post(app("kv_transfer_params"), path, kv_transfer_params=TRANSFER)
    assert full.json()["kv_transfer_params"] == {"asked": TRANSFER, "remote_block_ids": [1, 2]}
    assert "x-dragoman-warnings" not in full.headers


@pytest.mark.parametrize("path", BODIES)
async def test_kv_transfer_params_in_stream_sent_once_at_end(path: str):
    streamed = await post(app("kv_transfer_params"), path, kv_transfer_params=TRANSFER, stream=True)
    assert streamed.text.count('"kv_transfer_params":{"asked":{"do_remote_decode":true}') == 1


@pytest.mark.parametrize("path", BODIES)
async def test_kv_transfer_params_unsupported_engine_warns_or_rejects(path: str):
    ignored = await post(app(), path, kv_transfer_params=TRANSFER)
    assert "kv_transfer_params is ignored" in ignored.headers["x-dragoman-warnings"]
    assert "kv_transfer_params" not in ignored.json()
    rejected = await post(app(strict=True), path, kv_transfer_params=TRANSFER)
    assert rejected.status_code == 400


CONVERSATIONS = [path for path in BODIES if path != "/v1/completions"]


@pytest.mark.parametrize("path", CONVERSATIONS)
async def test_kv_transfer_prompt_token_ids_replace_prompt(
    path: str,
):
    """A router passes them to the decode stage, which does not tokenize the
    conversation again (vLLM 0.33).
    """
    params = {**TRANSFER, "prompt_token_ids": [5, 6, 7]}
    answer = (await post(app("kv_transfer_params"), path, kv_transfer_params=params)).json()
    assert answer["kv_transfer_params"]["asked"] == TRANSFER
    usage = answer["usage"]
    assert usage.get("prompt_tokens", usage.get("input_tokens")) == 3
    alone = await post(app(), path, kv_transfer_params={"prompt_token_ids": [5, 6]})
    assert "x-dragoman-warnings" not in alone.headers
    usage = alone.json()["usage"]
    assert usage.get("prompt_tokens", usage.get("input_tokens")) == 2


@pytest.mark.parametrize("ids", [[], [-1], [1.5], "5", [10**9], [True]])
async def test_kv_transfer_invalid_prompt_token_ids_rejected_by_name(ids: object):
    answer = await post(app(), "/v1/chat/completions", kv_transfer_params={"prompt_token_ids": ids})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "kv_transfer_params.prompt_token_ids"
