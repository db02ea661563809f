"""The contract of every store, with any backend."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.store import (
    Append,
    Bounds,
    CommitConflict,
    Delete,
    Item,
    Key,
    Put,
    Remove,
    Replace,
    SeriesEntry,
    Store,
    StoreFull,
)

from .backends import Storage, key, put


async def expect_conflict(
    store: Store, *changes: Put | Replace | Append | Remove | Delete
) -> CommitConflict:
    with pytest.raises(CommitConflict) as caught:
        await store.commit(*changes)
    return caught.value


async def test_put_then_get_returns_same_record(storage: Storage):
    async with storage.open() as store:
        body = bytes(range(256)) * 4
        record = await put(store, "a", body, state="new", parent="p", expires=2e9, pinned=True)
        assert (record.key, record.body, record.version) == (key("a"), body, 1)
        assert (record.state, record.parent, record.expires, record.pinned) == (
            "new",
            "p",
            2e9,
            True,
        )


@pytest.mark.parametrize(
    "other",
    [
        key("b"),
        key("a", kind="file"),
        key("a", owner="you"),
        key("a", owner=""),
        key("\0"),
        key("\ud800"),
        key("é"),
    ],
)
async def test_record_of_other_owner_looks_missing(storage: Storage, other: Key):
    async with storage.open() as store:
        await put(store, "a")
        await store.commit(Append(key("a"), "items", (Item(b"1", "i"),)))
        assert await store.get(other) is None
        assert await store.load_chain(other) is None
        assert await store.load_entry(other, "items", "i") is None
        assert await store.load_entries(other, "items") == ()
        for change in (
            Replace(other, "", b""),
            Append(other, "items", ()),
            Remove(other, "items", "i"),
            Delete(other),
        ):
            assert (await expect_conflict(store, change)).found_state is None


async def test_load_page_lists_only_records_of_owner_and_kind(storage: Storage):
    async with storage.open() as store:
        await put(store, "a")
        await store.commit(Put(key("b", owner="you"), 0, b""), Put(key("c", kind="file"), 0, b""))
        assert [record.key for record in await store.load_page("me", "response")] == [key("a")]
        assert [record.key for record in await store.load_page("you", "response")] == [
            key("b", owner="you")
        ]


async def test_put_existing_key_conflicts(storage: Storage):
    async with storage.open() as store:
        await put(store, "a", b"first", state="s")
        assert (await expect_conflict(store, Put(key("a"), 0, b"second"))).found_state == "s"
        record = await store.get(key("a"))
        assert record is not None
        assert record.body == b"first"


async def test_commit_conflict_rolls_back_all_changes(storage: Storage):
    async with storage.open() as store:
        await put(store, "a", b"old", state="s")
        await store.commit(Append(key("a"), "items", (Item(b"0", "zero"),)))
        error = await expect_conflict(
            store,
            Put(key("b"), 0, b""),
            Replace(key("a"), "t", b"new"),
            Append(key("a"), "items", (Item(b"1", "one"),)),
            Remove(key("a"), "items", "zero"),
            Delete(key("c")),
        )
        assert error.change == Delete(key("c"))
        record = await store.get(key("a"))
        assert record is not None
        assert (record.state, record.body, record.version) == ("s", b"old", 1)
        assert await store.load_entries(key("a"), "items") == (SeriesEntry(0, b"0", "zero"),)
        assert await store.get(key("b")) is None


async def test_commit_later_changes_see_earlier_ones(storage: Storage):
    async with storage.open() as store:
        await store.commit(
            Put(key("a"), 0, b"", state="s"),
            Append(key("a"), "items", (Item(b"0"),)),
            Replace(key("a"), "t", b"", states=frozenset({"s"})),
            Append(key("a"), "items", (Item(b"1"),), states=frozenset({"t"})),
        )
        assert [entry.body for entry in await store.load_entries(key("a"), "items")] == [b"0", b"1"]


async def test_replace_unexpected_state_or_version_conflicts(storage: Storage):
    async with storage.open() as store:
        await put(store, "a", state="queued", run=store.run)
        assert (
            await expect_conflict(store, Replace(key("a"), "x", b"", states=frozenset({"done"})))
        ).found_state == "queued"
        assert (
            await expect_conflict(store, Replace(key("a"), "x", b"", version=7))
        ).found_state == "queued"
        await store.commit(
            Replace(key("a"), "done", b"new", states=frozenset({"queued", "running"}), version=1)
        )
        record = await store.get(key("a"))
        assert record is not None
        assert (record.state, record.body, record.version, record.run) == ("done", b"new", 2, None)
        assert (
            await expect_conflict(store, Delete(key("a"), states=frozenset({"queued"})))
        ).found_state == "done"


async def test_replace_updates_expiry(storage: Storage):
    async with storage.open() as store:
        await put(store, "a", expires=storage.clock() + 10)
        for change, expiry in (
            (Replace(key("a"), "s", b""), storage.clock() + 10),
            (Replace(key("a"), "s", b"", expires=storage.clock() + 20), storage.clock() + 20),
            (Replace(key("a"), "s", b"", expires=None), None),
        ):
            await store.commit(change)
            record = await store.get(key("a"))
            assert record is not None
            assert record.expires == expiry


async def test_concurrent_deletes_succeed_once(storage: Storage):
    async with storage.open() as store:
        await put(store, "a")
        tries = await asyncio.gather(
            *(store.commit(Delete(key("a"))) for _ in range(20)), return_exceptions=True
        )
        assert sum(result is None for result in tries) == 1
        assert (
            sum(
                isinstance(result, CommitConflict) and result.found_state is None
                for result in tries
            )
            == 19
        )


async def test_concurrent_replaces_of_version_succeed_once(storage: Storage):
    async with storage.open() as store:
        await put(store, "a", state="s")
        takers = (store.commit(Replace(key("a"), "s", b"", version=1)) for _ in range(20))
        assert (
            sum(result is None for result in await asyncio.gather(*takers, return_exceptions=True))
            == 1
        )


async def test_load_entries_ordered_and_paginated(storage: Storage):
    async with storage.open() as store:
        await put(store, "a")
        for number in range(5):
            await store.commit(Append(key("a"), "items", (Item(b"%d" % number, f"i{number}"),)))
        await store.commit(Append(key("a"), "other", (Item(b"x", "i1"),)))

        async def read(**arguments: Any) -> list[int]:
            return [
                entry.position for entry in await store.load_entries(key("a"), "items", **arguments)
            ]

        assert await read() == [0, 1, 2, 3, 4]
        assert await read(limit=2) == [0, 1]
        assert await read(after=1, limit=2) == [2, 3]
        assert await read(descending=True, limit=2) == [4, 3]
        assert await read(descending=True, after=3) == [2, 1, 0]
        assert await store.load_entry(key("a"), "items", "i3") == SeriesEntry(3, b"3", "i3")
        assert await store.load_entry(key("a"), "items", "i9") is None
        assert await read(limit=0) == []


async def test_concurrent_appends_have_contiguous_positions(storage: Storage):
    async with storage.open() as store:
        await put(store, "a")
        await asyncio.gather(
            *(store.commit(Append(key("a"), "e", (Item(b""), Item(b"")))) for _ in range(20))
        )
        assert [entry.position for entry in await store.load_entries(key("a"), "e")] == list(
            range(40)
        )


async def test_append_duplicate_or_invalid_id_conflicts(storage: Storage):
    async with storage.open() as store:
        await put(store, "a", state="s")
        await store.commit(Append(key("a"), "items", (Item(b"0", "x"), Item(b"1"), Item(b"2"))))
        for again in (
            (Item(b"3", "x"),),
            (Item(b"3", "y"), Item(b"4", "y")),
            (Item(b"3", "\0"),),
            (Item(b"", "\ud800"),),
        ):
            assert (
                await expect_conflict(store, Append(key("a"), "items", again))
            ).found_state == "s"
        assert len(await store.load_entries(key("a"), "items")) == 3


async def test_remove_entry_keeps_other_positions(storage: Storage):
    async with storage.open() as store:
        await put(store, "a")
        await store.commit(Append(key("a"), "items", tuple(Item(b"", id) for id in "xyz")))
        await store.commit(Remove(key("a"), "items", "y"))
        assert [
            (entry.position, entry.id) for entry in await store.load_entries(key("a"), "items")
        ] == [
            (0, "x"),
            (2, "z"),
        ]
        assert (await expect_conflict(store, Remove(key("a"), "items", "y"))).found_state is None
        await store.commit(Append(key("a"), "items", (Item(b"", "y"),)))
        assert [entry.position for entry in await store.load_entries(key("a"), "items")] == [
            0,
            2,
            3,
        ]


async def test_delete_record_deletes_its_entries(storage: Storage):
    async with storage.open() as store:
        await put(store, "a")
        await store.commit(Append(key("a"), "items", (Item(b"", "x"),)))
        await store.commit(Delete(key("a")))
        await put(store, "a")
        assert await store.load_entries(key("a"), "items") == ()


async def test_load_page_paginates_both_directions(storage: Storage):
    async with storage.open() as store:
        records = [await put(store, f"r{number}") for number in range(5)]

        async def read(descending: bool, after: int | None = None, limit: int = 20) -> list[str]:
            found = await store.load_page(
                "me", "response", after=after, limit=limit, descending=descending
            )
            return [record.key.id for record in found]

        assert await read(True) == ["r4", "r3", "r2", "r1", "r0"]
        assert await read(True, records[3].position, 2) == ["r2", "r1"]
        assert await read(False, records[1].position, 2) == ["r2", "r3"]
        assert await read(False, limit=0) == []


async def test_load_chain_returns_all_hops_in_order(storage: Storage):
    async with storage.open() as store:
        await put(store, "a")
        await put(store, "b", parent="a")
        await put(store, "fork", parent="a")
        await put(store, "c", parent="b")
        chain = await store.load_chain(key("c"))
        assert chain is not None
        assert [record.key.id for record in chain.records] == ["a", "b", "c"]
        assert chain.is_complete


async def test_load_chain_with_missing_hop_is_incomplete(storage: Storage):
    async with storage.open() as store:
        await put(store, "a")
        await put(store, "b", parent="a")
        await put(store, "c", parent="b")
        await store.commit(Delete(key("b")))
        chain = await store.load_chain(key("c"))
        assert chain is not None
        assert [record.key.id for record in chain.records] == ["c"]
        assert not chain.is_complete


async def test_load_chain_excludes_records_of_other_owner(storage: Storage):
    async with storage.open() as store:
        await store.commit(Put(key("a", owner="you"), 0, b"secret"))
        await put(store, "b", parent="a")
        chain = await store.load_chain(key("b"))
        assert chain is not None
        assert [record.key.owner for record in chain.records] == ["me"]
        assert not chain.is_complete


async def test_load_chain_with_cycle_terminates_incomplete(storage: Storage):
    async with storage.open() as store:
        await put(store, "a", parent="b")
        await put(store, "b", parent="a")
        await put(store, "self", parent="self")
        for id, hops in (("a", ["a"]), ("b", ["a", "b"]), ("self", ["self"])):
            chain = await store.load_chain(key(id))
            assert chain is not None
            assert [record.key.id for record in chain.records] == hops
            assert not chain.is_complete


async def test_expired_record_is_missing_before_clean(storage: Storage):
    async with storage.open() as store:
        await put(store, "a", expires=storage.clock.time + 10)
        storage.clock.time += 10
        assert await store.get(key("a")) is None
        assert await store.load_page("me", "response") == ()
        assert (await expect_conflict(store, Delete(key("a")))).found_state is None
        assert await store.clean() == 1
        assert await store.clean() == 0


async def test_ttl_expires_only_unused_records(storage: Storage):
    async with storage.open(Bounds(ttl=100)) as store:
        await put(store, "used")
        await put(store, "idle")
        await put(store, "pinned", pinned=True)
        await put(store, "working", run=store.run)
        storage.clock.time += 60
        await store.get(key("used"))
        await store.clean()
        storage.clock.time += 60
        assert await store.get(key("idle")) is None
        assert await store.clean() == 1
        assert [record.key.id for record in await store.load_page("me", "response")] == [
            "working",
            "pinned",
            "used",
        ]


async def test_clean_evicts_least_recently_used(storage: Storage):
    async with storage.open(Bounds(records=3)) as store:
        for id in "abcde":
            storage.clock.time += 1
            await put(store, id)
        storage.clock.time += 1
        await store.get(key("a"))
        storage.clock.time += 1
        await store.commit(Append(key("b"), "items", (Item(b""),)))
        assert await store.clean() == 2
        assert {record.key.id for record in await store.load_page("me", "response")} == {
            "a",
            "b",
            "e",
        }


async def test_load_chain_marks_all_hops_as_used(storage: Storage):
    async with storage.open(Bounds(records=2)) as store:
        for id, parent in (("a", None), ("b", "a"), ("other", None)):
            storage.clock.time += 1
            await put(store, id, parent=parent)
        storage.clock.time += 1
        await store.load_chain(key("b"))
        assert await store.clean() == 1
        assert await store.get(key("other")) is None


async def test_clean_enforces_byte_limit_including_entries(storage: Storage):
    async with storage.open(Bounds(nbytes=1000)) as store:
        await put(store, "a", b"x" * 400)
        storage.clock.time += 1
        await put(store, "b", b"x" * 400)
        assert await store.clean() == 0
        storage.clock.time += 1
        await store.commit(Append(key("b"), "items", (Item(b"x" * 300, "i"),)))
        assert await store.clean() == 1
        assert await store.get(key("a")) is None
        storage.clock.time += 1
        await store.commit(Remove(key("b"), "items", "i"), Replace(key("b"), "", b"x" * 500))
        await put(store, "c", b"x" * 500)
        assert await store.clean() == 0


async def test_clean_evicts_at_most_limit_per_call(storage: Storage):
    async with storage.open(Bounds(records=1)) as store:
        for number in range(5):
            await put(store, f"r{number}")
        assert [await store.clean(3) for _ in range(3)] == [3, 1, 0]


async def test_clean_keeps_running_and_pinned_records(storage: Storage):
    async with storage.open(Bounds(records=0)) as store:
        await put(store, "working", run=store.run)
        await put(store, "pinned", pinned=True)
        await put(store, "plain")
        assert await store.clean() == 1
        await store.commit(Replace(key("working"), "done", b""))
        assert await store.clean() == 1
        assert [record.key.id for record in await store.load_page("me", "response")] == ["pinned"]


async def test_pinned_record_exceeding_byte_limit_rejected(storage: Storage):
    async with storage.open(Bounds(nbytes=1000)) as store:
        await put(store, "a", b"x" * 500, pinned=True)
        for change in (
            Put(key("b"), 0, b"x", pinned=True),
            Append(key("a"), "items", (Item(b"x"),)),
            Replace(key("a"), "", b"x" * 501),
        ):
            with pytest.raises(StoreFull):
                await store.commit(change)
        assert await store.get(key("b")) is None
        await store.commit(Delete(key("a")))
        await put(store, "b", b"x" * 500, pinned=True)


@pytest.mark.parametrize(
    "bounds", [Bounds(records=20), Bounds(nbytes=2000)], ids=["records", "bytes"]
)
async def test_clean_evicts_owner_with_most(storage: Storage, bounds: Bounds):
    async with storage.open(bounds) as store:
        for number in range(5):
            storage.clock.time += 1
            await store.commit(Put(key(f"r{number}", owner="small"), 0, b"x" * 100))
        for number in range(80):
            storage.clock.time += 1
            await store.commit(Put(key(f"r{number:02}", owner="flood"), 0, b"x" * 100))
        while await store.clean(7):
            pass
        assert len(await store.load_page("small", "response", limit=99)) == 5
        left = await store.load_page("flood", "response", limit=99)
        assert [record.key.id for record in left] == [f"r{number}" for number in range(79, 64, -1)]


async def test_clean_evicts_equal_owners_in_turn(storage: Storage):
    async with storage.open(Bounds(records=6)) as store:
        for owner in ("a", "b", "c"):
            for number in range(4):
                storage.clock.time += 1
                await store.commit(Put(key(f"r{number}", owner=owner), 0, b""))
        assert await store.clean() == 6
        for owner in ("a", "b", "c"):
            left = await store.load_page(owner, "response")
            assert [record.key.id for record in left] == ["r3", "r2"]


async def test_pinned_records_leave_share_of_each_owner(storage: Storage):
    async with storage.open(Bounds(nbytes=2000)) as store:
        store.share(lambda: ["a", "b"])
        # Half of the bytes are for pinned records, and a quarter of that is a's.
        await store.commit(Put(key("r", owner="b"), 0, b"x" * 750, pinned=True))
        for change in (
            Put(key("s", owner="b"), 0, b"x", pinned=True),
            Append(key("r", owner="b"), "items", (Item(b"x"),)),
            Replace(key("r", owner="b"), "", b"x" * 751),
        ):
            with pytest.raises(StoreFull):
                await store.commit(change)
        await store.commit(Put(key("r", owner="a"), 0, b"x" * 250, pinned=True))
        with pytest.raises(StoreFull, match="space for 250 bytes"):
            await store.commit(Put(key("s", owner="a"), 0, b"x", pinned=True))


async def test_list_abandoned_excludes_live_run(storage: Storage):
    async with storage.open() as store:
        await put(store, "a", run=store.run)
        assert await store.list_abandoned("response") == ()


async def test_second_store_handle_sees_commits_of_first(storage: Storage):
    if not storage.durable:
        pytest.skip("a memory store is its process's own")
    async with storage.open() as one, storage.open() as two:
        await put(one, "a", b"1")
        record = await two.get(key("a"))
        assert record is not None
        await two.commit(Replace(key("a"), "s", b"2", version=record.version))
        assert (
            await expect_conflict(one, Replace(key("a"), "s", b"3", version=record.version))
        ).found_state == "s"
        deletions = (store.commit(Delete(key("a"))) for store in (one, two) * 10)
        results = await asyncio.gather(*deletions, return_exceptions=True)
        assert sum(result is None for result in results) == 1


async def test_abandoned_run_of_closed_store_is_taken_over_once(storage: Storage):
    if not storage.durable:
        pytest.skip("a memory store is its process's own")
    async with storage.open() as one:
        await put(one, "a", state="running", run=one.run)
        await put(one, "done", state="done")
    async with storage.open() as two, storage.open() as three:
        await put(three, "alive", run=three.run)
        (lapsed,) = await two.list_abandoned("response")
        assert lapsed.key == key("a")
        assert await two.list_abandoned("file") == ()
        heirs = (
            store.commit(Replace(key("a"), "running", b"", run=store.run, version=lapsed.version))
            for store in (two, three)
        )
        results = await asyncio.gather(*heirs, return_exceptions=True)
        assert sum(result is None for result in results) == 1
        assert await two.list_abandoned("response") == ()
