"""One response, from what was asked to what is kept: the one way that all of them take, whatever carries them.

asked -> past and references -> admitted -> events -> kept -> the last event
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import anyio.to_thread
import msgspec
from msgspec import Raw

from ...core.errors import Conflict, DragomanError
from ...core.reply import Reply
from ...dialects.base import Header
from ...dialects.body import echo
from ...dialects.envelope import AnswerId
from ...dialects.responses import InputItem, ResponsesCall, ResponsesWriter, rows
from ...dialects.responses.kept import Kept, raws
from ...dialects.responses.normal import item_id
from ...store import Append, Change, Item, Key, Put, Refused, Store
from ..answer import Batches, log, unexpected
from ..generate import LARGE_BODY, Admitted, admit_call, new_header
from ..keeping import keeping
from ..party import Party
from .occupied import Occupation
from .past import CONVERSATION, ITEMS, RESPONSE, Past, no_such_conversation, recall, resolve


class Turn:
    """A response that is about to be made. `batches` may be iterated once; closing it is cancelling.

    When its last event comes out the response is kept, if it is to be. A failure after the first event is kept too.
    """

    def __init__(
        self,
        asked: ResponsesCall,
        past: Past,
        own: tuple[bytes, ...],
        admitted: Admitted,
        keeper: Keeper | None,
        occupation: Occupation | None = None,
    ) -> None:
        self.asked, self.past, self.own, self.admitted, self.keeper = asked, past, own, admitted, keeper
        self._occupation = occupation
        self.writer: ResponsesWriter = asked.writer(admitted.header)
        self._output: tuple[bytes, ...] | None = None
        self._said: tuple[int, ...] = ()

    @property
    def header(self) -> Header:
        return self.admitted.header

    @property
    def batches(self) -> Batches:
        return self._batches()

    @property
    def memory(self) -> Past | None:
        """What a next turn can continue; None before this one has ended well."""
        if self._output is None:
            return None
        return Past(
            (*self.past.items, *self.own, *self._output),
            self.header.id,
            kept=self.keeper is not None,
            said=(*self.past.said, self._said) if self._said else self.past.said,
        )

    def kept(self, whole: bytes) -> Kept:
        """whole: the response object."""
        past = self.past
        before = past.items if past.id is not None and not past.kept else ()
        return Kept(
            object=Raw(whole),
            input=raws(self.own),
            before=raws(before),
            conversation=self.asked.conversation,
            upto=past.upto,
            said=self._said,
        )

    async def _batches(self) -> Batches:
        async with aclosing(keeping(self.admitted.run.batches, self._keep)) as batches:
            try:
                async for batch in batches:
                    yield batch
            except DragomanError as error:
                await self._keep_failure(error)
                raise
            except Exception as error:
                failure = unexpected(error)
                await self._keep_failure(failure)
                raise failure from error
            finally:
                if self._occupation is not None:
                    self._occupation.leave()

    async def _keep(self, reply: Reply) -> None:
        self.hear(reply)
        kept = self.kept(self.writer.full(reply))
        if self.keeper is not None:
            await self.keeper.keep(self, kept)
        self._output = kept.told().items()

    def hear(self, reply: Reply) -> None:
        """Remember the ids that were sampled, if the engine tells them."""
        opening, tokens = self.admitted.run.opening, reply.choices[0].tokens
        self._said = () if opening is None else (*opening, *(token.id for token in tokens))

    async def _keep_failure(self, error: DragomanError) -> None:
        """Of a failure before the first event the client hears as an HTTP status, and of no response."""
        if self.keeper is None or not self.writer.begun:
            return
        try:
            await self.keeper.keep(self, self.kept(self.writer.failure(error)))
        except DragomanError:
            log.warning("a failed response could not be stored")


class Keeper:
    """Keeps the turns of one owner."""

    def __init__(self, store: Store, owner: str) -> None:
        self.store, self._owner = store, owner

    def key(self, turn: Turn) -> Key:
        return Key(self._owner, RESPONSE, turn.header.id)

    def parent(self, turn: Turn) -> str | None:
        return turn.past.id if turn.past.kept else None

    async def keep(self, turn: Turn, kept: Kept) -> None:
        """Raises StoreUnavailable, and what ends a response whose conversation has changed meanwhile."""
        state = kept.told().status
        put = Put(self.key(turn), turn.header.created, kept.encode(), state=state, parent=self.parent(turn))
        await self.commit(put, *self.said(kept, state))

    def said(self, kept: Kept, state: str) -> tuple[Change, ...]:
        """What the response adds to its conversation. One that failed adds nothing."""
        if kept.conversation is None or state == "failed":
            return ()
        items = tuple(Item(row, item_id(row)) for row in kept.items())
        return (Append(Key(self._owner, CONVERSATION, kept.conversation), ITEMS, items),) if items else ()

    async def commit(self, *changes: Change) -> None:
        try:
            await self.store.commit(*changes)
        except Refused as refused:
            id = refused.change.key.id
            if refused.change.key.kind != CONVERSATION:
                raise
            if refused.found is None:
                raise no_such_conversation(id, "conversation") from None
            raise Conflict(
                f"Conversation {echo(id)} received an item with the same id in the meantime.", param="input"
            ) from None


async def open_turn(party: Party, asked: ResponsesCall, *, local: Past | None = None) -> Turn:
    """Ready to be iterated. local: what the connection remembers of its last turn.

    Raises RequestError for all that can be told before the engine is asked.
    """
    service, owner = party.service, party.caller.owner
    keeper = None if service.store is None or asked.store is False else Keeper(service.store, owner)
    asked = _named(asked, kept=keeper is not None)
    header = asked.id.over(new_header(party, asked.call))
    occupation = service.occupied.enter(owner, asked.conversation)
    try:
        asked, past, own = await continued(party, asked, header.id, local=local)
        return Turn(asked, past, own, await admit_call(party, asked.call, header), keeper, occupation)
    except BaseException:
        if occupation is not None:
            occupation.leave()
        raise


async def continued(
    party: Party, asked: ResponsesCall, response_id: str, *, local: Past | None = None
) -> tuple[ResponsesCall, Past, tuple[bytes, ...]]:
    """The call with all that comes before it, what that is, and its own items, whose ids derive from the response's."""
    store, owner = party.service.store, party.caller.owner
    past = await recall(store, owner, asked, local)
    input = await resolve(store, owner, asked.input, past)
    own = _rows(input, past, response_id)
    if past.items or input != asked.input:
        asked = await _over(asked, (*past.items, *own))
    return (asked.after(past.said) if past.said else asked), past, own


