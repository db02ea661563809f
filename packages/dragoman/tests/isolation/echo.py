"""The function that the pool's tests run in a worker process: a command and its
argument.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from dragoman.isolation.worker_loop import serve


def start(data: bytes) -> Callable[[bytes], bytes]:
    def work(call: bytes) -> bytes:
        order, _, rest = call.partition(b" ")
        match order:
            case b"environment":
                return os.environ.get(rest.decode(), "").encode()
            case b"allocate":
                return str(len(bytearray(int(rest)))).encode()
            case b"spin":
                while True:
                    pass
            case b"pause":
                signal.pause()
                return b""
            case b"fail":
                raise ValueError("as told")
            case b"exit":
                os._exit(3)
            case _:
                return data + call

    return work


if __name__ == "__main__":
    serve(start)
