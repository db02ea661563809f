"""Every flag of `vllm serve` is an option of the simulator's commands, or explained: by an
error that says what to use instead, or for `serve sim` by a warning.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click import Context
from tests.cli_core.cli_runner import get_error, get_output

from dragoman_cli import Command, CommandLine
from dragoman_sim.vllm_flags import explain_vllm_flag, list_explained_flags
from dragoman_sim.vllm_serve_flags import find_serve_flag, load_serve_flags

from .dump_serve_flags import list_serve_flags

SHORT = ("--num-prompts", "3", "--request-rate", "5", "--input-len", "50", "--output-len", "4")


def list_vllm_flags() -> list[str]:
    """Return the flags of `vllm serve` without the forms that turn a switch off."""
    return [
        name for flag in load_serve_flags() for name in flag.names if not flag.is_negated_by(name)
    ]


def list_options(name: str) -> frozenset[str]:
    line = CommandLine()
    command = line.get_command(Context(line), name)
    assert isinstance(command, Command)
    return command.flags


@pytest.mark.parametrize("command", ["simulate", "calibrate", "profile", "serve"])
def test_vllm_flags_are_all_options_or_explained(command: str) -> None:
    flags = list_vllm_flags()
    options = list_options(command)
    assert len(flags) > 300
    unnamed = [flag for flag in flags if flag not in options and explain_vllm_flag(flag) is None]
    assert unnamed == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("simulate", "poisson", "--gpu-memory-utilization", "0.5"), "use|num-gpu-blocks-override"),
        (("simulate", "poisson", "--gpu_memory_utilization=0.5"), "dragoman profile"),
        (("simulate", "poisson", "-tp", "2"), "profile of such servers"),
        (("simulate", "poisson", "--no-enforce-eager"), "dragoman calibrate"),
        (("simulate", "poisson", "--enable-sliding-window"), "this variant of the KV cache"),
        (
            ("calibrate", "log.jsonl", "--kv-offloading-size", "4"),
            "not of a second tier of the KV cache",
        ),
        (("calibrate", "log.jsonl", "--pipeline-parallel-size", "2"), "not simulated"),
        (("profile", "--gpu", "l4", "--compilation-config.mode", "3"), "dragoman calibrate"),
        (("simulate", "poisson", "--swap-space", "4"), "no such flag any more"),
    ],
)
def test_unsupported_vllm_flag_is_rejected_with_reason(
    arguments: tuple[str, ...], reason: str
) -> None:
    complaint = " ".join(get_error(*arguments).split())
    assert "of vLLM is not an option of" in complaint
    assert any(part in complaint for part in reason.split("|"))


def test_unknown_flag_prints_click_error() -> None:
    for arguments in (
        ("serve", "tiny", "--no-such-thing", "4"),
        ("simulate", "poisson", "--no-such-thing"),
    ):
        error = get_error(*arguments)
        assert "No such option" in error
        assert arguments[2] in error


def test_negated_vllm_flags_are_accepted() -> None:
    assert get_output(
        "simulate", "poisson", *SHORT, "--disable-prefix-caching", "--disable-chunked-prefill"
    )


@pytest.mark.parametrize(
    "flags",
    [
        ("--tensor-parallel-size", "4"),
        ("--data-parallel-size", "4"),
        ("--no-enable-expert-parallel",),
    ],
)
def test_simulate_layout_missing_in_profile_is_rejected(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    profile = str(tmp_path / "shared-experts.yaml")
    get_output(
        "profile",
        "--gpu",
        "h100-sxm",
        "--model",
        "Qwen/Qwen3-30B-A3B",
        "--dp",
        "2",
        "--ep",
        "--out",
        profile,
    )
    complaint = get_error("simulate", "poisson", *SHORT, "--profile", profile, *flags)
    assert f"Error: {flags[0]}" in complaint
    assert "use a profile of such servers" in complaint
    get_output(
        "simulate",
        "poisson",
        *SHORT,
        "--profile",
        profile,
        "--data-parallel-size",
        "2",
        "--enable-expert-parallel",
    )


def test_simulate_data_parallel_ranks_equal_replicas() -> None:
    ranks = get_output(
        "simulate", "poisson", *SHORT, "--data-parallel-size", "2", "--tensor-parallel-size", "1"
    )
    replicas = get_output("simulate", "poisson", *SHORT, "--replicas", "2", "--enable-lora")
    assert ranks.splitlines()[2:] == replicas.splitlines()[2:]


def test_gpu_memory_utilization_increases_block_count() -> None:
    outputs = [
        get_output(
            "profile",
            "--gpu",
            "h100-sxm",
            "--model",
            "meta-llama/Llama-3.1-8B",
            "--gpu-memory-utilization",
            share,
        )
        for share in ("0.5", "0.9")
    ]
    blocks = [int(text.partition("num_gpu_blocks: ")[2].split()[0]) for text in outputs]
    per_block = 16 * 131072
    assert blocks[1] - blocks[0] == pytest.approx(0.4 * 80e9 / per_block, rel=0.1)


def test_explained_flags_have_one_reason_each() -> None:
    flags = [flag for names, _ in list_explained_flags() for flag in names.split(", ")]
    assert len(flags) == len(set(flags))


def test_serve_flag_is_found_by_alias_and_unique_beginning() -> None:
    by_alias = find_serve_flag("-tp")
    assert by_alias is not None
    assert by_alias is find_serve_flag("--tensor-parallel-size")
    assert by_alias is find_serve_flag("--tensor-par")
    assert find_serve_flag("--data-parallel") is None, "several options begin like this"
    assert find_serve_flag("--no-such-thing") is None


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_serve_flags_match_installed_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = pytest.importorskip("vllm")
    if not str(vllm.__version__).startswith("0.33.0"):
        pytest.skip("the list is of vLLM 0.33.0")
    listed = sorted(
        " ".join((*flag.names, *([] if flag.arity == "1" else [flag.arity])))
        for flag in load_serve_flags()
    )
    assert listed == list_serve_flags(monkeypatch)
