"""A process as users have it: installed, with compiled byte code, which a checkout may
be configured not to write.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def environment() -> Generator[dict[str, str]]:
    """For `subprocess`. The first process that imports something compiles it: it is not
    the one to time.
    """
    with tempfile.TemporaryDirectory() as compiled:
        variables = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        yield variables | {"PYTHONPYCACHEPREFIX": compiled, "OPENBLAS_NUM_THREADS": "1"}
