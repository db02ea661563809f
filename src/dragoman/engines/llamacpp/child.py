"""The process that llama.cpp runs in: `python -m dragoman.engines.llamacpp.child`, the settings on its standard input.

A process of its own, since llama.cpp ends a process that it has lost its way in. It lives as long as its standard
input is open, and says one line when the model is loaded. Knows no request: those come to the socket.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from .process import READY, Launch


def main() -> int:
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=Launch)
    if launch.marker:
        os.environ["LLAMA_MEDIA_MARKER"] = launch.marker  # the only way to tell it
    try:
        xllamacpp: Any = import_module("xllamacpp")
    except ImportError as error:
        print(f"{error}; this engine needs `pip install '.[llamacpp]'`", file=sys.stderr)  # noqa: T201 - its report
        return 1
    try:
        server = xllamacpp.Server(parameters(xllamacpp, launch))
    except (RuntimeError, ValueError) as error:
        print(f"{error}", file=sys.stderr)  # noqa: T201 - its report
        return 1
    print(READY, flush=True)  # noqa: T201 - this is what is waited for
    sys.stdin.buffer.read()
    del server
    return 0


def parameters(xllamacpp: Any, launch: Launch) -> Any:  # noqa: ANN401 - the library has no types
    """llama.cpp's own parameters. It listens nowhere but on the socket, and only to who has the key."""
    said = xllamacpp.CommonParams()
    said.model.path = launch.path
    said.hostnames, said.api_keys = [launch.socket], [launch.key]
    said.ui = said.endpoint_slots = said.endpoint_props = said.endpoint_metrics = False
    said.verbosity, said.warmup, said.fit_params = 1, False, False
    said.use_jinja, said.chat_template = False, "chatml"
    said.n_ctx, said.n_parallel, said.kv_unified = launch.context, launch.sequences, launch.unified
    said.n_batch, said.n_ubatch = launch.batch, launch.ubatch
    # Slots are chosen here, and what one owner's prompt left behind is never shown to another.
    said.cache_ram_mib, said.cache_idle_slots, said.ctx_shift = 0, False, False
    said.n_threads_http = launch.sequences + 4
    said.n_gpu_layers = launch.gpu_layers
    if launch.gpu_layers == 0 or not any("GPU" in device["type"].name for device in xllamacpp.get_device_info()):
        # On a CPU, what runs beside a sequence shows in its numbers with it, far more than without.
        said.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    kept = xllamacpp.ggml_type[f"GGML_TYPE_{launch.kv_type}"]
    said.cache_type_k, said.cache_type_v = kept, kept
    if launch.threads is not None:
        said.cpuparams.n_threads = said.cpuparams_batch.n_threads = launch.threads
    if launch.pooling is not None:
        said.embedding = True
        said.pooling_type = xllamacpp.llama_pooling_type(launch.pooling)
    if launch.mmproj is not None:
        said.mmproj.path = launch.mmproj
        said.mmproj_use_gpu = launch.gpu_layers != 0
        # What is no image is a video to it, for which it would start a program. There is none beside the socket.
        said.video_ffmpeg_bin_dir = str(Path(launch.socket).parent)
    return said


if __name__ == "__main__":
    sys.exit(main())
