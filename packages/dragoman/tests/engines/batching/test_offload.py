"""Blocks in files: another process finds exactly what one process has computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.token_engine import Failed, TokenRequest
from dragoman.engines.batching import (
    BlockFiles,
    EngineConfig,
    SchedulerConfig,
    build_rng,
    compute_fingerprint,
)
from dragoman.engines.tiny.engine import TinyEngine
from dragoman.engines.tiny.llama import Llama
from dragoman.engines.tiny.paged_llama import PagedLlama

from ..faults import NanModel
from ..harness import (
    GREEDY,
    ROOM,
    Outputs,
    StepperHarness,
    files,
    generate_with_files,
    run_alone,
    run_client,
)

PROMPT = tuple(np.random.default_rng(2).integers(0, 96, 90).tolist())
ASK = TokenRequest(id="a", prompt=PROMPT, max_tokens=8, sampling=GREEDY, logprobs=3)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_block_files_after_restart_give_bit_identical_answer(
    small_model: Llama, tmp_path: Path
) -> None:
    first = generate_with_files(small_model, tmp_path, ASK)
    second = generate_with_files(small_model, tmp_path, ASK)
    assert (first.cached, second.cached) == ([0], [80])
    assert second.answer == first.answer == run_alone(small_model, ASK).answer


def test_block_files_forget_written_and_waiting_blocks(tmp_path: Path) -> None:
    hashes = [bytes([number]) * 16 for number in range(3)]
    with files(tmp_path) as store:
        for number, block_hash in enumerate(hashes):
            store.enqueue(block_hash, number)
        store.offload({hashes[0]: 0}.get, lambda _: b"contents", 1)
        # The first may be in the writer's hands, the others wait.
        store.forget(hashes[:2])
        assert not store.contains(hashes[0])
        assert not store.offload(dict(zip(hashes, range(3), strict=True)).get, lambda _: b"x", 9)
    assert names(tmp_path) == [f"{hashes[2].hex()}.kv"]


def test_blocks_with_nan_are_never_kept_in_files(small_model: Llama, tmp_path: Path) -> None:
    broken = generate_with_files(NanModel(PagedLlama(small_model), ASK.id), tmp_path, ASK)
    assert isinstance(broken.end, Failed)
    assert names(tmp_path) == []
    # Another process with a sound model computes the prompt itself.
    whole = generate_with_files(small_model, tmp_path, ASK)
    assert whole.cached == [0]
    assert whole.answer == run_alone(small_model, ASK).answer


def test_block_files_include_generated_tokens_for_next_turn(
    small_model: Llama, tmp_path: Path
) -> None:
    first = generate_with_files(small_model, tmp_path, ASK)
    longer = replace(ASK, prompt=(*PROMPT, *first.tokens, 5))
    second = generate_with_files(small_model, tmp_path, longer)
    # The last token of an answer is never computed, and blocks have 16 tokens.
    assert second.cached == [96]
    assert second.answer == run_alone(small_model, longer).answer


def test_block_files_miss_for_other_salt_or_prompt_logprobs(
    small_model: Llama, tmp_path: Path
) -> None:
    generate_with_files(small_model, tmp_path, ASK)
    assert generate_with_files(
        small_model, tmp_path, replace(ASK, cache_salt="somebody else")
    ).cached == [0]
    assert generate_with_files(small_model, tmp_path, replace(ASK, prompt_logprobs=1)).cached == [0]


def test_corrupted_block_file_is_recomputed(small_model: Llama, tmp_path: Path) -> None:
    expected = generate_with_files(small_model, tmp_path, ASK).answer
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    spoilt = generate_with_files(small_model, tmp_path, ASK)
    mended = generate_with_files(small_model, tmp_path, ASK)
    assert (spoilt.cached, mended.cached) == ([0], [80])
    assert spoilt.answer == mended.answer == expected


def test_swapped_block_files_are_rejected(small_model: Llama, tmp_path: Path) -> None:
    expected = generate_with_files(small_model, tmp_path, ASK).answer
    one, other = sorted(tmp_path.iterdir())[:2]
    held = one.read_bytes(), other.read_bytes()
    one.write_bytes(held[1])
    other.write_bytes(held[0])
    assert generate_with_files(small_model, tmp_path, ASK).answer == expected


def test_deleted_block_files_are_recomputed(small_model: Llama, tmp_path: Path) -> None:
    generate_with_files(small_model, tmp_path, ASK)
    with files(tmp_path) as store:
        for path in tmp_path.iterdir():
            path.unlink()
        bench = StepperHarness(small_model, files=store)
        outputs = bench.add(ASK)
        bench.finish()
    assert (outputs.cached, outputs.answer) == ([0], run_alone(small_model, ASK).answer)


def test_block_files_over_limit_evict_least_recently_used(
    small_model: Llama, tmp_path: Path
) -> None:
    generate_with_files(small_model, tmp_path, ASK)
    size = next(tmp_path.iterdir()).stat().st_size
    generate_with_files(small_model, tmp_path, replace(ASK, prompt=PROMPT[::-1]), most=6 * size)
    assert len(names(tmp_path)) == 6
    assert generate_with_files(small_model, tmp_path, replace(ASK, prompt=PROMPT[::-1])).cached == [
        80
    ]


def test_block_files_are_deleted_on_cache_reset(small_model: Llama, tmp_path: Path) -> None:
    generate_with_files(small_model, tmp_path, ASK)
    with files(tmp_path) as store:
        bench = StepperHarness(small_model, files=store)
        assert bench.stepper.scheduler.count_cached_tokens(PROMPT, "") == 80
        bench.stepper.scheduler.clear_cache()
        assert bench.stepper.scheduler.count_cached_tokens(PROMPT, "") == 0
        outputs = bench.add(ASK)
        bench.finish()
        assert outputs.cached == [0]
    assert names(tmp_path) == []


def test_block_files_pending_writes_are_discarded_on_reset(tmp_path: Path) -> None:
    with files(tmp_path) as store:
        store.enqueue(b"a", 1)
        # So much that it is certainly still being written.
        store.offload(lambda _: 1, lambda _: bytes(64 << 20), 1)
        store.clear()
    assert not store.contains(b"a")
    assert names(tmp_path) == []


def test_block_files_are_private_and_foreign_files_are_kept(
    small_model: Llama, tmp_path: Path
) -> None:
    inner = tmp_path / "model" / "kv"
    generate_with_files(small_model, inner, ASK)
    assert inner.stat().st_mode & 0o777 == 0o700
    (inner / "notes.txt").write_text("mine")
    (inner / "notes.kv").write_text("mine")
    generate_with_files(small_model, inner, replace(ASK, prompt=PROMPT[::-1]), most=1)
    assert names(inner) == ["notes.kv", "notes.txt"]


def test_block_file_write_error_does_not_fail_requests(
    small_model: Llama, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with files(tmp_path / "kv") as store:
        (tmp_path / "kv").rmdir()
        bench = StepperHarness(small_model, files=store)
        outputs = bench.add(ASK)
        bench.finish()
        bench.stepper.offload(1000)
    assert outputs.answer == run_alone(small_model, ASK).answer
    assert "not saved to disk" in caplog.text


PREFIXES = [tuple(np.random.default_rng(seed).integers(0, 96, 64).tolist()) for seed in range(3)]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(17, 64), st.integers(0, 3), st.integers(0, 2)),
        min_size=4,
        max_size=12,
    )
)
def test_block_files_roundtrip_under_small_pool_keeps_answers(
    small_model: Llama,
    tmp_path_factory: pytest.TempPathFactory,
    plan: list[tuple[int, int, int, int]],
) -> None:
    """The pool is so small that blocks are reused while they wait to be written, and
    loaded again later.
    """
    directory = tmp_path_factory.mktemp("kv")
    with files(directory) as store:
        bench = StepperHarness(
            small_model,
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
    assert all(one.answer == run_alone(small_model, ask).answer for ask, one in outputs)
    for prefix in PREFIXES:
        ask = TokenRequest(id="again", prompt=prefix, max_tokens=4, sampling=GREEDY)
        assert (
            generate_with_files(small_model, directory, ask).answer
            == run_alone(small_model, ask).answer
        )


async def test_engine_stop_flushes_all_computed_blocks(small_model: Llama, tmp_path: Path) -> None:
    config = EngineConfig(max_model_len=256, num_kv_tokens=1024)
    cached: list[int] = []
    for _ in range(2):
        engine = TinyEngine(small_model, config, build_rng, files=BlockFiles(tmp_path, ROOM))
        for _ in range(2):
            # The same engine can be started again, as after a failure.
            async with run_client(engine) as client:
                cached += (await client.ask(ASK)).cached
    assert cached == [0, 80, 80, 80]


def test_fingerprint_changes_with_model_file_or_engine(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"1")
    name = compute_fingerprint([file], "engine 1", "float32")
    assert name == compute_fingerprint([file], "engine 1", "float32")
    assert name != compute_fingerprint([file], "engine 2", "float32")
    file.write_bytes(b"22")
    assert name != compute_fingerprint([file], "engine 1", "float32")
