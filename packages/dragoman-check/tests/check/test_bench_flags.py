"""Flags of `vllm bench serve` are unknown options whose error says what to use."""

from __future__ import annotations

import re

import pytest
from click import Context
from tests.cli_core.cli_runner import call

from dragoman_check.commands.bench_flags import BENCH_FLAGS
from dragoman_cli import Command, CommandLine


@pytest.mark.parametrize(
    ("flag", "advice"),
    [
        ("--base-url", "the server is the first argument"),
        ("--max-concurrency", "use --concurrency N"),
        ("--dataset-name", "the load is the second argument"),
        ("--ignore-eos", """'{"ignore_eos": VALUE}'"""),
    ],
)
def test_bench_flag_of_vllm_names_counterpart(flag: str, advice: str) -> None:
    result = call("bench", "http://127.0.0.1:9/v1", flag, "1")
    assert result.exit_code == 2
    assert advice in " ".join(result.stderr.split())


def test_bench_flag_advice_names_existing_options() -> None:
    line = CommandLine()
    command = line.get_command(Context(line), "bench")
    assert isinstance(command, Command)
    for flag in BENCH_FLAGS:
        assert command.flags.isdisjoint(flag.names)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", flag.advice):
            assert option in command.flags
