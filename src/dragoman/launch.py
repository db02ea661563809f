"""From settings to a running server: picks the engine, builds the model around it, says what it serves, serves.

The only module that knows all the others.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import msgspec
import uvicorn
from starlette.types import ASGIApp

from .constraints.matcher import Compiler
from .core.errors import DragomanError
from .core.request import Sampling
from .core.syntax import ReasoningFormat, ToolFormat
from .dialects.base import Profile
from .engines import tiny
from .engines.scripted import Script, ScriptedEngine, load_script
from .parsers import registry, response_template
from .pipeline.models import EventBackend, Models, ServedModel, TokenBackend
from .pipeline.text import Vocabulary
from .prompts.render import Renderer
from .prompts.template import ChatTemplate, load_template
from .prompts.tokenizer import HfTokenizer, load_tokenizer
from .serving.answer import Patience
from .serving.app import create_app
from .serving.clock import Clock, SystemClock
from .serving.service import ServingOptions
from .settings import Settings, SettingsError


def run(settings: Settings, say: Callable[[str], None]) -> int:
    """Serve until told to stop; the process's exit code. Raises SettingsError for what cannot be served."""
    logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    models = build_models(settings, SystemClock())
    app = create_app(models, options=serving_options(settings))
    listener = None if settings.uds is not None else _listen(settings)
    for line in greeting(settings, models, None if listener is None else listener.getsockname()[1]):
        say(line)
    _exit_in_peace()
    Server(uvicorn_config(app, settings), models).run(sockets=None if listener is None else [listener])
    return 0


def _exit_in_peace() -> None:
    """uvicorn raises the signal that ended it again when it is done; being asked to stop is no failure."""

    def heard(_number: int, _frame: FrameType | None) -> None:
        """uvicorn's own handler has done what is to be done."""

    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, heard)


class Server(uvicorn.Server):
    """When it is told to stop, what runs goes on for `grace` seconds; what runs then is ended by its dialect's own
    terminal error, and not by a closed connection.
    """

    def __init__(self, config: uvicorn.Config, models: Models, grace: float = 8.0) -> None:
        super().__init__(config)
        self._models, self._grace = models, grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end(self) -> None:
        await asyncio.sleep(self._grace)
        await self._models.stop()


def uvicorn_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """Our own log tells of requests, and with their ids; answers do not name the server's software.

    uvicorn's word that it has started says nothing that the greeting does not say better.
    """
    return uvicorn.Config(
        app,
        uds=settings.uds,
        access_log=False,
        log_level="warning" if settings.log_level == "info" else settings.log_level,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=32 * 1024,
    )


