"""The options of `vllm serve`: their names and the number of their values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

_FILE = Path(__file__).with_name("vllm-serve-flags.txt")

_REMOVED = """\
--block-allocator
--calculate-kv-scales --no-calculate-kv-scales 0
--collect-model-forward-time 0
--cuda-graph-sizes +
--device
--disable-async-output-proc 0
--disable-mm-preprocessor-cache --no-disable-mm-preprocessor-cache 0
--disable-frontend-multiprocessing --no-disable-frontend-multiprocessing 0
--enable-multimodal-encoder-data-parallel 0
--enable-prompt-adapter 0
--enable-reasoning --no-enable-reasoning 0
--engine-use-ray 0
--guided-decoding-backend
--guided-decoding-disable-additional-properties 0
--guided-decoding-disable-any-whitespace 0
--guided-decoding-disable-fallback 0
--long-lora-scaling-factors +
--lora-extra-vocab-size
--max-long-partial-prefills
--max-num-partial-prefills
--max-prompt-adapter-token
--max-prompt-adapters
--max-seq-len-to-capture
--multi-step-stream-outputs
--num-lookahead-slots
--num-scheduler-steps
--override-attention-dtype
--override-neuron-config
--override-pooler-config
--preemption-mode
--prompt-adapters +
--qlora-adapter-name-or-path
--rope-scaling
--rope-theta
--scheduler-delay-factor
--scheduling-cls
--swap-space
--task
--tokenizer-pool-extra-config
--tokenizer-pool-size
--tokenizer-pool-type
--use-v2-block-manager 0
--worker-use-ray 0
"""
"""Options of earlier versions of vLLM, which command lines still have."""


class ServeFlag(Struct, frozen=True):
    """An option of `vllm serve`.

    names: all of its names; the first is its own one.
    arity: the number of its values, as argparse's nargs: "1", "0", "?" or "+".
    """

    names: tuple[str, ...]
    arity: str

    @property
    def name(self) -> str:
        """The name, without its dashes."""
        return self.names[0].lstrip("-")

    def is_negated_by(self, name: str) -> bool:
        """Whether one of the names turns the switch off."""
        own = self.names[0]
        return name != own and (
            name.startswith("--no-")
            or (own.startswith("--enable-") and name.startswith("--disable-"))
            or (own.startswith("--disable-") and name.startswith("--enable-"))
        )


def _read_flags(text: str) -> Iterator[ServeFlag]:
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        arity = "1" if words[-1].startswith("-") else words.pop()
        yield ServeFlag(tuple(words), arity)


@cache
def load_serve_flags() -> tuple[ServeFlag, ...]:
    """Load the options of the simulated version."""
    return tuple(_read_flags(_FILE.read_text(encoding="utf-8")))


@cache
def _index_flags() -> dict[str, ServeFlag]:
    removed = [flag for flag in _read_flags(_REMOVED)]
    return {name: flag for flag in (*removed, *load_serve_flags()) for name in flag.names}


def find_serve_flag(name: str) -> ServeFlag | None:
    """Find an option by one of its names, or as argparse does by the beginning of names
    of one option only.
    """
    flags = _index_flags()
    if name in flags:
        return flags[name]
    if not name.startswith("--") or len(name) < 4:
        return None
    found = {flag.names: flag for own, flag in flags.items() if own.startswith(name)}
    return next(iter(found.values())) if len(found) == 1 else None
