"""Re-reading of the keys file: changes, replacements, invalid files, the route."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.datastructures import Headers
from tests.serving.harness import load_tiny_tokenizer
from tests.serving.responses.harness import lifespan

from dragoman.core.errors import AuthenticationError
from dragoman.core.tokenizer import Tokenizer
from dragoman.engines.scripted import ScriptedEngine
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving import key_reloader
from dragoman.serving.app import build_asgi_app
from dragoman.serving.auth import Access, Keyring
from dragoman.serving.key_reloader import KeyReloader, KeysExchange, KeysReport
from dragoman.tenants import KeyFileError, KeyHash, Tenant, edit_key_file, hash_key, load_key_file

NAMES = ("a", "b", "admin")


def write_keys(path: Path, *names: str) -> None:
    """Write a file in which each key is its own name."""

    def edit(tenants: dict[str, Tenant]) -> None:
        tenants.clear()
        for name in names:
            role = "admin" if name == "admin" else "user"
            tenants[name] = Tenant(secrets=(KeyHash(hash_key(name)),), role=role)

    edit_key_file(path, edit)


def list_accepted(keyring: Keyring) -> list[str]:
    accepted: list[str] = []
    for name in NAMES:
        try:
            keyring.authenticate(Headers({"x-api-key": name}), Access.USER)
        except AuthenticationError:
            continue
        accepted.append(name)
    return accepted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_keys(tmp_path / "keys.yaml", "a")
    return tmp_path / "keys.yaml"


@asynccontextmanager
async def watching(path: Path) -> AsyncGenerator[tuple[KeyReloader, Keyring]]:
    """Yield a reloader that has read the file twice, without its timer."""
    keyring = Keyring(tenants=load_key_file(path))
    reloader = KeyReloader(path, keyring)
    try:
        await poll(reloader)
        yield reloader, keyring
    finally:
        await reloader.close()


async def poll(reloader: KeyReloader) -> None:
    for _ in range(2):
        await reloader.poll()


def replace(path: Path) -> None:
    write_keys(path, "b")


def overwrite(path: Path) -> None:
    write_keys(path.with_name("new.yaml"), "b")
    path.write_bytes(path.with_name("new.yaml").read_bytes())


def overwrite_with_same_time(path: Path) -> None:
    before = path.stat()
    overwrite(path)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def restore_older(path: Path) -> None:
    overwrite(path)
    os.utime(path, (1, 1))


@pytest.mark.parametrize("change", [replace, overwrite, overwrite_with_same_time, restore_older])
async def test_poll_changed_file_replaces_keys(path: Path, change: Callable[[Path], None]) -> None:
    async with watching(path) as (reloader, keyring):
        assert list_accepted(keyring) == ["a"]
        change(path)
        await poll(reloader)
        assert list_accepted(keyring) == ["b"]


async def test_poll_swapped_kubernetes_link_replaces_keys(tmp_path: Path) -> None:
    # As the kubelet writes a Secret: file -> ..data/file, ..data -> a folder of the time.
    for number, name in enumerate(("a", "b")):
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        write_keys(folder / "keys.yaml", name)
    (tmp_path / "..data").symlink_to("..0")
    path = tmp_path / "keys.yaml"
    path.symlink_to("..data/keys.yaml")
    async with watching(path) as (reloader, keyring):
        (tmp_path / "..data_tmp").symlink_to("..1")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        await poll(reloader)
        assert list_accepted(keyring) == ["b"]


async def test_poll_half_written_file_waits_for_next(path: Path) -> None:
    async with watching(path) as (reloader, keyring):
        empty(path)
        await reloader.poll()
        assert list_accepted(keyring) == ["a"]
        overwrite(path)
        await reloader.poll()
        assert list_accepted(keyring) == ["a"]
        await reloader.poll()
        assert list_accepted(keyring) == ["b"]


def empty(path: Path) -> None:
    path.write_bytes(b"")


def add_comment(path: Path) -> None:
    path.write_text(path.read_text() + "# a comment\n")


def repair(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    write_keys(path, "a", "b")


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_text("keys: [")


def add_unknown_field(path: Path) -> None:
    path.write_text("keys: {a: {limit: 5}}")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [remove, truncate, add_unknown_field, make_folder])
async def test_poll_unusable_file_keeps_keys_and_logs_once(
    path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with watching(path) as (reloader, keyring):
        damage(path)
        for _ in range(5):
            await poll(reloader)
        assert list_accepted(keyring) == ["a"]
        (record,) = [item for item in caplog.records if item.levelno >= logging.ERROR]
        assert "keys not reloaded, the former ones stay valid" in record.message
        assert str(path) in record.message
        repair(path)
        await poll(reloader)
        assert list_accepted(keyring) == ["a", "b"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/self/fd")
async def test_poll_deleted_mounted_file_is_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A descriptor, like a bind mount, leads to the file that was there before.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        async with watching(Path(f"/proc/self/fd/{descriptor}")) as (reloader, keyring):
            write_keys(path, "b")
            await poll(reloader)
            await poll(reloader)
            assert list_accepted(keyring) == ["a"]
    finally:
        os.close(descriptor)
    (record,) = caplog.records
    assert "mount its folder" in record.message


async def test_poll_unchanged_file_logs_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with watching(path) as (reloader, _):
        add_comment(path)
        await poll(reloader)
        await reloader.reload()
        await poll(reloader)
    assert not caplog.records


async def test_reload_other_file_is_watched_when_valid(path: Path) -> None:
    other = path.with_name("other.yaml")
    async with watching(path) as (reloader, keyring):
        with pytest.raises(KeyFileError, match=r"other\.yaml: No such file"):
            await reloader.reload(other)
        write_keys(other, "b")
        await reloader.reload(other)
        assert list_accepted(keyring) == ["b"]
        write_keys(other, "a", "b")
        await poll(reloader)
        assert list_accepted(keyring) == ["a", "b"]


class FixedExchange:
    """Reports what it was created with."""

    def __init__(self, report: KeysReport | ConnectionError) -> None:
        self._report = report

    async def reload_keys(self) -> KeysReport:
        if isinstance(self._report, ConnectionError):
            raise self._report
        return self._report


@asynccontextmanager
async def serving(
    path: Path | None, exchange: KeysExchange | None = None, backend: EventBackend | None = None
) -> AsyncGenerator[Callable[..., Any]]:
    tenants = None if path is None else load_key_file(path)
    tokenizer = load_tiny_tokenizer()
    backend = backend or EventBackend(ScriptedEngine(tokenizer=tokenizer), tokenizer)
    models = Models([ServedModel("m", backend, 4096, 0)])
    app = build_asgi_app(models, tenants=tenants, keys_file=path, keys_exchange=exchange)
    transport: Any = httpx2.ASGITransport(app)
    async with (
        lifespan(app),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):

        async def post(key: str = "admin") -> tuple[int, Any]:
            headers = {"authorization": f"Bearer {key}"}
            response = await client.post("/dragoman/reload_keys", headers=headers)
            return response.status_code, response.json()

        yield post


async def test_reload_route_uses_keys_at_once(path: Path) -> None:
    write_keys(path, "a", "admin")
    async with serving(path) as post:
        assert (await post("a"))[0] == 403
        write_keys(path, "b", "admin")
        assert await post() == (200, {"processes": 1})
        assert [(await post(key))[0] for key in ("a", "b")] == [401, 403]


async def test_reload_route_invalid_file_keeps_keys(path: Path) -> None:
    write_keys(path, "admin")
    async with serving(path) as post:
        truncate(path)
        status, body = await post()
        assert (status, body["error"]["code"]) == (409, "invalid_keys_file")
        assert f"the former ones stay valid: {path}" in body["error"]["message"]
        assert (await post())[0] == 409


async def test_reload_route_without_keys_file_returns_400() -> None:
    async with serving(None) as post:
        status, body = await post()
    assert status == 400
    assert "--keys-file" in body["error"]["message"]


@pytest.mark.parametrize(
    ("report", "status", "words"),
    [
        (KeysReport(processes=3), 200, ()),
        (KeysReport(processes=1, problem="k.yaml: keys.a: wrong"), 409, ("k.yaml: keys.a",)),
        (KeysReport(processes=1, late=("worker 1",)), 503, ("worker 1",)),
        (ConnectionError("the supervisor has died"), 503, ("the supervisor has died",)),
    ],
)
async def test_reload_route_reports_other_processes(
    path: Path, report: KeysReport | ConnectionError, status: int, words: Sequence[str]
) -> None:
    write_keys(path, "admin")
    async with serving(path, FixedExchange(report)) as post:
        found, body = await post()
    assert found == status
    if status == 200:
        assert body == {"processes": 3}
    else:
        assert all(word in body["error"]["message"] for word in words)


class SlowEngine(ScriptedEngine):
    """An engine whose start takes long enough for a change of the keys.

    change: makes the change.
    """

    def __init__(self, tokenizer: Tokenizer, change: Callable[[], None]) -> None:
        super().__init__(tokenizer=tokenizer)
        self._change = change

    async def start(self) -> None:
        await super().start()
        self._change()


async def test_key_revoked_during_start_is_never_accepted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_reloader, "POLL_INTERVAL", 3600)
    write_keys(path, "a", "admin")
    tokenizer = load_tiny_tokenizer()
    engine = SlowEngine(tokenizer, lambda: write_keys(path, "admin"))
    async with serving(path, backend=EventBackend(engine, tokenizer)) as post:
        # 403 would be the answer to a valid key without the role.
        assert (await post("a"))[0] == 401
        assert (await post())[0] == 200


async def test_watch_continues_after_unexpected_error(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_reloader, "POLL_INTERVAL", 0.0)
    keyring = BrokenKeyring(tenants=load_key_file(path))
    reloader = KeyReloader(path, keyring)
    await reloader.open()
    keyring.is_broken = True
    try:
        write_keys(path, "a", "b")
        await wait_until(lambda: "could not be checked" in caplog.text)
        keyring.is_broken = False
        write_keys(path, "b")
        await wait_until(lambda: list_accepted(keyring) == ["b"])
    finally:
        await reloader.close()


class BrokenKeyring(Keyring):
    """A keyring that can fail."""

    is_broken = False

    @property
    def named_tenants(self) -> Mapping[str, Tenant]:
        if self.is_broken:
            raise RuntimeError("broken")
        return super().named_tenants


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a thread reads the file
            await asyncio.sleep(0)


def replace_text(path: Path, text: str) -> None:
    path.write_text(text)


async def test_refresh_of_old_change_uses_keys_at_once(path: Path) -> None:
    keyring = Keyring(tenants=load_key_file(path))
    later = os.stat(path).st_mtime + 3600
    reloader = KeyReloader(path, keyring, now=lambda: later)
    try:
        write_keys(path, "b")
        await asyncio.gather(*(reloader.refresh() for _ in range(5)))
        assert list_accepted(keyring) == ["b"]
    finally:
        await reloader.close()


async def test_refresh_during_write_waits_until_file_settles(path: Path) -> None:
    keyring = Keyring(tenants=load_key_file(path))
    write_keys(path, "b")
    written = os.stat(path).st_mtime_ns / 1e9
    seconds = 0.0
    reloader = KeyReloader(path, keyring, now=lambda: written + seconds, monotonic=lambda: seconds)
    try:
        await reloader.refresh()
        assert list_accepted(keyring) == ["a"]
        seconds = key_reloader.SETTLE_TIME + key_reloader.CHECK_INTERVAL
        await reloader.refresh()
        assert list_accepted(keyring) == ["b"]
    finally:
        await reloader.close()


async def test_refresh_of_invalid_file_keeps_former_keys(path: Path) -> None:
    keyring = Keyring(tenants=load_key_file(path))
    replace_text(path, "{")
    later = os.stat(path).st_mtime + 3600
    reloader = KeyReloader(path, keyring, now=lambda: later)
    try:
        await reloader.refresh()
        assert list_accepted(keyring) == ["a"]
        os.unlink(path)
        await reloader.refresh()
        assert list_accepted(keyring) == ["a"]
    finally:
        await reloader.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
async def test_refresh_of_hanging_file_system_keeps_former_keys(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keyring = Keyring(tenants=load_key_file(path))
    write_keys(path, "b")
    content = await asyncio.to_thread(path.read_bytes)
    os.unlink(path)
    # Opening it blocks until it has a writer.
    os.mkfifo(path)
    later = os.stat(path).st_mtime + 3600
    reloader = KeyReloader(path, keyring, now=lambda: later, check_timeout=0.05)
    try:
        await asyncio.gather(*(reloader.refresh() for _ in range(5)))
        await reloader.refresh()
        assert list_accepted(keyring) == ["a"]
        assert caplog.text.count("its file system does not respond") == 1
        await asyncio.to_thread(path.write_bytes, content)
        while "can be checked again" not in caplog.text:
            await reloader.refresh()
            await asyncio.sleep(0)
        assert list_accepted(keyring) == ["b"]
    finally:
        await reloader.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
async def test_reload_of_hanging_file_system_ends_in_error(path: Path, tmp_path: Path) -> None:
    keyring = Keyring(tenants=load_key_file(path))
    changed = tmp_path / "changed.yaml"
    write_keys(changed, "b")
    os.unlink(path)
    # Opening it blocks until it has a writer.
    os.mkfifo(path)
    reloader = KeyReloader(path, keyring, reload_timeout=0.05)
    poll = asyncio.create_task(reloader.poll())
    try:
        # The second one waits for the poll.
        for _ in range(2):
            with pytest.raises(KeyFileError, match="file system does not respond within"):
                await reloader.reload()
        assert list_accepted(keyring) == ["a"]
        while not poll.done():
            # An error until the poll's thread opens it.
            with suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            await asyncio.sleep(0)
        os.replace(changed, path)
        while list_accepted(keyring) != ["b"]:
            # A busy machine may need more than 50 ms.
            with suppress(KeyFileError):
                await reloader.reload()
    finally:
        poll.cancel()
        await reloader.close()