def _named(asked: ResponsesCall, *, kept: bool) -> ResponsesCall:
    """What the response says of itself. The id of what is kept is the server's: nobody can choose or guess it."""
    if not kept:
        said = ("store: the response is not stored",) if asked.store else ()
        asked = asked.echoing(msgspec.structs.replace(asked.echo, store=False))
    elif asked.id.chosen is None:
        return asked
    else:
        said = ("request_id is ignored: the server assigns the id of a stored response",)
        asked = msgspec.structs.replace(asked, id=AnswerId(asked.id.prefix, None))
    call = msgspec.structs.replace(asked.call, warnings=(*asked.call.warnings, *said))
    return msgspec.structs.replace(asked, call=call)


def _rows(input: Sequence[InputItem], past: Past, response_id: str) -> tuple[bytes, ...]:
    """Its own items. An id that something before it has already is replaced."""
    known = {item_id(item) for item in past.items}
    fresh = [msgspec.structs.replace(item, id=None) if item.id in known else item for item in input]
    return tuple(row for _, row in rows(fresh, response_id))


async def _over(asked: ResponsesCall, items: Sequence[bytes]) -> ResponsesCall:
    if sum(map(len, items)) > LARGE_BODY:
        return await anyio.to_thread.run_sync(asked.over, items)
    return asked.over(items)
