"""The turns of an answer between which this server calls tools.

    list tools -> turn -> calls -> turn -> ... -> turn without calls of this server

All turns are one stream of events with one `Started` and one `Finished`, so dialects,
stages and stores see one answer. Each turn is an ordinary request, prepared and admitted
as any other. The first calls of a turn are streamed while the model writes them; what
follows the first is held back until the turn is complete, since a turn that fails or is
cut must not call anything.

With a journal each step is stored before what follows it. A process that continues an
answer takes the turns from the journal instead of the model, and the outcomes instead of
making the calls again. A turn that is cut off is generated again, so only its reasoning
and one more part are sent before it is stored: otherwise the answer could have a message
or a client's call twice, both complete.
"""

from __future__ import annotations

import asyncio
import binascii
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from ..core.errors import DragomanError, EngineError, RequestError, Unsupported
from ..core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ..core.message import (
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from ..core.reply import Choice, ReplyBuilder, ReplyPart
from ..core.request import Conversation, GenerateRequest
from ..core.server_tools import (
    HOSTED_PREFIX,
    IMAGE_FORMATS,
    INVALID_ARGUMENTS,
    TIMED_OUT,
    HostedTarget,
    ListedTool,
    RequestedServer,
    ServerToolPlan,
    ToolFailureKind,
    ToolImage,
    ToolList,
    ToolOutcome,
    is_json_object,
)
from ..dialects.field_errors import abbreviate
from ..pipeline.admit import AdmittedRun
from ..pipeline.driver import Batches, BatchStream
from ..tools.interface import (
    ServerTool,
    ToolCallResult,
    ToolServerError,
    ToolServerErrorKind,
    ToolServerRequest,
    ToolServers,
)
from .approval_claims import ApprovalClaims
from .tool_journal import ToolJournal, TurnEnded

MAX_TURNS = 32
"""Turns of one answer: a model that never stops calling tools would run forever."""
MAX_CALLS = 128
"""Calls of one answer: a turn can have as many as its tokens allow."""
MAX_PARALLEL_CALLS = 16
"""Calls of one answer at the same time."""
CALL_TIMEOUT = 120.0
"""Seconds for one call."""
MAX_IMAGES = 4
"""Images of one call: OpenAI sends at most three drafts before the result."""
STRUCTURED_TOOLS = ("file_search", "shell")
"""Hosted tools whose items are built from structured content."""

_PROTOCOL_ERROR = -32000
"""The code of errors without one, of the range that JSON-RPC leaves to servers."""

Prepare = Callable[[GenerateRequest], Awaitable[AdmittedRun]]
"""Prepares and admits the request of a turn."""


async def list_server_tools(
    tool_servers: ToolServers | None, servers: Sequence[RequestedServer], owner: str
) -> tuple[ToolList, ...]:
    """List the tools of servers. A server that fails has a list with its error.

    owner: name of the client's API key; empty without keys.

    Raises:
        RequestError: this server has no tool servers, or does not allow one of them.
    """
    if tool_servers is None:
        raise Unsupported(
            f"'{servers[0].path}': this server calls no tools of MCP servers: its operator has "
            "set no --tools-file.",
            param=servers[0].path,
        )
    connected = [_list_tools(tool_servers, server, owner) for server in servers]
    return tuple(await asyncio.gather(*connected))


async def _list_tools(tool_servers: ToolServers, server: RequestedServer, owner: str) -> ToolList:
    try:
        async with tool_servers.open(_build_request(server, owner)) as connection:
            tools = await connection.list_tools()
    except ToolServerError as error:
        if server.hosted is not None:
            raise _build_hosted_error(server, error.message) from None
        if error.kind is ToolServerErrorKind.REFUSED:
            raise RequestError(f"'{server.path}': {error.message}", param=server.path) from None
        return ToolList(server=server.label, error=error.message)
    if server.hosted is not None:
        tools = _select_hosted(server, server.hosted, tools)
    return ToolList(server=server.label, tools=tuple(map(_describe_tool, tools)))


def _select_hosted(
    server: RequestedServer, target: HostedTarget, tools: Sequence[ServerTool]
) -> tuple[ServerTool, ...]:
    """Select the tool that runs a hosted tool. Raises EngineError if it is not listed."""
    selected = tuple(tool for tool in tools if target.tool in (None, tool.name))
    if len(selected) != 1:
        reason = (
            f"its MCP server lists {len(selected)} tools; name one as --hosted-tool "
            f"{server.label.removeprefix(HOSTED_PREFIX)}=mcp:{target.server}/TOOL"
            if target.tool is None
            else f"its MCP server does not list {abbreviate(target.tool)}"
        )
        raise _build_hosted_error(server, reason)
    return selected


def _build_hosted_error(server: RequestedServer, reason: str) -> EngineError:
    return EngineError(
        f"'{server.path}': the tool {server.label.removeprefix(HOSTED_PREFIX)!r} is not "
        f"available: {reason}"
    )


def _describe_tool(tool: ServerTool) -> ListedTool:
    annotations = tool.annotations
    return ListedTool(
        name=tool.name,
        schema=bytes(tool.input_schema).decode(),
        description=tool.description,
        annotations=None if annotations is None else msgspec.json.encode(annotations).decode(),
        read_only=tool.read_only is True,
        is_repeatable=tool.is_repeatable,
    )


def _build_request(server: RequestedServer, owner: str) -> ToolServerRequest:
    return ToolServerRequest(
        label=server.label if server.hosted is None else server.hosted.server,
        server_url=server.url,
        authorization=server.authorization,
        headers=server.headers,
        owner=owner or None,
    )


class ToolCaller:
    """Calls the tools of one answer.

    owner: name of the client's API key; empty without keys.
    claims: the approvals that were used.
    """

    def __init__(
        self,
        tool_servers: ToolServers,
        plan: ServerToolPlan,
        owner: str,
        claims: ApprovalClaims,
        journal: ToolJournal,
    ) -> None:
        self._tool_servers = tool_servers
        self._plan = plan
        self._owner = owner
        self._claims = claims
        self._journal = journal
        self._n_calls = Counter[str]()
        self._slots = asyncio.Semaphore(MAX_PARALLEL_CALLS)

    @property
    def has_called(self) -> bool:
        return self._n_calls.total() > 0

    def has_reached_limit(self, name: str) -> bool:
        """Whether a tool cannot be called any more. name: its name in the prompt."""
        limits = (self._plan.max_calls, MAX_CALLS)
        limit = min(limit for limit in limits if limit is not None)
        of_tool = self._plan.tools[name].max_calls
        return self._n_calls.total() >= limit or (
            of_tool is not None and self._n_calls[name] >= of_tool
        )

    def find_interruption(self, turn: int, calls: Sequence[ToolCall]) -> EngineError | None:
        """Return the error if another process has begun a call of a turn that must not
        be made again.
        """
        errors = (
            self._find_interruption(_build_key(turn, i), call) for i, call in enumerate(calls)
        )
        return next((error for error in errors if error is not None), None)

    def _find_interruption(self, key: str, call: ToolCall) -> EngineError | None:
        tool = self._plan.tools[call.name]
        if tool.is_repeatable or not self._journal.is_interrupted(key):
            return None
        # Clients of a hosted tool know only that name.
        name = (
            abbreviate(tool.hosted)
            if tool.hosted
            else f"{abbreviate(tool.name)} of the MCP server {abbreviate(tool.server)}"
        )
        error = EngineError(
            f"The server stopped while it called the tool {name}. Whether the call was made is "
            "unknown, and the tool is declared neither idempotent nor read-only, so the call was "
            "not repeated."
        )
        error.should_retry = False
        return error

    async def call_all(self, turn: int, calls: Sequence[ToolCall]) -> list[ToolOutcome | None]:
        """Make those calls that need no approval, at the same time; the others are None.
        A call that fails has an outcome too.

        turn: number of the turn.
        """
        if self.find_interruption(turn, calls) is not None:
            # The answer cannot be continued: nothing more is called for it, and it ends
            # with what is known.
            return [self._journal.find_outcome(_build_key(turn, i)) for i in range(len(calls))]
        tasks = [
            asyncio.ensure_future(self._check_and_call(_build_key(turn, i), call))
            for i, call in enumerate(calls)
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            # If a step could not be stored, the answer ends, and with it its other calls.
            for task in tasks:
                task.cancel()

    async def call_approved(self, key: str, call: ToolCall, approval: str) -> ToolOutcome:
        """Make a call that the client has approved, unless it was made before.

        Raises:
            EngineError: another process has begun the call, and it must not be repeated.
        """
        if (error := self._find_interruption(key, call)) is not None:
            raise error
        return replace(await self._call(key, call, approval), approval=approval)

    async def _check_and_call(self, key: str, call: ToolCall) -> ToolOutcome | None:
        if self._plan.tools[call.name].needs_approval and is_json_object(call.arguments):
            return None
        return await self._call(key, call)

    async def _call(self, key: str, call: ToolCall, approval: str | None = None) -> ToolOutcome:
        """Make a call, or return what it returned in an earlier process."""
        if not is_json_object(call.arguments):
            return ToolOutcome(
                text="The arguments are not a JSON object.",
                failure=ToolFailureKind.PROTOCOL,
                code=INVALID_ARGUMENTS,
            )
        if self.has_reached_limit(call.name):
            return ToolOutcome(
                text="The limit of tool calls was reached; this call was not made.",
                failure=ToolFailureKind.LIMIT,
                code=_PROTOCOL_ERROR,
            )
        self._n_calls[call.name] += 1
        if (outcome := self._journal.find_outcome(key)) is not None:
            return outcome
        if not await self._begin(key, approval):
            return ToolOutcome(
                text="This approval was used before; the call was not made again.",
                failure=ToolFailureKind.PROTOCOL,
                code=_PROTOCOL_ERROR,
            )
        outcome = await self._send(call)
        await self._journal.end_call(key, outcome)
        return outcome

    async def _begin(self, key: str, approval: str | None) -> bool:
        """Store that a call begins; return false if its approval was used before."""
        if approval is None or self._journal.has_begun(key):
            await self._journal.begin_call(key)
            return True
        if self._journal.commit is None:
            return await self._claims.claim(approval)
        # In one commit: otherwise a process that continues could neither make the call
        # nor know that it was not made.
        return await self._claims.claim(approval, partial(self._journal.begin_call, key))

    async def _send(self, call: ToolCall) -> ToolOutcome:
        tool = self._plan.tools[call.name]
        request = _build_request(self._plan.servers[tool.server], self._owner)
        try:
            async with self._slots, self._tool_servers.open(request) as server:
                arguments = _add_arguments(call.arguments, tool.fixed_arguments)
                result = await server.call(tool.name, arguments, timeout=CALL_TIMEOUT)
        except ToolServerError as error:
            return _describe_error(error)
        return _describe_result(result, tool.hosted)


def _build_key(turn: int, index: int) -> str:
    return f"{turn}.{index}"


def _describe_error(error: ToolServerError) -> ToolOutcome:
    if error.kind is ToolServerErrorKind.HTTP:
        return ToolOutcome(text=error.message, failure=ToolFailureKind.HTTP, code=error.code or 502)
    is_timeout = error.kind is ToolServerErrorKind.TIMEOUT
    code = error.code or (TIMED_OUT if is_timeout else _PROTOCOL_ERROR)
    return ToolOutcome(text=error.message, failure=ToolFailureKind.PROTOCOL, code=code)


def _add_arguments(arguments: str, fixed: str) -> str:
    if fixed == "{}":
        return arguments
    written = msgspec.json.decode(arguments, type=dict[str, Raw])
    return msgspec.json.encode(written | msgspec.json.decode(fixed, type=dict[str, Raw])).decode()


def _describe_result(result: ToolCallResult, hosted: str) -> ToolOutcome:
    """Return the outcome of a call. hosted: the hosted tool that it runs, or empty."""
    text = result.text
    structured = None
    if result.structured_content is not None:
        structured = msgspec.json.encode(result.structured_content).decode()
    images = result.images if hosted == "image_generation" else ()
    return ToolOutcome(
        text=text or structured or "",
        failure=ToolFailureKind.EXECUTION if result.is_error else None,
        structured=structured if hosted in STRUCTURED_TOOLS else None,
        images=tuple(image for image in images if _is_valid(image))[-MAX_IMAGES:],
    )


def _is_valid(image: ToolImage) -> bool:
    """Whether clients can decode an image: a tool may send anything."""
    try:
        binascii.a2b_base64(image.data, strict_mode=True)
    except ValueError:
        return False
    return image.mime_type in IMAGE_FORMATS


class ToolLoop:
    """One answer of several turns.

    request: the request of the first turn.
    first: its admitted run, which `batches` consumes.
    prepare: prepares the later turns.

    sampled_ids: the sampled ids of all turns, as `Conversation.sampled_turns` needs
        them; empty if the engine reports none.
    """

    def __init__(
        self,
        request: GenerateRequest,
        first: AdmittedRun,
        plan: ServerToolPlan,
        caller: ToolCaller,
        prepare: Prepare,
        journal: ToolJournal,
    ) -> None:
        self._request = request
        self._run = first
        self._plan = plan
        self._caller = caller
        self._prepare = prepare
        self._journal = journal
        self._has_started = False
        self._usage = Usage()
        self._n_turns = 0
        self.sampled_ids: tuple[int, ...] = ()
        self.counts = first.counts
        self.batches = BatchStream(self._iterate())

    async def _iterate(self) -> Batches:
        """Yield the events of all turns. An error after calls says that a retry would
        make them again.
        """
        async with aclosing(self._iterate_turns()) as batches:
            try:
                async for batch in batches:
                    yield batch
            except DragomanError as error:
                if self._caller.has_called:
                    error.should_retry = False
                raise

    async def _iterate_turns(self) -> Batches:
        is_prepared = not self._plan.approved and not self._journal.has_turns
        if not is_prepared:
            # The first run was prepared to reject the request before anything is called;
            # its prompt lacks the results.
            await self._run.batches.aclose()
            yield self._join([Started(None)])
            async with aclosing(self._call_approved()) as batches:
                async for batch in batches:
                    yield batch
        while True:
            turn = _Turn(self._plan, is_stored=self._journal.commit is not None)
            ended = self._journal.take_turn()
            is_stored = ended is not None
            if ended is not None:
                turn.restore(ended.choice)
            else:
                async with aclosing(self._run_turn(turn, is_prepared=is_prepared)) as batches:
                    async for batch in batches:
                        yield batch
                is_prepared = False
                ended = self._build_ended(turn)
            choice = ended.choice
            self._end_turn(ended)
            calls = _list_server_calls(choice, self._plan)
            is_complete = choice.reason is FinishReason.STOP
            if calls and is_complete and not is_stored:
                await self._journal.add_turn(ended, self._n_turns)
            outcomes: list[ToolOutcome | None] = [None] * len(calls)
            if is_complete:
                outcomes = await self._caller.call_all(self._n_turns, calls)
            is_sent = is_stored and self._journal.is_last_turn_sent()
            events = [] if is_sent else turn.list_rest(outcomes)
            error = self._caller.find_interruption(self._n_turns, calls)
            has_open_call = len(calls) < len(choice.list_calls()) or None in outcomes
            is_last = not calls or not is_complete or has_open_call or self._n_turns >= MAX_TURNS
            if is_last and error is None:
                # In one batch, so that the client has got all of it or nothing.
                # `Finished` is a batch of its own: stages store the answer before it.
                yield [*events, turn.finished_choice]
                yield [Finished(self._usage)]
                return
            if events:
                yield events
            if error is not None:
                raise error
            self._add_turn(choice, calls, [each for each in outcomes if each is not None])
            limit = self._request.limits.max_tokens
            if limit is not None and limit <= 0:
                yield [ChoiceFinished(0, FinishReason.LENGTH)]
                yield [Finished(self._usage)]
                return

    async def _run_turn(self, turn: _Turn, *, is_prepared: bool) -> Batches:
        if not is_prepared:
            self._run = await self._prepare(self._request)
            self.counts.runs = (*self.counts.runs, *self._run.counts.runs)
        async with aclosing(self._run.batches):
            async for batch in self._run.batches:
                if events := self._join(turn.feed(batch)):
                    yield events

    async def _call_approved(self) -> Batches:
        """Make the calls that the client has approved, and add their results."""
        for i, approved in enumerate(self._plan.approved):
            call = ToolCall(approved.id, approved.tool, approved.arguments)
            key = _build_key(0, i)
            outcome = await self._caller.call_approved(key, call, approved.approval)
            if not self._journal.is_call_sent(key):
                # In one batch, so that the client has got all of it or nothing.
                yield [
                    ToolCallStart(0, call.id, call.name),
                    ToolCallDelta(0, call.arguments),
                    ToolCallDelta(0, "", outcome=outcome),
                ]
            self._request = add_results(self._request, [_build_result(call, outcome)])

    def _join(self, events: list[Event]) -> list[Event]:
        """Return the events of a turn without those that begin it, except for the first."""
        joined: list[Event] = []
        for event in events:
            match event:
                case Started() if not self._has_started:
                    self._has_started = True
                    lists = () if self._journal.has_started else self._plan.lists
                    joined.append(replace(event, tool_lists=lists))
                case Started():
                    """The answer has started already."""
                case PromptTokens() if self._n_turns:
                    """The answer's prompt is that of its first turn."""
                case _:
                    joined.append(event)
        return joined

    def find_open_part(self) -> ReplyPart | None:
        """Return the part that the client has got last and without its end; None unless
        another process has stored a turn, but not sent the rest of it.
        """
        turn = self._journal.find_open_turn()
        if turn is None:
            return None
        sent = turn.choice.parts[: _count_sent(turn.choice.parts, self._plan)]
        return next((part for part in reversed(sent) if _has_content(part)), None)

    def list_sent_calls(self) -> list[ToolCall]:
        """List the calls whose outcome the client has got from another process."""
        return [
            replace(call, outcome=self._journal.find_outcome(key))
            for n_turn, turn in enumerate(self._journal.list_turns(), 1)
            for i, call in enumerate(_list_server_calls(turn.choice, self._plan))
            if self._journal.is_call_sent(key := _build_key(n_turn, i))
        ]

    def _build_ended(self, turn: _Turn) -> TurnEnded:
        choice = turn.build_choice()
        prompt_ids = self._run.find_resume_ids()
        ids = () if prompt_ids is None else (*prompt_ids, *(token.id for token in choice.tokens))
        # Nothing needs the tokens of parts that were sent, except for the logprobs of text.
        n_sent = _count_sent(choice.parts, self._plan)
        sent = (
            part if isinstance(part, Text) else replace(part, tokens=())
            for part in choice.parts[:n_sent]
        )
        choice = replace(choice, parts=(*sent, *choice.parts[n_sent:]), trailing_tokens=())
        return TurnEnded(choice, turn.usage, ids)

    def _end_turn(self, turn: TurnEnded) -> None:
        self._n_turns += 1
        self._usage = _add_usage(self._usage, turn.usage) if self._n_turns > 1 else turn.usage
        ids = turn.ids
        self.sampled_ids = (*self.sampled_ids, *ids)
        if ids:
            prompt = _get_conversation(self._request)
            turns = (*prompt.sampled_turns, ids)
            self._request = replace(self._request, prompt=replace(prompt, sampled_turns=turns))
        limits = self._request.limits
        if limits.max_tokens is not None:
            left = limits.max_tokens - (turn.usage.completion or 0)
            self._request = replace(self._request, limits=replace(limits, max_tokens=left))

    def _add_turn(
        self, choice: Choice, calls: Sequence[ToolCall], outcomes: Sequence[ToolOutcome]
    ) -> None:
        """Add a turn and the results of its calls to the prompt of the next."""
        prompt = _get_conversation(self._request)
        parts: tuple[Part, ...] = tuple(replace(part, tokens=()) for part in choice.parts)
        results = list(map(_build_result, calls, outcomes))
        # A forced choice is for the first turn: the model must be able to end the answer.
        tool_choice = prompt.tool_choice
        if tool_choice.mode == "required":
            tool_choice = ToolChoice("auto", None if tool_choice.is_named else tool_choice.names)
        is_last = self._n_turns >= MAX_TURNS - 1
        ended = [
            name for name in self._plan.tools if is_last or self._caller.has_reached_limit(name)
        ]
        if ended and tool_choice.mode != "none":
            allowed = tool_choice.names or tuple(tool.name for tool in prompt.tools)
            others = tuple(name for name in allowed if name not in ended)
            tool_choice = ToolChoice("auto", others) if others else ToolChoice("none")
        messages = (*prompt.messages, Message(Role.ASSISTANT, parts))
        self._request = add_results(
            replace(
                self._request, prompt=replace(prompt, messages=messages, tool_choice=tool_choice)
            ),
            results,
        )


class _Turn:
    """The events of one turn: which of them may be sent, and the answer they form.

    is_stored: whether the turn is stored before its calls are made.
    """

    def __init__(self, plan: ServerToolPlan, *, is_stored: bool) -> None:
        self._plan = plan
        self._is_stored = is_stored
        self._builder = ReplyBuilder()
        self._text_kind: type[Event] | None = None
        self._has_call = False
        self._is_in_call = False
        self._held: list[Event] = []
        self.usage = Usage()
        self.finished_choice = ChoiceFinished(0, FinishReason.ABORT)

    def feed(self, batch: list[Event]) -> list[Event]:
        """Take a batch; return the events that may be sent now."""
        self._builder.feed_all(batch)
        sent: list[Event] = []
        for event in batch:
            match event:
                case ChoiceFinished():
                    self.finished_choice = event
                case Finished(usage):
                    self.usage = usage
                case ToolCallDelta() if self._is_in_call:
                    sent.append(event)
                case _ if self._must_hold(event):
                    self._is_in_call = False
                    self._held.append(event)
                case ToolCallStart(name=name) if name in self._plan.tools:
                    self._has_call = True
                    self._is_in_call = True
                    sent.append(event)
                case _:
                    if isinstance(event, (TextDelta, RefusalDelta)) and event.text:
                        self._text_kind = type(event)
                    sent.append(event)
        return sent

    def _must_hold(self, event: Event) -> bool:
        """Whether an event is sent only after the turn; see `_count_sent`."""
        if self._has_call or self._held:
            return True
        if not self._is_stored:
            return False
        match event:
            case ToolCallStart(name=name):
                return self._text_kind is not None or not _is_streamed(name, self._plan)
            case TextDelta() | RefusalDelta() | ReasoningDelta():
                return self._text_kind not in (None, type(event))
            case _:
                return False

    def restore(self, choice: Choice) -> None:
        """Continue after a turn of another process, which has sent its first events."""
        n_sent = _count_sent(choice.parts, self._plan)
        held = choice.parts[n_sent:]
        self._has_call = any(isinstance(part, ToolCall) for part in choice.parts[:n_sent])
        self._held = [event for part in held for event in _split_part(part)]
        self.finished_choice = ChoiceFinished(
            0, choice.reason, choice.stop, (), choice.kv_transfer_params, choice.weights
        )

    def build_choice(self) -> Choice:
        return self._builder.build().choices[0]

    def list_rest(self, outcomes: Sequence[ToolOutcome | None]) -> list[Event]:
        """Return the events that were held back, with the outcomes of the calls."""
        events: list[Event] = []
        ended = iter(outcomes)
        is_open = self._has_call
        for event in self._held:
            if is_open and not isinstance(event, ToolCallDelta):
                events += _build_outcome(next(ended))
                is_open = False
            is_open = is_open or (
                isinstance(event, ToolCallStart) and event.name in self._plan.tools
            )
            events.append(event)
        return events + _build_outcome(next(ended)) if is_open else events


def _count_sent(parts: Sequence[ReplyPart], plan: ServerToolPlan) -> int:
    """Count the parts that are sent before a turn is stored: reasoning and one more, but
    no call whose item clients get only when it is complete.
    """
    for i, part in enumerate(parts):
        match part:
            case ToolCall(name=name):
                return i + 1 if _is_streamed(name, plan) else i
            case Text(text=text) | Refusal(text=text) if text:
                return i + 1
            case _:
                """Reasoning, or a part without an item."""
    return len(parts)


def _is_streamed(name: str, plan: ServerToolPlan) -> bool:
    return name in plan.tools and not plan.tools[name].needs_approval


def _has_content(part: ReplyPart) -> bool:
    return isinstance(part, ToolCall) or part.text != ""


def _list_server_calls(choice: Choice, plan: ServerToolPlan) -> list[ToolCall]:
    return [call for call in choice.list_calls() if call.name in plan.tools]


def _split_part(part: ReplyPart) -> list[Event]:
    """Return the events that form a part."""
    match part:
        case ToolCall(id, name, arguments, tokens, custom):
            return [ToolCallStart(0, id, name, (), custom), ToolCallDelta(0, arguments, tokens)]
        case Reasoning(text, tokens, seal):
            return [ReasoningDelta(0, text, tokens, seal)]
        case Refusal(text, tokens):
            return [RefusalDelta(0, text, tokens)]
        case Text(text, tokens):
            return [TextDelta(0, text, tokens)]


def _build_outcome(outcome: ToolOutcome | None) -> list[Event]:
    return [] if outcome is None else [ToolCallDelta(0, "", outcome=outcome)]


def _build_result(call: ToolCall, outcome: ToolOutcome) -> tuple[str, ToolResult]:
    """Return the name of the called tool, and the result for the prompt."""
    text = outcome.text or "The call returned nothing."
    is_error = outcome.failure is not None
    return call.name, ToolResult(call.id, (Text(text),), is_error=is_error)


def add_results(
    request: GenerateRequest, results: Sequence[tuple[str, ToolResult]]
) -> GenerateRequest:
    """Return the request with results of calls in its conversation."""
    prompt = _get_conversation(request)
    added = tuple(Message(Role.TOOL, (result,), name) for name, result in results)
    return replace(request, prompt=replace(prompt, messages=(*prompt.messages, *added)))


def add_placeholders(request: GenerateRequest, plan: ServerToolPlan) -> GenerateRequest:
    """Return the request with results for the approved calls, which are not made yet."""
    return add_results(
        request,
        [
            (call.tool, ToolResult(call.id, (Text("The call is in progress."),)))
            for call in plan.approved
        ],
    )


def _get_conversation(request: GenerateRequest) -> Conversation:
    assert isinstance(request.prompt, Conversation)
    return request.prompt


def _add_usage(first: Usage, second: Usage) -> Usage:
    return Usage(
        prompt=_add(first.prompt, second.prompt),
        completion=_add(first.completion, second.completion),
        cached=_add(first.cached, second.cached),
        reasoning=_add(first.reasoning, second.reasoning),
        written=_add(first.written, second.written),
        is_estimate=first.is_estimate or second.is_estimate,
    )


def _add(first: int | None, second: int | None) -> int | None:
    return first if second is None else second if first is None else first + second
