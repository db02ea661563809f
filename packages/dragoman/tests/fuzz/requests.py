"""Nearly valid requests for every route of the application.

`SKETCHES` has an entry for each (method, route); a test compares it with the
application's own table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from .exchange import Request, Response
from .mutate import damage, encode, mutate

sys.path.insert(0, str(Path(__file__).parents[4] / "docs"))
examples: Any = import_module("examples")

MODELS = (*"sssssss", "t", "e")
"""An event engine, a token engine, and an embedder."""
COUNTS = ("t", "t", "t", "s", "e")
READS = ("e", "e", "e", "t")
"""Models for routes that need tokens, and for routes that need vectors."""
HELLO = [{"role": "user", "content": "hello"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 1,
    "stop": ["x"],
    "n": 1,
    "max_new_tokens": 3,
}

Body = Callable[[Random, "State"], Any]


class State:
    """Ids that the server has returned, so that later requests can refer to existing
    objects.
    """

    def __init__(self) -> None:
        self.ids: dict[str, list[str]] = {}

    def note(self, request: Request, response: Response) -> None:
        is_object = response.body.startswith(b"{") and not response.is_stream
        if response.status == 200 and request.method == "POST" and is_object:
            created = json.loads(response.body)
            if isinstance(created.get("id"), str):
                self.ids.setdefault(request.route, []).append(created["id"])

    def pick(self, random: Random, route: str) -> str:
        known = self.ids.get(route, [])[-20:]
        return (
            random.choice(known)
            if known and random.random() < 0.85
            else random.choice(("x", "resp_1", "é", "a b", "%00"))
        )


def _dialect(name: str, models: tuple[str, ...] = MODELS) -> Body:
    """Build a minimal body of a documented dialect with some of its documented
    examples.
    """

    def make(random: Random, _: State) -> Any:
        known = examples.DIALECTS[name]
        body = dict(known.base)
        for parameter in random.sample(sorted(known.examples), random.randrange(4)):
            body = {**body, **examples.body(name, parameter)}
        if "model" not in body or random.random() < 0.9:
            body["model"] = random.choice(models)
        if random.random() < 0.4:
            body["stream"] = True
        if name != "responses":
            body["max_tokens"] = random.randrange(1, 6)
        else:
            body["max_output_tokens"] = 16
        return body

    return make


def _conversing(random: Random, state: State) -> Any:
    """Build requests that continue earlier responses."""
    body = _dialect("responses")(random, state)
    if random.random() < 0.3:
        body["previous_response_id"] = state.pick(random, "/v1/responses")
        body.pop("conversation", None)
    elif random.random() < 0.3:
        body["conversation"] = state.pick(random, "/v1/conversations")
        body.pop("previous_response_id", None)
    if random.random() < 0.2:
        body["background"] = body["store"] = True
    return body


def _with_model(*bodies: Any, models: tuple[str, ...] = MODELS) -> Body:
    return lambda random, _: {"model": random.choice(models), **random.choice(bodies)}


def _any_of(*bodies: Any) -> Body:
    return lambda random, _: random.choice(bodies)


def _nothing(_: Random, __: State) -> Any:
    return None


_RERANK = _with_model(
    {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1},
    {"query": "a", "documents": ["b"]},
    {"query": "a", "texts": ["b", "c"], "return_text": True, "raw_scores": True, "truncate": True},
    models=READS,
)
_SCORE = _with_model(
    {"text_1": "a", "text_2": ["b", "c"]}, {"queries": ["a"], "documents": ["b"]}, models=READS
)
_DECISIONS = _with_model(
    {"input": "a", "questions": [{"type": "predicate", "instructions": "b"}]},
    {
        "input": [{"role": "user", "content": [{"type": "input_json", "data": {"a": 1}}]}],
        "questions": [
            {"type": "choice", "instructions": "b", "choices": [{"value": True}, {"value": "c"}]},
            {"type": "score", "instructions": "d", "levels": [{"label": "e"}, {"label": "f"}]},
        ],
    },
)
_SYSTEMONE = _with_model(
    {"state": "a", "questions": {"q": {"type": "noul", "instructions": "b"}}},
    {
        "state": {"a": [1]},
        "instructions": "c",
        "questions": {
            "q": {"type": "choice", "criteria": {"d": None, "e": "f"}},
            "r": {"type": "score", "criteria": ["g", "h"]},
        },
    },
)
_COMPLETION = _with_model(
    {"prompt": "hello", "n_predict": 3, "n_probs": 1, "stream": True},
    {"prompt": [1, 2], "n_predict": 2, "logit_bias": [[1, False], [2, 1.5]], "seed": -1},
    {"prompt": "a", "json_schema": SCHEMA, "response_fields": ["content", "timings/predicted_n"]},
    {"prompt": "a", "n_predict": 2, "grammar": 'root ::= "a"', "samplers": ["top_k"]},
)
_INFILL = _with_model(
    {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    {"input_prefix": "a", "prompt": "c", "input_extra": [{"text": "d", "filename": "e"}]},
)
_TGI = _with_model(
    {"inputs": "hello", "parameters": {"max_new_tokens": 3, "details": True, "stop": ["x"]}},
    {
        "inputs": "hello",
        "stream": True,
        "parameters": {"max_new_tokens": 3, "return_full_text": True},
    },
    {
        "inputs": [5, 6],
        "parameters": {"max_new_tokens": 2, "grammar": {"type": "json", "value": SCHEMA}},
    },
)
_SGLANG = _with_model(
    {"text": "hello", "sampling_params": SAMPLING, "return_logprob": True},
    {"input_ids": [[5, 6], [7]], "sampling_params": {"max_new_tokens": 2}, "stream": True},
    {"text": ["a", "b"], "sampling_params": [SAMPLING, SAMPLING], "rid": ["x", "y"]},
)
_TOKENS = _with_model(
    {"token_ids": [5, 6], "sampling_params": {"max_tokens": 3, "logprobs": 1}},
    {
        "token_ids": [5],
        "stream": True,
        "stream_options": {"include_usage": True},
        "sampling_params": {"max_tokens": 2},
    },
    models=COUNTS,
)
_TOKENIZE = _with_model(
    {"prompt": "hello", "return_token_strs": True},
    {"messages": HELLO, "tools": [TOOL]},
    models=COUNTS,
)
_GEMINI_TURN = {"parts": [{"text": "hello"}]}
_GEMINI = _any_of(
    {"contents": [_GEMINI_TURN], "generationConfig": {"maxOutputTokens": 3, "seed": 1}},
    {
        "contents": [
            _GEMINI_TURN,
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}]},
            {"parts": [{"functionResponse": {"name": "f", "response": {"b": 2}}}]},
        ],
        "system_instruction": {"parts": [{"text": "a"}]},
        "tools": [{"function_declarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "generation_config": {"max_output_tokens": 3, "thinking_config": {"thinkingBudget": 0}},
    },
    {
        "contents": [_GEMINI_TURN],
        "generationConfig": {
            "maxOutputTokens": 9,
            "responseMimeType": "application/json",
            "responseSchema": {"type": "INTEGER", "nullable": True},
        },
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT"}],
    },
)
_OLLAMA_OPTIONS = {"num_predict": 3, "seed": 1, "temperature": 0.5, "stop": ["x"], "num_ctx": 64}
_OLLAMA_CHAT = _with_model(
    {"messages": HELLO, "options": _OLLAMA_OPTIONS, "think": False},
    {
        "messages": HELLO,
        "tools": [TOOL],
        "stream": False,
        "options": {"num_predict": 3},
        "keep_alive": "5m",
    },
    {
        "messages": HELLO,
        "format": SCHEMA,
        "options": {"num_predict": 5},
        "logprobs": True,
        "top_logprobs": 1,
    },
    {"messages": [], "keep_alive": 0},
)
_OLLAMA_GENERATE = _with_model(
    {"prompt": "hello", "options": _OLLAMA_OPTIONS, "system": "a"},
    {"prompt": "hello", "raw": True, "stream": False, "options": {"num_predict": 2}},
    {"prompt": "a", "context": [5, 6], "options": {"num_predict": 2}},
    {"prompt": "a", "suffix": "b", "format": "json"},
)
_OLLAMA_MODEL = _with_model({}, {"stream": False}, {"name": "t:latest", "verbose": True})
_ITEMS = {"items": [{"type": "message", "role": "user", "content": "hi"}], "metadata": {"a": "b"}}
_LINE = {"custom_id": "a", "params": {"model": "s", "max_tokens": 3, "messages": HELLO}}


def _batch(random: Random, state: State) -> Any:
    file = state.pick(random, "/v1/files")
    return {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}


_ORDERS = _any_of(
    {}, None, {"path": "x"}, {"model_path": "x"}, {"names": ["a"], "dtypes": ["f"], "shapes": [[1]]}
)

POSTS: dict[str, Body] = {
    "/v1/chat/completions": _dialect("chat"),
    "/v1/chat/completions/{id}": _any_of({"metadata": {"a": "b"}}),
    "/v1/completions": _dialect("completions"),
    "/v1/responses": _conversing,
    "/v1/responses/input_tokens": _dialect("responses", COUNTS),
    "/v1/responses/compact": _conversing,
    "/v1/responses/{id}/cancel": _nothing,
    "/v1/conversations": _any_of(_ITEMS, {}, None),
    "/v1/conversations/{id}": _any_of({"metadata": {"a": "b"}}),
    "/v1/conversations/{id}/items": _any_of(_ITEMS),
    "/v1/messages": _dialect("messages"),
    "/v1/messages/count_tokens": _dialect("messages", COUNTS),
    "/v1/embeddings": _with_model(
        {"input": "a"},
        {"input": [[5, 6]], "encoding_format": "base64"},
        {"input": ["a", "b"]},
        models=READS,
    ),
    **dict.fromkeys(
        ("/v2/embed", "/cohere/v2/embed"),
        _with_model(
            {
                "texts": ["a", "b"],
                "embedding_types": ["float", "ubinary"],
                "input_type": "search_query",
            },
            {"inputs": [{"content": [{"type": "text", "text": "a"}]}], "truncate": "NONE"},
            models=READS,
        ),
    ),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), _RERANK),
    **dict.fromkeys(("/score", "/v1/score"), _SCORE),
    "/completion": _COMPLETION,
    "/infill": _INFILL,
    "/apply-template": _dialect("chat"),
    "/v1/decisions": _DECISIONS,
    "/v1/systemone": _SYSTEMONE,
    **dict.fromkeys(("/v1/moderations", "/classify", "/pooling"), _with_model({"input": "a"})),
    "/inference/v1/generate": _TOKENS,
    "/generate": lambda random, state: (_SGLANG if random.random() < 0.6 else _TGI)(random, state),
    "/generate_stream": _TGI,
    "/": _TGI,
    **{
        f"/v1/{path}/explain": _dialect(name, COUNTS)
        for path, name in (("chat/completions", "chat"), ("completions", "completions"))
    },
    **{
        f"/v1/{path}/render": _dialect(name, COUNTS)
        for path, name in (("chat/completions", "chat"), ("completions", "completions"))
    },
    "/v1/responses/explain": _dialect("responses", COUNTS),
    "/v1/messages/explain": _dialect("messages", COUNTS),
    "/inference/v1/generate/explain": _TOKENS,
    "/generate/explain": _SGLANG,
    "/api/chat": _OLLAMA_CHAT,
    "/api/generate": _OLLAMA_GENERATE,
    "/api/embed": _with_model(
        {"input": ["a", "b"], "truncate": True}, {"input": "a", "dimensions": 2}, models=READS
    ),
    "/api/embeddings": _with_model({"prompt": "a"}, {"prompt": "", "keep_alive": -1}, models=READS),
    **dict.fromkeys(("/api/show", "/api/pull"), _OLLAMA_MODEL),
    **dict.fromkeys(
        ("/api/copy", "/api/create", "/api/push", "/api/blobs/{digest}"), _OLLAMA_MODEL
    ),
    **{
        f"/{version}/models/{{model:path}}:{method}": body
        for version in ("v1", "v1beta")
        for method, body in (
            ("generateContent", _GEMINI),
            ("streamGenerateContent", _GEMINI),
            ("countTokens", _GEMINI),
            ("embedContent", _any_of({"content": _GEMINI_TURN})),
            (
                "batchEmbedContents",
                _any_of({"requests": [{"content": _GEMINI_TURN}]}),
            ),
        )
    },
    "/tokenize": _TOKENIZE,
    "/detokenize": _with_model({"tokens": [5, 6]}, {"tokens": []}, models=COUNTS),
    "/ping": _nothing,
    **dict.fromkeys(("/v1/files", "/v1/audio/transcriptions", "/v1/audio/translations"), _nothing),
    "/v1/audio/speech": _with_model({"input": "a", "voice": "b"}),
    "/v1/messages/batches": _any_of({"requests": [_LINE]}, {"requests": [_LINE, _LINE]}),
    "/v1/messages/batches/{batch}/cancel": _nothing,
    "/v1/batches": _batch,
    "/v1/batches/{batch}/cancel": _nothing,
    "/abort_request": _any_of({"rid": "x"}, {"abort_all": True}),
    "/abort_requests": _any_of({}, {"request_ids": ["x"]}),
    "/dragoman/reload_keys": _nothing,
    "/dragoman/reply": _any_of({"text": "hi"}, [{"say": "hi"}], "hi"),
    "/dragoman/faults": _any_of([], {}, [{"kind": "error", "rate": 0}]),
    "/dragoman/listener": _any_of({"port": 1, "state": "refuse"}, []),
    "/dragoman/simulator": _any_of({"time_scale": 2}, {"time_scale": 0}, {}),
    "/models": _any_of({"model": "t"}, {"model": "t", "stream": True}),
    "/models/load": _any_of({"model": "t"}, {"model": "t", "stream": True}),
    "/models/unload": _any_of({"model": "t"}),
    "/models/pull": _any_of({"model": "t"}, {"model": "t", "stream": True}),
    "/v1/load_lora_adapter": _any_of({"lora_name": "a", "lora_path": "x"}),
    "/v1/unload_lora_adapter": _any_of({"lora_name": "a"}),
    "/pause_generation": _any_of({"mode": "abort"}, {"mode": "retract"}, {}),
    "/update_weight_version": _any_of({"new_version": "v"}, {"weight_version": "v"}),
    **dict.fromkeys(
        (
            *(
                "/sleep",
                "/wake_up",
                "/pause",
                "/resume",
                "/collective_rpc",
                "/reset_prefix_cache",
                "/flush_cache",
            ),
            *(
                "/init_weight_transfer_engine",
                "/shutdown_weight_transfer_engine",
                "/start_weight_update",
            ),
            *(
                "/update_weights",
                "/finish_weight_update",
                "/update_weights_from_disk",
                "/update_weights_from_tensor",
            ),
            *(
                "/update_weights_from_distributed",
                "/update_weights_from_ipc",
                "/init_weights_update_group",
            ),
            *(
                "/destroy_weights_update_group",
                "/continue_generation",
                "/release_memory_occupation",
            ),
            "/resume_memory_occupation",
        ),
        _ORDERS,
    ),
}
GETS = (
    *(
        "/v1/chat/completions",
        "/v1/chat/completions/{id}",
        "/v1/chat/completions/{id}/messages",
        "/v1/responses/{id}",
    ),
    *(
        "/v1/responses/{id}/input_items",
        "/v1/conversations/{id}",
        "/v1/conversations/{id}/items",
        "/weight_info",
        "/info",
        "/props",
        "/slots",
        "/api/v0/models",
        "/api/v1/models",
        "/api/v0/models/{model:path}",
    ),
    *(
        "/v1/conversations/{id}/items/{item}",
        "/tokenizer_info",
        "/load",
        "/v1/loads",
        "/get_world_size",
        "/server_info",
        "/model_info",
    ),
    *(
        "/health_generate",
        "/get_model_info",
        "/get_weight_version",
        "/flush_cache",
        "/",
        "/v1/models",
        "/models",
        "/models/sse",
        "/health",
        "/ping",
        "/livez",
        "/readyz",
        "/healthz",
    ),
    *(
        "/v1/models/{model:path}",
        "/version",
        "/v1/files",
        "/v1/files/{file}",
        "/v1/files/{file}/content",
        "/metrics",
    ),
    *(
        "/v1/messages/batches",
        "/v1/messages/batches/{batch}",
        "/v1/messages/batches/{batch}/results",
        "/is_sleeping",
    ),
    *("/api/tags", "/api/ps", "/api/version"),
    *("/v1beta/models", "/v1beta/models/{model:path}"),
    *("/is_paused", "/dragoman/faults", "/dragoman/listener", "/v1/batches", "/v1/batches/{batch}"),
    *("/dragoman/requests", "/dragoman/simulator", "/ui", "/ui/{file}"),
    *("/openapi.json", "/docs", "/docs/viewer.js", "/docs/viewer.css", "/docs/icon.svg"),
    *("/v1/organization/usage/completions", "/v1/organization/usage/embeddings"),
    *("/v1/organization/usage/audio_transcriptions", "/v1/realtime"),
)
ENDLESS = ("/models/sse",)
"""Streams that end only when the client disconnects."""
DELETES = (
    *(
        "/v1/chat/completions/{id}",
        "/v1/responses/{id}",
        "/v1/conversations/{id}",
        "/v1/conversations/{id}/items/{item}",
    ),
    *("/v1/files/{file}", "/v1/messages/batches/{batch}", "/models"),
)
PUTS = {
    "/generate": _SGLANG,
    "/dragoman/faults": POSTS["/dragoman/faults"],
    "/dragoman/listener": POSTS["/dragoman/listener"],
    "/dragoman/simulator": POSTS["/dragoman/simulator"],
}

SKETCHES: dict[tuple[str, str], Body] = {
    **{("POST", route): body for route, body in POSTS.items()},
    **{("PUT", route): body for route, body in PUTS.items()},
    **{("GET", route): _nothing for route in GETS},
    **{("DELETE", route): _nothing for route in DELETES},
    ("DELETE", "/api/delete"): _OLLAMA_MODEL,
}
BUSY = tuple(
    ("POST", route)
    for route in (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/generate",
        "/generate_stream",
        "/api/chat",
        "/api/generate",
    )
)
"""The routes with the most parameters, which get half of all requests."""
_FIELDS = sorted({name for known in examples.DIALECTS.values() for name in known.examples})
WORDS = [
    *_FIELDS,
    "type",
    "role",
    "content",
    "id",
    "name",
    "text",
    "function",
    "arguments",
    "schema",
    "tool_calls",
    "input",
]
QUERIES = (
    *(
        b"",
        b"",
        b"",
        b"limit=1",
        b"limit=-1",
        b"limit=x&order=desc",
        b"after=x",
        b"stream=true",
        b"starting_after=1",
    ),
    *(
        b"stream=true&starting_after=0",
        b"include=x",
        b"model=t",
        b"model=none",
        b"mode=wait",
        b"level=0",
        b"level=9",
    ),
    *(b"%", b"a=%ff", b"limit=" + b"9" * 30, b"\xff=\xfe", b"stream=1&stream=0", b"order=sideways"),
)
HEADERS: tuple[dict[str, str], ...] = (
    *({"x-request-id": "a" * 200}, {"x-request-id": "mine"}, {"x-dragoman-timeout": "20"}),
    *(
        {"x-dragoman-timeout": "nan"},
        {"x-dragoman-reply": '{"text": "x"}'},
        {"x-dragoman-reply": "{"},
        {"accept": "text/html"},
    ),
    *(
        {"x-data-parallel-rank": "1"},
        {"x-cache-threshold-finish-reason": "true"},
        {"authorization": "Bearer x"},
        {"content-type": "text/plain"},
        {"content-encoding": "gzip"},
    ),
    *(
        {"content-encoding": "br, gzip"},
        {"idempotency-key": "x"},
        {"anthropic-beta": "x"},
        {"content-length": "99999999999"},
    ),
)


def draw_request(random: Random, state: State) -> Request:
    """Draw the next request: valid, with a mutated body, or with damaged bytes."""
    method, route = random.choice(BUSY) if random.random() < 0.5 else random.choice(list(SKETCHES))
    body = SKETCHES[method, route](random, state)
    headers = {
        "content-type": "application/json",
        **(random.choice(HEADERS) if random.random() < 0.25 else {}),
    }
    fate = random.random()
    if fate < 0.5 and body is not None:
        body = mutate(random, body, words=WORDS)
    data = b"" if body is None else encode(body)
    if fate > 0.92:
        data = damage(random, data)
    if method == "POST" and route in FORMS:
        headers["content-type"], data = _upload(random, data, FORMS[route](random))
    if route.startswith(("/v1/messages", "/v1/files")) and random.random() < 0.7:
        headers["anthropic-version"] = "2023-06-01"
    leave = random.randrange(5) if random.random() < 0.06 or route in ENDLESS else None
    return Request(
        _method(random, method),
        route,
        _path(random, route, state),
        data,
        headers,
        random.choice(QUERIES),
        leave,
    )


def _method(random: Random, method: str) -> str:
    if random.random() > 0.02:
        return method
    return random.choice(("HEAD", "PATCH", "OPTIONS", "DELETE", "TRACE", "get", "POST"))


def _path(random: Random, route: str, state: State) -> str:
    """Fill the path's parameters with ids of existing objects of its collection."""
    collection = route.partition("/{")[0]
    path = route.replace("{model:path}", random.choice(("t", "s", "a/b", "none")))
    for name in ("{id}", "{file}", "{batch}", "{item}", "{digest}"):
        if name in path:
            path = path.replace(name, state.pick(random, collection))
    return path + "/" if random.random() < 0.01 else path


