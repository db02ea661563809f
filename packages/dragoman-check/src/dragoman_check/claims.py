"""What a server claims: by its profile, or by its routes."""

from __future__ import annotations

from .client import Client
from .session import REFUSALS, Session

ROUTES = {
    "chat": ("POST", "/v1/chat/completions"),
    "completions": ("POST", "/v1/completions"),
    "responses": ("POST", "/v1/responses"),
    "messages": ("POST", "/v1/messages"),
    "count-tokens": ("POST", "/v1/messages/count_tokens"),
    "embeddings": ("POST", "/v1/embeddings"),
    "models": ("GET", "/v1/models"),
    "ollama": ("POST", "/api/chat"),
    "gemini": ("GET", "/v1beta/models"),
    "tokenize": ("POST", "/tokenize"),
    "vllm-generate": ("POST", "/inference/v1/generate"),
    "sglang": ("GET", "/get_model_info"),
    "tgi": ("GET", "/info"),
    # Other servers have `/props` too, for its clients.
    "llamacpp": ("GET", "/lora-adapters"),
    "conversations": ("POST", "/v1/conversations"),
    "files": ("GET", "/v1/files"),
    "rerank": ("POST", "/v1/rerank"),
    "health": ("GET", "/health"),
    "metrics": ("GET", "/metrics"),
}
"""Claim -> the route that `auto` probes for it. A route that returns 404, 405 or 501 is
absent.
"""
_BASE = {"http", "models", "cancellation"}
_OPENAI = _BASE | {"chat", "embeddings"}
_RICH = {"forced tools", "tools", "json_schema", "json_object", "logprobs", "n"}
"""Features that may be rejected with an error unless the profile claims them."""
PROFILES: dict[str, frozenset[str]] = {
    "openai": frozenset(
        _OPENAI
        | _RICH
        | {
            "completions",
            "responses",
            "state",
            "background",
            "websocket",
            "conversations",
            "input-tokens",
        }
        | {"request-id", "codex", "custom tools", "files"}
    ),
    "anthropic": frozenset(
        _BASE | {"messages", "count-tokens", "claude-code", "tools", "forced tools", "request-id"}
    ),
    "vllm": frozenset(
        _OPENAI
        | _RICH
        | {
            "completions",
            "responses",
            "messages",
            "count-tokens",
            "tokenize",
            "vllm",
            "vllm-generate",
            "health",
        }
        | {"metrics", "codex", "custom tools", "claude-code"}
    ),
    "sglang": frozenset(
        _OPENAI | _RICH | {"completions", "responses", "messages", "sglang", "health", "metrics"}
    ),
    "llamacpp": frozenset(
        _OPENAI
        | _RICH
        | {"completions", "responses", "messages", "count-tokens", "llamacpp", "health", "metrics"}
    ),
    "ollama": frozenset(
        _OPENAI
        | {"completions", "responses", "messages", "ollama", "tools", "json_schema", "json_object"}
    ),
    "tgi": frozenset((_OPENAI - {"embeddings"}) | {"tgi", "health", "metrics"}),
    "gemini": frozenset({"gemini", "tools", "forced tools", "json_schema"}),
    "litellm": frozenset(
        _OPENAI | {"completions", "responses", "messages", "count-tokens", "tools"}
    ),
    "transformers": frozenset((_OPENAI - {"embeddings"}) | {"completions", "responses", "health"}),
    "dragoman": frozenset(
        _OPENAI
        | {*ROUTES} - {"llamacpp"}
        | {
            "state",
            "background",
            "websocket",
            "input-tokens",
            "request-id",
            "codex",
            "custom tools",
            "claude-code",
            "vllm",
            "dragoman",
        }
    ),
}
"""Profile -> what such a server claims."""
IMPLIED = {
    "responses": {"state", "background", "websocket", "input-tokens", "codex"},
    "messages": {"claude-code"},
    "vllm-generate": {"vllm"},
    "models": {"cancellation", "http", "request-id"},
}
"""Claim found by its route -> more claims that `auto` assumes. Their checks are skipped
if the server rejects them.
"""
_WITHOUT_GENERATION = frozenset(
    {"embeddings", "models", "http", "rerank", "health", "metrics", "files", "request-id", "key"}
)
"""Claims that apply to a model that only embeds."""


async def detect_routes(client: Client) -> frozenset[str]:
    """Return the claims whose routes the server has."""
    session = Session(client, frozenset())
    claims = set[str]()
    for claim, (method, path) in ROUTES.items():
        # The empty object is an invalid body, so nothing is generated.
        exchange = await session.send(method, path, {} if method == "POST" else None)
        if exchange.status not in (404, 405, 501):
            claims.add(claim)
    return frozenset(claims)


async def find_claims(client: Client) -> frozenset[str]:
    """Return what the server claims: by its profile, or with `auto` by its routes."""
    profile = client.target.profile
    key = {"key"} if client.target.api_key is not None else set[str]()
    if profile != "auto":
        return PROFILES[profile] | key
    routes = await detect_routes(client)
    implied = {claim for route, claims in IMPLIED.items() if route in routes for claim in claims}
    return frozenset(routes | implied | key | {"http", "cancellation"})


async def limit_to_abilities(client: Client, claims: frozenset[str]) -> frozenset[str]:
    """With `auto`, drop the claims of generation if the model only embeds or scores,
    and of embeddings if it only scores: routes do not show what the model can do.
    """
    if client.target.profile != "auto" or "chat" not in claims:
        return claims
    session = Session(client, claims)

    async def post(path: str, **fields: object) -> int:
        return (await session.post(path, {"model": client.target.model, **fields})).status

    embeds = (
        "embeddings" in claims
        and await post("/v1/embeddings", input="Hello", encoding_format="float") == 200
    )
    scores = (
        not embeds
        and "rerank" in claims
        and await post("/v1/rerank", query="Hello", documents=["Hello"]) == 200
    )
    if not embeds and not scores:
        return claims
    messages = [{"role": "user", "content": "Hello"}]
    if await post("/v1/chat/completions", messages=messages, max_tokens=1) not in REFUSALS:
        return claims
    return claims & _WITHOUT_GENERATION - ({"embeddings"} if scores else set[str]())
