"""A yardstick: FastAPI with pydantic models that answers each Chat request with its last
message, as many servers are written. It generates nothing.

    python benchmarks/overhead.py --rows whole,variant \
        --peer "FastAPI echo=python benchmarks/fastapi_echo.py {port}"

It needs `pip install fastapi`.
"""

from __future__ import annotations

import sys
import time
import uuid
from typing import TYPE_CHECKING

import uvicorn
from pydantic import BaseModel

if TYPE_CHECKING:
    from fastapi import FastAPI


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


async def answer(request: ChatRequest) -> ChatResponse:
    message = Message(role="assistant", content=request.messages[-1].content)
    return ChatResponse(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        object="chat.completion",
        created=int(time.time()),
        model=request.model,
        choices=[Choice(index=0, message=message, finish_reason="stop")],
        usage=Usage(prompt_tokens=10, completion_tokens=2, total_tokens=12),
    )


def build_app() -> FastAPI:
    # It is not among the packages that the tests install.
    from fastapi import FastAPI

    app = FastAPI()
    app.post("/v1/chat/completions")(answer)
    return app


if __name__ == "__main__":
    uvicorn.run(
        build_app(),
        port=int(sys.argv[1]),
        http="httptools",
        loop="uvloop",
        log_level="error",
        access_log=False,
    )