def _draw_speech_fields(random: Random) -> dict[str, str]:
    fields = {
        "response_format": random.choice(("json", "srt", "verbose_json", "x")),
        "temperature": random.choice(("0", "0.5", "-1", "nan")),
        "include[]": "logprobs",
        "stream": random.choice(("true", "x", "")),
    }
    names = random.sample(sorted(fields), random.randrange(4))
    return {"model": random.choice(MODELS), **{name: fields[name] for name in names}}


FORMS: dict[str, Callable[[Random], dict[str, str]]] = {
    "/v1/files": lambda _: {"purpose": "batch"},
    "/v1/audio/transcriptions": _draw_speech_fields,
    "/v1/audio/translations": _draw_speech_fields,
}
"""The fields of each form besides the file."""


def _upload(random: Random, noise: bytes, fields: dict[str, str]) -> tuple[str, bytes]:
    line = json.dumps(
        {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "s", "messages": HELLO},
        }
    )
    content = random.choice((line.encode() + b"\n", noise, b"", b"\xff\xfe"))
    texts = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in fields.items()
    ]
    form = (
        "".join(texts).encode()
        + b'--b\r\nContent-Disposition: form-data; name="file"; filename="../a.jsonl"\r\n\r\n'
        + content
        + b"\r\n--b--\r\n"
    )
    if random.random() < 0.3:
        form = damage(random, form)
    return random.choice(
        (
            "multipart/form-data; boundary=b",
            "multipart/form-data; boundary=b",
            "multipart/form-data",
        )
    ), form
