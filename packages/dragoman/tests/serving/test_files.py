"""OpenAI's files, with the official SDK."""

from __future__ import annotations

import gc

import openai
import pytest
from tests.serving.background_server import run_background_server
from tests.serving.harness import FixedClock, build_server

from dragoman.serving.serving_options import ServingOptions
from dragoman.store import Bounds, MemoryStore

CONTENT = b'{"custom_id": "a"}\n' * 100_000


async def test_file_upload_retrieve_download_round_trips():
    async with run_background_server() as server:
        client = server.openai()
        file = await client.files.create(file=("x.jsonl", CONTENT), purpose="batch")
        assert (file.object, file.bytes, file.filename, file.purpose) == (
            "file",
            len(CONTENT),
            "x.jsonl",
            "batch",
        )
        assert file.status == "processed"
        assert file.expires_at == file.created_at + 30 * 86400
        assert await client.files.retrieve(file.id) == file
        answer = await client.files.content(file.id)
        assert answer.content == CONTENT
        assert answer.response.headers["content-length"] == str(len(CONTENT))
        assert answer.response.headers["content-type"] == "application/octet-stream"


async def test_files_list_filters_by_purpose_and_paginates():
    async with run_background_server() as server:
        client = server.openai()
        ids = [
            await client.files.create(
                file=(f"{number}", b"x"), purpose=("batch", "user_data")[number % 2]
            )
            for number in range(5)
        ]
        assert [file.id async for file in client.files.list()] == [
            file.id for file in reversed(ids)
        ]
        assert [file.id async for file in client.files.list(purpose="user_data", limit=1)] == [
            ids[3].id,
            ids[1].id,
        ]
        page = await client.files.list(order="asc", limit=2, after=ids[0].id)
        assert ([file.id for file in page.data], page.has_more) == ([ids[1].id, ids[2].id], True)


async def test_file_delete_then_access_returns_404():
    async with run_background_server() as server:
        client = server.openai()
        file = await client.files.create(file=b"x", purpose="user_data")
        deleted = await client.files.delete(file.id)
        assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
        for ask in (client.files.delete, client.files.retrieve, client.files.content):
            with pytest.raises(openai.NotFoundError, match="No such File object"):
                await ask(file.id)


async def test_file_of_other_key_returns_404():
    async with run_background_server(options=ServingOptions(api_key=("a", "b"))) as server:
        file = await server.openai("a").files.create(file=b"x", purpose="user_data")
        other = server.openai("b")
        assert (await other.files.list()).data == []
        for ask in (other.files.delete, other.files.retrieve, other.files.content):
            with pytest.raises(openai.NotFoundError):
                await ask(file.id)
        assert (await server.openai("a").files.content(file.id)).content == b"x"


async def test_file_expires_after_sets_expires_at():
    async with run_background_server() as server:
        file = await server.openai().files.create(
            file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert file.expires_at == file.created_at + 3600
        with pytest.raises(openai.BadRequestError, match="expected from 3600"):
            await server.openai().files.create(
                file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 5}
            )


async def test_files_of_one_key_leave_share_of_other():
    store = MemoryStore(Bounds(nbytes=20_000_000), now=FixedClock().now)
    options = ServingOptions(api_key=("a", "b"))
    async with run_background_server(store=store, options=options) as server:
        flood = server.openai("b")
        for _ in range(2):
            await flood.files.create(file=b"x" * 3_000_000, purpose="user_data")
        with pytest.raises(openai.APIStatusError, match="space for") as refused:
            await flood.files.create(file=b"x" * 3_000_000, purpose="user_data")
        assert refused.value.status_code == 413
        # Half of the bytes are for files, and half of these are shared out: 2.5 MB each.
        for _ in range(2):
            await server.openai("a").files.create(file=b"x" * 1_200_000, purpose="user_data")


@pytest.mark.parametrize("seconds", ["000000003600" + "9" * 9, "000000003600" + "0" * 5000, "٣٦٠٠"])
@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}])
async def test_file_upload_malformed_numbers_return_400(seconds: str, headers: dict[str, str]):
    fields = {
        "purpose": "batch",
        "expires_after[anchor]": "created_at",
        "expires_after[seconds]": seconds,
        "expires_in_seconds": seconds,
    }
    async with run_background_server() as server, server.http() as http:
        answer = await http.post(
            "/v1/files", files={"file": ("a", b"x")}, data=fields, headers=headers
        )
        listed = await http.get(f"/v1/files?limit=000010{'0' * 5000}", headers=headers)
    assert answer.status_code == 400
    assert listed.status_code == 400


async def test_file_upload_too_large_returns_413_and_stores_none():
    store = MemoryStore(now=FixedClock().now)
    async with run_background_server(
        store=store, options=ServingOptions(max_file_bytes=10_000)
    ) as server:
        with pytest.raises(openai.APIStatusError) as caught:
            await server.openai().files.create(file=b"x" * 20_000, purpose="user_data")
        assert caught.value.status_code == 413
        assert await store.load_page("", "file") == ()


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"{}", 415),
        ("multipart/form-data", b"", 400),
        ("multipart/form-data; boundary=x", b"--x\r\nnonsense", 400),
        ("multipart/form-data; boundary=x", b"--x--\r\n", 400),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\ncontent-disposition: form-data; name="file"\r\n\r\nx\r\n--x--',
            400,
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n--x--',
            400,
        ),
    ],
)
async def test_file_upload_invalid_form_returns_400(kind: str, body: bytes, status: int):
    async with run_background_server() as server, server.http() as client:
        answer = await client.post("/v1/files", content=body, headers={"content-type": kind})
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_file_upload_truncated_form_closes_temporary_file():
    """Found by the fuzzer: the file of the last part stayed open until garbage
    collection (a ResourceWarning).
    """
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nsome text\r\n-'
    async with run_background_server() as server, server.http() as client:
        kind = {"content-type": "multipart/form-data; boundary=b"}
        answer = await client.post("/v1/files", content=form, headers=kind)
        assert answer.status_code == 400
    gc.collect()


async def test_files_list_without_store_returns_400():
    with pytest.raises(openai.BadRequestError, match="requires a store"):
        await build_server().openai().files.list()
