"""A yardstick: FastAPI with pydantic models that answers each Chat request with its last
message, and each embeddings request with a vector, as many servers are written. It
generates nothing.

    python benchmarks/fastapi_echo.py PORT STEP

An answer waits for as many steps of STEP seconds as it has tokens. It needs `pip
install fastapi`; then `overhead.py` runs it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
import uuid
from typing import TYPE_CHECKING

import uvicorn
from pydantic import BaseModel

if TYPE_CHECKING:
    from fastapi import FastAPI


STEP = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
VECTOR = [0.1] * 384


class Message(BaseModel):
    role: str
    content: str


class ChatRequest(BaseModel):
    model: str
    messages: list[Message]
    max_tokens: int | None = None
    stream: bool = False
    seed: int | None = None


class Choice(BaseModel):
    index: int
    message: Message
    finish_reason: str


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatResponse(BaseModel):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class EmbeddingsRequest(BaseModel):
    model: str
    input: str | list[str]


class Embedding(BaseModel):
    object: str
    index: int
    embedding: list[float]


class EmbeddingsResponse(BaseModel):
    object: str
    data: list[Embedding]
    model: str
    usage: Usage


async def answer(request: ChatRequest) -> ChatResponse:
    await asyncio.sleep((request.max_tokens or 0) * STEP)
    message = Message(role="assistant", content=request.messages[-1].content)
    return ChatResponse(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        object="chat.completion",
        created=int(time.time()),
        model=request.model,
        choices=[Choice(index=0, message=message, finish_reason="stop")],
        usage=Usage(prompt_tokens=10, completion_tokens=2, total_tokens=12),
    )


async def embed(request: EmbeddingsRequest) -> EmbeddingsResponse:
    return EmbeddingsResponse(
        object="list",
        data=[Embedding(object="embedding", index=0, embedding=VECTOR)],
        model=request.model,
        usage=Usage(prompt_tokens=1, completion_tokens=0, total_tokens=1),
    )


def build_app() -> FastAPI:
    # It is not among the packages that the tests install.
    from fastapi import FastAPI

    app = FastAPI()
    app.post("/v1/chat/completions")(answer)
    app.post("/v1/embeddings")(embed)
    return app


def main() -> None:
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=2048)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        build_app(), http="httptools", loop="uvloop", log_level="error", access_log=False
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