def _listen(settings: Settings) -> socket.socket:
    """Bound before anything is said, so that a port in use is told plainly and port 0 has its number."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    listener.set_inheritable(True)
    return listener


def serving_options(settings: Settings) -> ServingOptions:
    return ServingOptions(
        profile=Profile(settings.profile),
        strict=settings.strict,
        max_body_bytes=settings.max_body_bytes,
        bind=None if settings.uds is not None else settings.host,
        allowed_hosts=settings.allowed_hosts,
        api_keys=settings.api_key,
        admin_keys=settings.admin_api_key,
        patience=Patience(keepalive=settings.keepalive_interval),
        access_log=settings.access_log,
        max_logprobs=settings.max_logprobs,
    )


def greeting(settings: Settings, models: Models, port: int | None) -> list[str]:
    """What is served, and a line to try it with."""
    model = next(iter(models))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    where = f"http://{host}:{port}" if settings.uds is None else f"unix:{settings.uds}"
    body = msgspec.json.encode(
        {"model": model.name, "messages": [{"role": "user", "content": "What is the capital of Japan?"}]}
    ).decode()
    curl = ["curl"] if settings.uds is None else ["curl", "--unix-socket", settings.uds]
    if settings.api_key:
        curl += ["-H", '"Authorization: Bearer $KEY"']
    base = where if settings.uds is None else "http://localhost"
    return [
        f"Serving {', '.join(each.name for each in models)} on {where} (context {model.max_model_len} tokens)",
        f"Try: {' '.join(curl)} {base}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
    ]


def build_models(settings: Settings, clock: Clock) -> Models:
    """Raises SettingsError where MODEL or an option of it cannot be used."""
    kind, _, rest = settings.model.partition(":")
    try:
        if kind == "scripted":
            return Models([_scripted(settings, clock, rest)])
        if settings.model == "tiny":
            return Models([_tiny(settings, clock, tiny.embedded(), "tiny")])
        if kind == "tiny" and rest:
            return Models([_tiny(settings, clock, Path(rest), Path(rest).name)])
    except (OSError, ValueError, DragomanError) as error:
        raise SettingsError(f"cannot serve {settings.model}: {error}") from error
    raise SettingsError(
        f"cannot serve `{settings.model}`: MODEL is `tiny` (the embedded model, the default), `tiny:DIRECTORY` "
        "(a small Llama in safetensors), `scripted` or `scripted:FILE`."
    )


def _names(settings: Settings, name: str) -> tuple[str, tuple[str, ...]]:
    """The first served name is the one that answers carry; the others are aliases, as in vLLM."""
    names = settings.served_model_name or (name,)
    return names[0], names[1:]


def _scripted(settings: Settings, clock: Clock, file: str) -> ServedModel:
    tokenizer = load_tokenizer(tiny.embedded())
    name, aliases = _names(settings, "scripted")
    limit = settings.max_model_len or 32768
    engine = ScriptedEngine(
        load_script(Path(file)) if file else Script(),
        tokenizer=tokenizer,
        directives=settings.directives or not file,
        max_model_len=limit,
    )
    return ServedModel(name, EventBackend(engine, tokenizer), limit, int(clock.now()), aliases)


def _tiny(settings: Settings, clock: Clock, directory: Path, own_name: str) -> ServedModel:
    tokenizer = load_tokenizer(directory)
    template = _template(settings, directory)
    reasoning, tools = _formats(settings, directory, template, tokenizer)
    model = tiny.load(
        directory,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs or 64,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        num_kv_tokens=settings.kv_cache_tokens or 131072,
        enable_prefix_caching=settings.enable_prefix_caching,
        max_num_waiting=settings.max_waiting,
    )
    eos = _eos(directory)
    backend = TokenBackend(
        engine=model,
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer),
        compiler=Compiler(tokenizer, sorted(eos)),
        eos=eos,
        renderer=None if template is None else Renderer(template, tokenizer),
        trust_templates=settings.trust_request_chat_template,
    )
    name, aliases = _names(settings, own_name)
    return ServedModel(
        name,
        backend,
        model.max_model_len,
        int(clock.now()),
        aliases,
        sampling=settings.override_generation_config.over(Sampling()),
        max_new_tokens=settings.override_generation_config.max_new_tokens,
        reasoning=reasoning,
        tools=tools,
    )


class _Eos(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def _eos(directory: Path) -> frozenset[int]:
    """Ids that end an answer: generation_config.json has the word, else config.json, as in transformers."""
    for name in ("generation_config.json", "config.json"):
        file = directory / name
        ids = msgspec.json.decode(file.read_bytes(), type=_Eos).eos_token_id if file.exists() else None
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    raise ValueError(f"{directory} names no eos_token_id in generation_config.json or config.json")


def _template(settings: Settings, directory: Path) -> ChatTemplate | None:
    given = settings.chat_template
    if given is None:
        return load_template(directory)
    is_source = "{{" in given or "{%" in given
    return ChatTemplate(given if is_source else Path(given).read_text(encoding="utf-8"))


class _TokenizerConfig(msgspec.Struct):
    response_template: msgspec.Raw = msgspec.Raw(b"null")


def _formats(
    settings: Settings, directory: Path, template: ChatTemplate | None, tokenizer: HfTokenizer
) -> tuple[ReasoningFormat | None, ToolFormat | None]:
    """The parsers that were asked for, else what the model itself declares, else what its chat template gives away."""
    added = tokenizer.special_tokens.keys()
    asked = settings.reasoning_parser is not None or settings.tool_call_parser is not None
    config = directory / "tokenizer_config.json"
    if not asked and config.exists():
        declared = msgspec.json.decode(config.read_bytes(), type=_TokenizerConfig).response_template
        if bytes(declared) != b"null":
            return response_template.load(bytes(declared), added)
    guessed = (None, None) if template is None else registry.detect(template.source, added)
    reasoning = settings.reasoning_parser or guessed[0]
    tools = settings.tool_call_parser or guessed[1]
    return (
        None if reasoning is None else registry.reasoning(reasoning, added),
        None if tools is None else registry.tools(tools, added),
    )
