"""Blocks in files: another process finds exactly what one process has computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.engine import TokenRequest
from dragoman.engines.batching import (
    BlockFiles,
    EngineConfig,
    SchedulerConfig,
    build_rng,
    compute_fingerprint,
)
from dragoman.engines.tiny.engine import TinyEngine
from dragoman.engines.tiny.model import Llama

from ..harness import Bench, GREEDY, Outputs, ROOM, alone, files, generate_with_files, run_client

PROMPT = tuple(np.random.default_rng(2).integers(0, 96, 90).tolist())
ASK = TokenRequest(id="a", prompt=PROMPT, max_tokens=8, sampling=GREEDY, logprobs=3)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_after_a_restart_a_prompt_is_found_and_says_the_same_to_the_bit(
    small: Llama, tmp_path: Path
) -> None:
    first = generate_with_files(small, tmp_path, ASK)
    second = generate_with_files(small, tmp_path, ASK)
    assert (first.cached, second.cached) == ([0], [80])
    assert second.answer == first.answer == alone(small, ASK).answer


def test_the_answer_is_found_too_when_the_conversation_goes_on(
    small: Llama, tmp_path: Path
) -> None:
    first = generate_with_files(small, tmp_path, ASK)
    longer = replace(ASK, prompt=(*PROMPT, *first.tokens, 5))
    second = generate_with_files(small, tmp_path, longer)
    # The last token of an answer is never computed, and blocks have 16 tokens.
    assert second.cached == [96]
    assert second.answer == alone(small, longer).answer


def test_requests_that_must_not_share_have_no_hit(small: Llama, tmp_path: Path) -> None:
    generate_with_files(small, tmp_path, ASK)
    assert generate_with_files(
        small, tmp_path, replace(ASK, cache_salt="somebody else")
    ).cached == [0]
    assert generate_with_files(small, tmp_path, replace(ASK, prompt_logprobs=1)).cached == [0]


def test_a_file_that_is_not_as_it_was_is_computed_again(small: Llama, tmp_path: Path) -> None:
    expected = generate_with_files(small, tmp_path, ASK).answer
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    spoilt = generate_with_files(small, tmp_path, ASK)
    mended = generate_with_files(small, tmp_path, ASK)
    assert (spoilt.cached, mended.cached) == ([0], [80])
    assert spoilt.answer == mended.answer == expected


def test_a_file_in_the_place_of_another_is_not_taken_for_it(small: Llama, tmp_path: Path) -> None:
    expected = generate_with_files(small, tmp_path, ASK).answer
    one, other = sorted(tmp_path.iterdir())[:2]
    held = one.read_bytes(), other.read_bytes()
    one.write_bytes(held[1])
    other.write_bytes(held[0])
    assert generate_with_files(small, tmp_path, ASK).answer == expected


def test_files_that_went_while_the_process_ran_are_not_missed(small: Llama, tmp_path: Path) -> None:
    generate_with_files(small, tmp_path, ASK)
    with files(tmp_path) as store:
        for path in tmp_path.iterdir():
            path.unlink()
        bench = Bench(small, files=store)
        outputs = bench.add(ASK)
        bench.finish()
    assert (outputs.cached, outputs.answer) == ([0], alone(small, ASK).answer)


def test_the_files_keep_to_their_bound_and_the_last_used_stay(small: Llama, tmp_path: Path) -> None:
    generate_with_files(small, tmp_path, ASK)
    size = next(tmp_path.iterdir()).stat().st_size
    generate_with_files(small, tmp_path, replace(ASK, prompt=PROMPT[::-1]), most=6 * size)
    assert len(names(tmp_path)) == 6
    assert generate_with_files(small, tmp_path, replace(ASK, prompt=PROMPT[::-1])).cached == [80]


def test_nothing_is_found_after_the_cache_was_reset(small: Llama, tmp_path: Path) -> None:
    generate_with_files(small, tmp_path, ASK)
    with files(tmp_path) as store:
        bench = Bench(small, files=store)
        assert bench.stepper.scheduler.count_cached_tokens(PROMPT, "") == 80
        bench.stepper.scheduler.clear_cache()
        assert bench.stepper.scheduler.count_cached_tokens(PROMPT, "") == 0
        outputs = bench.add(ASK)
        bench.finish()
        assert outputs.cached == [0]
    assert names(tmp_path) == []


def test_what_is_still_being_written_when_the_cache_is_reset_is_not_found(tmp_path: Path) -> None:
    with files(tmp_path) as store:
        store.enqueue(b"a", 1)
        # So much that it is certainly still being written.
        store.offload(lambda _: 1, lambda _: bytes(64 << 20), 1)
        store.clear()
    assert not store.contains(b"a")
    assert names(tmp_path) == []


def test_block_files_are_private_and_other_files_are_left_alone(
    small: Llama, tmp_path: Path
) -> None:
    inner = tmp_path / "model" / "kv"
    generate_with_files(small, inner, ASK)
    assert inner.stat().st_mode & 0o777 == 0o700
    (inner / "notes.txt").write_text("mine")
    (inner / "notes.kv").write_text("mine")
    generate_with_files(small, inner, replace(ASK, prompt=PROMPT[::-1]), most=1)
    assert names(inner) == ["notes.kv", "notes.txt"]


def test_a_full_disk_fails_no_request(
    small: Llama, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with files(tmp_path / "kv") as store:
        (tmp_path / "kv").rmdir()
        bench = Bench(small, files=store)
        outputs = bench.add(ASK)
        bench.finish()
        bench.stepper.offload(1000)
    assert outputs.answer == alone(small, ASK).answer
    assert "not saved to disk" in caplog.text


PREFIXES = [tuple(np.random.default_rng(seed).integers(0, 96, 64).tolist()) for seed in range(3)]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(17, 64), st.integers(0, 3), st.integers(0, 2)),
        min_size=4,
        max_size=12,
    )
)
def test_what_comes_back_from_files_is_what_left_the_pool(
    small: Llama, tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[int, int, int, int]]
) -> None:
    """The pool is so small that blocks are reused while they wait to be written, and
    loaded again later.
    """
    directory = tmp_path_factory.mktemp("kv")
    with files(directory) as store:
        bench = Bench(
            small,
            SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=32),
            num_kv_tokens=96,
            max_model_len=80,
            files=store,
        )
        outputs: list[tuple[TokenRequest, Outputs]] = []
        for place, (prefix, length, steps, spills) in enumerate(plan):
            ask = TokenRequest(
                id=str(place), prompt=PREFIXES[prefix][:length], max_tokens=4, sampling=GREEDY
            )
            outputs.append((ask, bench.add(ask)))
            bench.step(steps)
            bench.stepper.offload(spills)
        bench.finish()
        bench.stepper.offload(1000)
    assert all(one.answer == alone(small, ask).answer for ask, one in outputs)
    for prefix in PREFIXES:
        ask = TokenRequest(id="again", prompt=prefix, max_tokens=4, sampling=GREEDY)
        assert generate_with_files(small, directory, ask).answer == alone(small, ask).answer


async def test_an_engine_that_stops_keeps_all_that_it_computed(
    small: Llama, tmp_path: Path
) -> None:
    config = EngineConfig(max_model_len=256, num_kv_tokens=1024)
    cached: list[int] = []
    for _ in range(2):
        engine = TinyEngine(small, config, build_rng, files=BlockFiles(tmp_path, ROOM))
        for _ in range(2):
            # The same engine can be started again, as after a failure.
            async with run_client(engine) as client:
                cached += (await client.ask(ASK)).cached
    assert cached == [0, 80, 80, 80]


def test_a_change_of_the_model_or_of_what_computes_it_has_another_name(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"1")
    name = compute_fingerprint([file], "engine 1", "float32")
    assert name == compute_fingerprint([file], "engine 1", "float32")
    assert name != compute_fingerprint([file], "engine 2", "float32")
    file.write_bytes(b"22")
    assert name != compute_fingerprint([file], "engine 1", "float32")
