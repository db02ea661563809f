"""Reloads: changed settings, invalid files, and TLS certificates."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import httpx2
import pytest
import yaml
from tests.launch.test_process import server, stop
from tests.serving.responses.harness import lifespan

from dragoman.launch.configured_models import build_models
from dragoman.launch.reload import Reloader
from dragoman.launch.server_assembly import build_application
from dragoman.launch.tls import build_tls_context
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError, load_settings
from dragoman.tenants import KeyHash, Tenant, edit_key_file, hash_key
from tests.certificates import write_certificate
from tests.loopback import MAX_POLLS, POLL_SECONDS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "dragoman.yaml"


@pytest.fixture(autouse=True)
def log_level() -> Generator[None]:
    """Restore the root logger's level, which a reload changes."""
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


def write(file: Path, **settings: object) -> None:
    file.write_text(yaml.safe_dump({"store": "none", **settings}))


@asynccontextmanager
async def running(file: Path) -> AsyncGenerator[tuple[Reloader, httpx2.AsyncClient]]:
    def read() -> Settings:
        return load_settings({"config": str(file)}, {})

    settings = read()
    clock = SystemClock()
    models = build_models(settings, clock)
    app = build_application(settings, models, b"x" * 32, None)
    transport = httpx2.ASGITransport(app)
    async with (
        lifespan(app),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield Reloader(settings, app, models, clock, build_tls_context(settings), read), client


async def list_names(client: httpx2.AsyncClient) -> list[str]:
    return [model["id"] for model in (await client.get("/v1/models")).json()["data"]]


async def until(condition: Callable[[], bool]) -> None:
    """Poll: models are loaded in threads, and unloaded at the next poll."""
    for _ in range(MAX_POLLS):
        if condition():
            return
        await asyncio.sleep(POLL_SECONDS)
    raise AssertionError


async def ask(client: httpx2.AsyncClient, model: str, key: str = "none") -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"authorization": f"Bearer {key}"}
    return (await client.post("/v1/chat/completions", json=body, headers=headers)).status_code


async def test_reload_adds_and_removes_models(file: Path) -> None:
    write(file, models={"a": {"model": "scripted"}, "b": {"model": "scripted"}})
    async with running(file) as (reloader, client):
        assert await ask(client, "a") == 200
        slot = reloader.models.find_slot("a")
        write(
            file,
            models={
                "a": {"model": "scripted"},
                "c": {"model": "tiny", "aliases": ["gpt-*"], "pinned": True},
            },
        )
        await reloader.reload()
        assert await list_names(client) == ["a", "c"]
        assert reloader.models.find_slot("a") is slot
        assert await ask(client, "b") == 404
        await until(lambda: not reloader.models.find_slot("c").is_starting)
        assert [await ask(client, name) for name in ("a", "c", "gpt-4o")] == [200, 200, 200]


async def test_reload_removed_model_finishes_requests(file: Path) -> None:
    write(file, models={"a": {"model": "scripted"}, "b": {"model": "scripted"}})
    async with running(file) as (reloader, client):
        await ask(client, "b")
        slot = reloader.models.find_slot("b")
        with slot:
            write(file, models={"a": {"model": "scripted"}})
            await reloader.reload()
            await asyncio.sleep(0)
            assert slot.model is not None
        await until(lambda: slot.model is None)


async def test_reload_with_unservable_model_changes_no_models(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, models={"a": {"model": "scripted"}})
    async with running(file) as (reloader, client):
        write(file, models={"a": {"model": "scripted"}, "b": {"model": "./absent"}})
        await reloader.reload()
        assert await list_names(client) == ["a"]
        assert "models not reloaded: models: b: cannot serve ./absent" in caplog.text
        write(file, models={"a": {"model": "scripted"}, "b": {"model": "scripted"}})
        await reloader.reload()
        assert await list_names(client) == ["a", "b"]


