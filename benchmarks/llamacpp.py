"""Tokens per second of CPU of `dragoman serve FILE.gguf`, as ratios to llama.cpp's own
server in the same round.

    python benchmarks/llamacpp.py [--streams 1,8] [--tokens 96] [--rounds 3] [--threads
    1] [--options ...]

The model has random weights: 12 layers of 768, a vocabulary of 32,768, 126 million
parameters in Q8_0. Both servers stream greedy answers to the same 64 token ids over
HTTP. llama.cpp's has a slot for each stream. CPU is user and system time of all
processes of a server, from /proc, so for Linux only; the client is not counted. Each
round starts both servers, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
from installed import environment
from overhead import OPTIONS, SERVE, Load, run_server, send_all

from dragoman.engines import tiny

# `tests` lies in the checkout and in each package.
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.extend(map(str, Path(__file__).resolve().parents[1].glob("packages/*")))

from tests.engines.llamacpp.files import CONTROL, add_byte_level

LAYERS = 12
HIDDEN = 768
HEADS = 12
KV_HEADS = 4
INNER = 2048
VOCAB = 32_768
CONTEXT = 512
PROMPT = 64


def write_random_model(file: Path) -> None:
    """Write a model with random weights and the embedded model's tokenizer, to which
    unused words are added.
    """
    gguf: Any = import_module("gguf")
    quants: Any = import_module("gguf.quants")
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    directory = tiny.find_bundled_model()
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    known = len(
        tokenizer["model"]["vocab"].keys()
        | {token["content"] for token in tokenizer["added_tokens"]}
    )
    tokenizer["model"]["vocab"] |= {f"Word{id:05}": id for id in range(known, VOCAB)}
    add_byte_level(writer, tokenizer, CONTROL)
    writer.add_eos_token_id(json.loads((directory / "config.json").read_text())["eos_token_id"])
    writer.add_chat_template((directory / "chat_template.jinja").read_text())
    rng = np.random.default_rng(0)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {"token_embd.weight": (VOCAB, HIDDEN), "output.weight": (VOCAB, HIDDEN)}
    block = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    norms = ["output_norm.weight"]
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
        norms += [f"blk.{layer}.attn_norm.weight", f"blk.{layer}.ffn_norm.weight"]
    for name in norms:
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, shape in shapes.items():
        weights = rng.standard_normal(shape, np.float32) / shape[1] ** 0.5
        writer.add_tensor(name, quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def serve_plain(file: str, streams: int, threads: int) -> None:
    """Run llama.cpp's own server until standard input ends, with llama-server's
    defaults.
    """
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.n_parallel = streams
    params.n_ctx = streams * CONTEXT
    params.ui = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    time.sleep(1e6)


def build_load(*, plain: bool, streams: int, tokens: int) -> Load:
    rng = np.random.default_rng(1)
    body: dict[str, object] = {
        "prompt": rng.integers(300, 2000, PROMPT).tolist(),
        "stream": True,
        "temperature": 0,
    }
    if plain:
        body |= {"n_predict": tokens, "ignore_eos": True, "cache_prompt": False}
        return Load(streams, 1, "/completion", body, tokens, streamed=True)
    body |= {"model": "m", "max_tokens": tokens, "ignore_eos": True}
    return Load(streams, 1, "/v1/completions", body, tokens, streamed=True)


def read_tree(process: int) -> tuple[float, int]:
    """Seconds of CPU and resident bytes of a process and its children, threads that
    have ended included.
    """
    cpu = 0.0
    memory = 0
    for item in (
        process,
        *map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()),
    ):
        fields = Path(f"/proc/{item}/stat").read_text().rpartition(")")[2].split()
        cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        memory += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return cpu, memory


def wait_until_ready(port: int) -> None:
    """Wait until a server that listens already has loaded its model."""
    while True:
        try:
            urlopen(f"http://127.0.0.1:{port}/health")
            return
        except HTTPError:
            time.sleep(0.1)


def measure(
    command: list[str], env: dict[str, str], load: Load, times: int
) -> tuple[float, float, int]:
    """Tokens per second of CPU and of time, and resident bytes of all processes."""
    n_tokens = load.clients * load.tokens * times
    with run_server(command, env) as (process, port):
        wait_until_ready(port)
        asyncio.run(send_all(port, load))
        (cpu, _) = read_tree(process)
        started_at = time.perf_counter()
        for _ in range(times):
            asyncio.run(send_all(port, load))
        seconds = time.perf_counter() - started_at
        spent, memory = read_tree(process)
        return n_tokens / (spent - cpu), n_tokens / seconds, memory


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, help="a GGUF file in the place of the random one")
    parser.add_argument(
        "--options", nargs=argparse.REMAINDER, default=[], help="more options of `dragoman serve`"
    )
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        serve_plain(arguments.plain, int(arguments.streams), arguments.threads)
        return
    with tempfile.TemporaryDirectory() as folder, environment() as env:
        file = arguments.model or Path(folder) / "random.gguf"
        if not file.exists():
            write_random_model(file)
        print(
            f"{'streams':>8}{'plain':>9}{'Dragoman':>10}{'ratio':>7}   tok/s "
            f"{'plain':>6}{'Dragoman':>10}   MB"
        )
        for streams in map(int, arguments.streams.split(",")):
            ratios: list[float] = []
            times = 3 if streams == 1 else 1
            common = ["--threads", str(arguments.threads)]
            plain = [
                sys.executable,
                __file__,
                "--plain",
                str(file),
                "--streams",
                str(streams),
                *common,
            ]
            ours = [
                *SERVE,
                str(file),
                *OPTIONS,
                *common,
                "--served-model-name",
                "m",
                "--store",
                "none",
            ]
            ours += ["--no-enable-prefix-caching"]
            ours += ["--log-level", "warning", *arguments.options]
            for _ in range(arguments.rounds):
                theirs = measure(
                    plain,
                    env,
                    build_load(plain=True, streams=streams, tokens=arguments.tokens),
                    times,
                )
                found = measure(
                    ours,
                    env,
                    build_load(plain=False, streams=streams, tokens=arguments.tokens),
                    times,
                )
                ratios.append(found[0] / theirs[0])
                print(
                    f"{streams:8}{theirs[0]:9.1f}{found[0]:10.1f}{ratios[-1]:7.2f}"
                    f"         {theirs[1]:6.1f}{found[1]:10.1f}"
                    f"   {theirs[2] >> 20} {found[2] >> 20}",
                    flush=True,
                )
            print(f"{streams:8} streams, median of the ratios: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
