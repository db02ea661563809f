"""The public API of `import dragoman`, and its import cost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.routing import Mount

import dragoman
from dragoman.settings import Settings
from tests.project import public_api_example

HEAVY = (
    "anyio",
    "httpx2",
    "jinja2",
    "jsonschema_rs",
    "llguidance",
    "msgspec",
    "numpy",
    "prometheus_client",
    "starlette",
    "tokenizers",
    "torch",
    "transformers",
    "click",
    "uvicorn",
    "vllm",
)
BEFORE_SERVING = frozenset({"click", "msgspec"})
"""Packages that the command needs to show its help."""


def list_imported(program: str) -> set[str]:
    """Return the heavy modules that a new process imports for this program."""
    script = f"{program}\nimport sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_package_import_loads_no_other_modules():
    assert list_imported("import dragoman; dir(dragoman); dragoman.__version__; print()") == set()


def test_cli_help_imports_no_server_or_engine():
    program = (
        "import sys; sys.argv = ['dragoman', '--help']\n"
        "from dragoman_cli.main import main\n"
        "try: main()\nexcept SystemExit: pass"
    )
    assert list_imported(program) <= BEFORE_SERVING


def test_public_names_are_all_accessible():
    assert set(dragoman.__all__) <= set(dir(dragoman))
    for name in dragoman.__all__:
        assert getattr(dragoman, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'create_ap'"):
        _ = dragoman.create_ap  # pyright: ignore


def test_type_checking_block_lists_all_lazy_imports():
    """The names are listed twice: in the TYPE_CHECKING block and in the lazy import."""
    source = Path(dragoman.__file__).read_text()
    block = source[source.index("if TYPE_CHECKING:") : source.index("_MODULES =")]
    for name, module in vars(dragoman)["_MODULES"].items():
        line = block[block.index(f"from .{module} import") :]
        assert (
            name
            in line[: line.find("from .", 1) if "from ." in line[1:] else None]
            .replace(",", " ")
            .split()
        ), name


def test_package_contains_py_typed():
    assert (Path(dragoman.__file__).parent / "py.typed").exists()


@pytest_asyncio.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    """Yield a client of the example, mounted in another application."""
    app = public_api_example.build_app(dragoman.find_bundled_model())
    outer = Starlette(routes=[Mount("/llm", app)], lifespan=app.lifespan)
    async with (
        outer.router.lifespan_context(outer),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(outer), base_url="http://localhost"
        ) as http,
    ):
        yield http


async def post(client: httpx2.AsyncClient, path: str, **fields: Any) -> dict[str, Any]:
    reply = await client.post(
        path, json={"messages": [{"role": "user", "content": "a word"}], **fields}
    )
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_event_engine_is_served_below_prefix(client: httpx2.AsyncClient):
    models = (await client.get("/llm/v1/models")).json()["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [
        ("shouter", 1000),
        ("dice", 2048),
    ]
    reply = await post(client, "/llm/v1/chat/completions", model="shouter", n=2)
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["A WORD ", "A WORD "]
    message = await post(client, "/llm/v1/messages", model="shouter", max_tokens=5)
    assert message["content"] == [{"type": "text", "text": "A WORD "}]
    missing = await client.get("/llm/nothing")
    assert missing.status_code == 404
    assert "/llm" not in missing.json()["error"]["message"]


async def test_token_engine_with_tokenizer_is_served(client: httpx2.AsyncClient):
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    reply = await post(
        client, "/llm/v1/chat/completions", model="dice", response_format=form, n=2, max_tokens=300
    )
    assert len(reply["choices"]) == 2
    for choice in reply["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema_rs.validate(schema, json.loads(choice["message"]["content"]))
    tool = {"type": "function", "function": {"name": "tell", "parameters": schema, "strict": True}}
    called = await post(
        client, "/llm/v1/chat/completions", model="dice", tools=[tool], tool_choice="required"
    )
    calls = called["choices"][0]["message"]["tool_calls"]
    assert calls
    assert {call["function"]["name"] for call in calls} == {"tell"}
    plain = await post(
        client, "/llm/v1/chat/completions", model="dice", max_tokens=3, return_token_ids=True
    )
    assert plain["usage"]["completion_tokens"] == 3


async def test_app_without_lifespan_returns_500_with_hint():
    app = dragoman.create_app(engines={"shouter": public_api_example.Shouter()}, store="none")
    outer = Starlette(routes=[Mount("/llm", app)])
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(outer), base_url="http://localhost"
    ) as client:
        for path, status in (
            ("/v1/chat/completions", 500),
            ("/v1/messages", 500),
            ("/health", 500),
        ):
            reply = await client.post(f"/llm{path}", json={})
            assert reply.status_code == status
            assert "lifespan=app.lifespan" in reply.json()["error"]["message"]
            # A configuration error: SDKs should not repeat the request.
            assert reply.headers["x-should-retry"] == "false"
            assert "retry-after" not in reply.headers
        async with app.lifespan():
            assert (await client.get("/llm/health")).status_code == 200
            with pytest.raises(RuntimeError, match="is already running"):
                async with app.lifespan():
                    pass
        assert (await client.get("/llm/health")).status_code == 500


async def test_embedded_model_app_serves_requests():
    app = dragoman.create_app(
        model="tiny", store="memory", max_model_len=512, served_model_name=["small"]
    )
    async with (
        app.lifespan(),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://localhost"
        ) as client,
    ):
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "small"
        reply = await post(client, "/v1/chat/completions", temperature=0, max_tokens=3)
        assert reply["usage"]["completion_tokens"] == 3


class Half:
    def add(self) -> None: ...

    def abort(self) -> None: ...


class Awaited(public_api_example.Shouter):
    async def generate(self, request: object) -> Any:  # pyright: ignore
        return request


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modle": "tiny"}, "modle: unknown setting. Did you mean model"),
        ({"max_model_len": -1}, "max_model_len: must"),
        ({"model": "nothing-here"}, "unknown engine or model"),
        ({"model": "tiny", "engines": {"a": Half()}}, "set either engines or the settings"),
        ({"engines": {}}, "at least one engine"),
        (
            {"engines": {"a": public_api_example.Shouter}},
            "engines: a: the class Shouter instead of an instance",
        ),
        (
            {"engines": {"a": Half()}},
            "Half lacks `capabilities`, `start`, `stop`, `health`, `tokenizer`",
        ),
        ({"engines": {"a": Awaited()}}, "must be an async generator"),
        (
            {"engines": {"a": public_api_example.Dice("/nothing", 9)}},
            "a directory with a tokenizer.json",
        ),
        ({"engines": {"a": object()}}, "it must be an Engine, a TokenEngine with a `tokenizer`"),
        (
            {"engines": {"a": public_api_example.Shouter()}, "max_model_len": 1001},
            "exceeds the engine's context",
        ),
    ],
)
def test_create_app_invalid_argument_raises_settings_error(options: dict[str, Any], words: str):
    with pytest.raises(dragoman.SettingsError, match=words):
        dragoman.create_app(store="none", **options)


def test_example_translates_between_dialects():
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello there"}]}
    done = subprocess.run(
        [sys.executable, public_api_example.__file__],
        input=json.dumps(body).encode(),
        capture_output=True,
        check=True,
    )
    reply = json.loads(done.stdout)
    assert reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"]["content"] == "HELLO THERE "
    assert reply["usage"]["total_tokens"] == 4


def test_example_factory_returns_engine():
    assert isinstance(public_api_example.create("", Settings()), dragoman.Engine)
