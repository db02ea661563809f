"""Anthropic's files, with the official SDK: the same files as OpenAI's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import anthropic
import pytest
from tests.serving.background_server import run_background_server
from tests.serving.harness import build_server
from tests.serving.test_message_batches import sdk

VERSION = {"anthropic-version": "2023-06-01"}
NOW = datetime.fromtimestamp(1_700_000_000, UTC)


async def test_anthropic_file_upload_retrieve_download_delete():
    async with run_background_server() as server:
        files = sdk(server).files
        file = await files.upload(
            file=("notes/a.txt", b"hello", "text/markdown"), expires_in_seconds=7200
        )
        assert (file.type, file.filename, file.mime_type, file.size_bytes) == (
            "file",
            "a.txt",
            "text/markdown",
            5,
        )
        assert (file.created_at, file.expires_at) == (
            NOW,
            datetime.fromtimestamp(1_700_007_200, UTC),
        )
        assert await files.retrieve_metadata(file.id) == file
        assert await (await files.download(file.id)).read() == b"hello"
        deleted = await files.delete(file.id)
        assert (deleted.id, deleted.type) == (file.id, "file_deleted")
        for ask in (files.retrieve_metadata, files.download, files.delete):
            with pytest.raises(anthropic.NotFoundError, match="No such File object"):
                await ask(file.id)


async def test_anthropic_files_list_newest_first():
    async with run_background_server() as server:
        files = sdk(server).files
        ids = [(await files.upload(file=(f"{number}.txt", b"x"))).id for number in range(5)]
        assert [file.id async for file in files.list(limit=2)] == ids[::-1]
        assert [file.id for file in (await files.list(ids=[ids[3], "file_none", ids[1]])).data] == [
            ids[3],
            ids[1],
        ]
        older = (await server.get(f"/v1/files?limit=2&after_id={ids[3]}", VERSION)).json()
        assert (
            [file["id"] for file in older["data"]]
            == [older["first_id"], older["last_id"]]
            == [ids[2], ids[1]]
        )
        newer = (await server.get(f"/v1/files?limit=2&before_id={ids[1]}", VERSION)).json()
        assert ([file["id"] for file in newer["data"]], newer["has_more"]) == (
            [ids[3], ids[2]],
            True,
        )


async def test_files_shared_between_openai_and_anthropic_sdks():
    async with run_background_server(engine_options={"directives": True}) as server:
        theirs = sdk(server)
        ours = server.openai()
        uploaded = await theirs.files.upload(file=("a", b"hello", "text/plain"))
        other = await ours.files.create(file=("b.pdf", b"%PDF"), purpose="user_data")
        assert [file.id async for file in ours.files.list()] == [other.id, uploaded.id]
        assert (await theirs.files.retrieve_metadata(other.id)).mime_type == "application/pdf"
        assert (await ours.files.content(uploaded.id)).content == b"hello"


async def test_file_name_with_invalid_url_is_listed():
    async with run_background_server() as server:
        file = await server.openai().files.create(
            file=("http://[x/a.pdf", b"%PDF", ""), purpose="user_data"
        )
        assert [each.mime_type async for each in sdk(server).files.list()] == ["application/pdf"]
        assert (await sdk(server).files.retrieve_metadata(file.id)).filename == "http://[x/a.pdf"


async def test_message_document_block_reads_uploaded_file():
    async with run_background_server(engine_options={"directives": True}) as server:
        client = sdk(server)
        file = await client.files.upload(file=("a.pdf", b"%PDF-1.4", "application/pdf"))
        document = {"type": "document", "source": {"type": "file", "file_id": file.id}}
        content = [document, {"type": "text", "text": "[[say seen]]"}]
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
        assert (await server.post("/v1/messages", body)).json()["content"][0]["text"] == "seen"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("limit=0", "limit: expected an integer"),
        ("limit=0000019999", "limit: expected an integer"),
        (f"limit=000001{'0' * 5000}", "limit: expected an integer"),
        ("page=page_x&after_id=y", "page: it cannot be combined with"),
        ("page=page_none", "there is no"),
        ("ids[]=a&limit=2", "ids: it cannot be combined with"),
        ("&".join(f"ids[]={number}" for number in range(101)), "ids: expected at most 100"),
    ],
)
async def test_anthropic_files_list_invalid_query_uses_error_envelope(query: str, why: str):
    async with run_background_server() as server:
        rejected = await server.get(f"/v1/files?{query}", VERSION)
        assert (rejected.status_code, rejected.json()["error"]["type"]) == (
            400,
            "invalid_request_error",
        )
        assert why in rejected.json()["error"]["message"]


async def test_anthropic_file_upload_requires_file_but_no_name():
    async with run_background_server() as server:
        assert (await sdk(server).files.upload(file=b"\xff")).filename == "unnamed.bin"
        with pytest.raises(
            anthropic.BadRequestError, match="expires_in_seconds: expected from 3600"
        ):
            await sdk(server).files.upload(file=b"x", expires_in_seconds=60)
        long: Any = "000000007200" + "0" * 5000
        with pytest.raises(
            anthropic.BadRequestError, match="expires_in_seconds: expected from 3600"
        ):
            await sdk(server).files.upload(file=b"x", expires_in_seconds=long)
        async with server.http() as client:
            rejected = await client.post("/v1/files", files={"other": b"x"}, headers=VERSION)
        assert rejected.json()["error"]["message"].startswith("file: Field required")


async def test_shared_path_errors_use_envelope_of_client():
    server = build_server()
    for path in ("/v1/models/none", "/v1/nowhere", "/v1/v1/messages"):
        assert (await server.get(path, VERSION)).json()["type"] == "error"
        assert "type" not in (await server.get(path)).json()
    assert "type" not in (await server.post("/v1/chat/completions", {}, VERSION)).json()
