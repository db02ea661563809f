"""Run Python programs, each in a process of its own that has the SDKs imported already."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import NamedTuple

SDKS = ("agents", "anthropic", "httpx2", "openai")
"""What most programs of pages import, in one to three seconds of CPU time."""


class Done(NamedTuple):
    """How a program ended."""

    status: int
    output: str
    errors: str


def run_program(program: str, folder: Path, environment: Mapping[str, str], timeout: float) -> Done:
    """Run a program as `python -c` in the folder would. Raises TimeoutError."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(SDKS))
    with TemporaryDirectory() as place:
        output, errors = Path(place, "output"), Path(place, "errors")
        process = context.Process(
            target=_execute, args=(program, folder, dict(environment), output, errors)
        )
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"it did not end within {timeout:g} s: {program}")
        return Done(process.exitcode, output.read_text("utf-8"), errors.read_text("utf-8"))


def _execute(
    program: str, folder: Path, environment: dict[str, str], output: Path, errors: Path
) -> None:
    for number, path in ((1, output), (2, errors)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, "")
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(program, "<program>", "exec"), main.__dict__)