async def test_reload_applies_keys_and_ignores_invalid_key_file(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = file.with_name("keys.yaml")
    edit_key_file(
        keys, lambda tenants: tenants.update(a=Tenant(secrets=(KeyHash(hash_key("one")),)))
    )
    write(file, model="scripted", keys_file=str(keys))
    async with running(file) as (reloader, client):
        assert [await ask(client, "scripted", key) for key in ("one", "two")] == [200, 401]
        edit_key_file(
            keys, lambda tenants: tenants.update(a=Tenant(secrets=(KeyHash(hash_key("two")),)))
        )
        await reloader.reload()
        assert [await ask(client, "scripted", key) for key in ("one", "two")] == [401, 200]
        keys.write_text("keys: [")
        await reloader.reload()
        assert await ask(client, "scripted", "two") == 200
        assert "keys not reloaded: --keys-file" in caplog.text


async def test_reload_applies_log_level_and_names_restart_settings(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, model="scripted")
    async with running(file) as (reloader, _):
        write(file, model="scripted", log_level="error", max_num_seqs=3)
        await reloader.reload()
        assert logging.getLogger().level == logging.ERROR
        assert "need a restart: --max-num-seqs" in caplog.text
        write(file, model="scripted", max_num_seqs="many")
        await reloader.reload()
        assert "settings not reloaded" in caplog.text


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("absent.pem", "a.key", "--ssl-certfile: .*absent.pem does not exist"),
        ("a.pem", "b.key", "key values mismatch"),
        ("a.key", "a.key", "--ssl-certfile"),
        ("locked.pem", "locked.key", "the key is encrypted"),
    ],
)
def test_unusable_certificate_raises_settings_error(
    tmp_path: Path, certificate: str, key: str, message: str
) -> None:
    write_certificate(tmp_path, "a")
    write_certificate(tmp_path, "b")
    write_certificate(tmp_path, "locked", b"secret")
    with pytest.raises(SettingsError, match=message):
        build_tls_context(
            Settings(ssl_certfile=str(tmp_path / certificate), ssl_keyfile=str(tmp_path / key))
        )


def test_certificate_without_key_raises_settings_error() -> None:
    with pytest.raises(SettingsError, match="needs both"):
        load_settings({"ssl_certfile": "a.pem"}, {})


def fetch_name(url: str, folder: Path, name: str) -> str:
    """Return the models, as seen by a client that trusts only the certificate of this
    name.
    """
    context = ssl.create_default_context(cafile=str(folder / f"{name}.pem"))
    with urlopen(url, context=context, timeout=60) as response:
        return response.read().decode()


def test_certificate_reload_keeps_open_https_connections(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_certificate(tmp_path, name)
    shutil.copy(tmp_path / "first.pem", tmp_path / "used.pem")
    shutil.copy(tmp_path / "first.key", tmp_path / "used.key")
    with server(tmp_path, "--ssl-certfile", "used.pem", "--ssl-keyfile", "used.key") as (
        process,
        url,
    ):
        assert url.startswith("https://")
        assert "scripted" in fetch_name(f"{url}/v1/models", tmp_path, "first")
        context = ssl.create_default_context(cafile=str(tmp_path / "first.pem"))
        with httpx2.Client(verify=context, timeout=60) as client:
            body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
            with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
                lines = [line for line in response.iter_lines() if line]
            assert lines[-1] == "data: [DONE]"
            shutil.copy(tmp_path / "second.pem", tmp_path / "used.pem")
            shutil.copy(tmp_path / "second.key", tmp_path / "used.key")
            process.send_signal(signal.SIGHUP)
            assert process.stderr is not None
            while "certificate reloaded" not in process.stderr.readline():
                pass
            # An open connection stays open.
            assert client.get(f"{url}/v1/models").status_code == 200
        assert "scripted" in fetch_name(f"{url}/v1/models", tmp_path, "second")
        code, _ = stop(process)
    assert code == 0


def test_changed_keys_file_under_nohup_is_read_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    edit_key_file(
        keys, lambda tenants: tenants.update(a=Tenant(secrets=(KeyHash(hash_key("one")),)))
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with server(tmp_path, "--keys-file", "keys.yaml") as (process, url):
            edit_key_file(
                keys, lambda tenants: tenants.update(a=Tenant(secrets=(KeyHash(hash_key("two")),)))
            )
            assert process.stderr is not None
            while "keys reloaded: keys.yaml has changed" not in process.stderr.readline():
                pass
            request = Request(f"{url}/v1/models", headers={"authorization": "Bearer one"})
            with pytest.raises(HTTPError, match="401") as raised:
                urlopen(request, timeout=60)
            raised.value.close()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sighup_reloads_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    edit_key_file(
        keys, lambda tenants: tenants.update(a=Tenant(secrets=(KeyHash(hash_key("one")),)))
    )
    with server(tmp_path, "--keys-file", "keys.yaml") as (process, url):
        request = Request(f"{url}/v1/models", headers={"authorization": "Bearer two"})
        with pytest.raises(HTTPError, match="401") as raised:
            urlopen(request, timeout=60)
        raised.value.close()
        edit_key_file(
            keys, lambda tenants: tenants.update(b=Tenant(secrets=(KeyHash(hash_key("two")),)))
        )
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        while "keys reloaded" not in process.stderr.readline():
            pass
        with urlopen(request, timeout=60) as response:
            assert response.status == 200
