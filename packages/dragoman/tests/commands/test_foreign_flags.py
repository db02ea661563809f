"""Flags of other programs are unknown options whose error says what to use instead."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from click import Context
from tests.cli_core.cli_runner import call

from dragoman.commands.foreign_flags import ASK_FLAGS, SERVE_FLAGS
from dragoman_cli import Command, CommandLine, ForeignFlag

COMMANDS = {"serve": SERVE_FLAGS, "run": ASK_FLAGS, "chat": ASK_FLAGS}
SAMPLES = {
    "serve": [
        (("-m", "x.gguf"), "the model is the argument"),
        (("-hf", "org/name:Q4_K_M"), "dragoman serve org/name:Q4_K_M"),
        (("tiny", "-c", "4096"), "use --max-model-len N"),
        (("tiny", "-ngl", "99"), "use --gpu-layers N"),
        (("tiny", "--jinja"), "Leave it out"),
        (("tiny", "--enable-auto-tool-choice"), "always parsed"),
        (("vllm:x", "--gpu-memory-utilization", "0.9"), '{"gpu_memory_utilization": VALUE}'),
        (("vllm:x", "--gpu_memory_utilization=0.9"), '{"gpu_memory_utilization": VALUE}'),
        (("vllm:x", "--compilation-config.mode", "3"), '{"compilation_config": VALUE}'),
        (("tiny", "-tp", "2"), "tensor_parallel_size"),
        (("tiny", "--mem-fraction-static", "0.8"), "SGLang's server"),
        (("tiny", "--num-shard", "2"), "tensor_parallel_size"),
    ],
    "run": [
        (("tiny", "-p", "Hello"), "the prompt is what follows the model"),
        (("tiny", "Hello", "--temp", "0"), "use --temperature"),
    ],
    "chat": [(("tiny", "--think"), "--reasoning-effort")],
}


def get_flags(command: str) -> frozenset[str]:
    line = CommandLine()
    found = line.get_command(Context(line), command)
    assert isinstance(found, Command)
    return found.flags


def read_error(*arguments: str) -> str:
    result = call(*arguments)
    assert result.exit_code == 2
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("command", "arguments", "advice"),
    [(name, *sample) for name, samples in SAMPLES.items() for sample in samples],
)
def test_foreign_flag_error_names_counterpart(
    command: str, arguments: Sequence[str], advice: str
) -> None:
    error = read_error(command, *arguments)
    assert f"is not an option of `dragoman {command}`" in error
    assert advice in error
    assert "No such option" not in error


@pytest.mark.parametrize("command", COMMANDS)
def test_foreign_flags_are_listed_once(command: str) -> None:
    names = [name for flag in COMMANDS[command] for name in flag.names]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"--?[a-zA-Z][a-z0-9-]*", name) for name in names)


@pytest.mark.parametrize("flag", [*SERVE_FLAGS, *ASK_FLAGS], ids=lambda flag: flag.names[0])
def test_foreign_flag_advice_names_existing_options(flag: ForeignFlag) -> None:
    own = get_flags("serve") if flag in SERVE_FLAGS else get_flags("run") | get_flags("chat")
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", flag.advice):
        assert option in own


def test_unknown_option_of_no_program_is_reported_as_before() -> None:
    assert "No such option" in read_error("serve", "tiny", "--no-such-thing")
