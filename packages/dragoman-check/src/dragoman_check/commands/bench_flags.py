"""Flags of `vllm bench serve` that `dragoman bench` does not have, and what to use
instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman_cli import explain_foreign_flag, list_flags

_VLLM = "vllm bench"

BENCH_FLAGS = (
    list_flags(_VLLM, "--base-url --host --port", "the server is the first argument, a URL"),
    list_flags(
        _VLLM,
        "--backend --endpoint --endpoint-type",
        "use --dialect: completions, chat, responses, messages or ollama",
    ),
    list_flags(
        _VLLM,
        "--dataset-name --dataset-path --hf-split --hf-subset",
        "the load is the second argument: a trace file, poisson, bursts or sessions",
    ),
    list_flags(_VLLM, "--random-input-len --sonnet-input-len", "use --input-len"),
    list_flags(
        _VLLM,
        "--random-output-len --sharegpt-output-len --sonnet-output-len --custom-output-len",
        "use --output-len",
    ),
    list_flags(_VLLM, "--random-prefix-len", "use --system-tokens N"),
    list_flags(
        _VLLM, "--random-range-ratio", "give a range of lengths, such as --input-len 400-600"
    ),
    list_flags(_VLLM, "--max-concurrency", "use --concurrency N"),
    list_flags(_VLLM, "--num-warmups", "use --warmup N"),
    list_flags(
        _VLLM,
        "--save-result --result-dir --result-filename --append-result",
        "use --save-detailed FILE",
    ),
    list_flags(_VLLM, "--served-model-name", "use --model"),
    list_flags(_VLLM, "--lora-modules", "use --num-loras N"),
    list_flags(_VLLM, "--plot-timeline --plot-dataset-stats", "use --plots FILE"),
    list_flags(
        _VLLM,
        "--percentile-metrics --metric-percentiles --tokenizer --tokenizer-mode "
        "--trust-remote-code --disable-tqdm --ready-check-timeout-sec --profile --label "
        "--metadata --use-beam-search --logprobs --disable-shuffle",
        "it has no counterpart here. Leave it out",
    ),
    list_flags(
        _VLLM,
        "--ignore-eos --temperature --top-p --top-k --min-p --frequency-penalty "
        "--presence-penalty --repetition-penalty",
        """use --extra-body '{"NAME": VALUE}'""",
    ),
)


def explain_bench_flag(
    command: str, arguments: Sequence[str], own_flags: frozenset[str]
) -> str | None:
    """Explain an unknown option of `bench`; an `ExplainOption`."""
    return explain_foreign_flag(BENCH_FLAGS, command, arguments, own_flags)
