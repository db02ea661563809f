"""Reads the flags of `vllm serve` from the installed vLLM. To renew the list of the
simulator, with a Python that has vLLM and pytest:

    python -m tests.sim_commands.dump_serve_flags
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest


def list_serve_flags(patch: pytest.MonkeyPatch) -> list[str]:
    """Return a line for each option in the form of `dragoman_sim/vllm-serve-flags.txt`:
    its names, and the number of its values unless it has one.
    """
    # The parser asks for the platform's defaults; without an accelerator there is none.
    platform: Any = import_module("vllm.platforms.cpu").CpuPlatform()
    for module in ("vllm.platforms", "vllm.config.device"):
        patch.setattr(import_module(module), "current_platform", platform, raising=False)
    parser: Any = import_module("vllm.entrypoints.common.cli_args").make_arg_parser(
        import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    )
    names: dict[int, list[str]] = {}
    for name, action in parser._option_string_actions.items():
        names.setdefault(id(action), []).append(name)
    lines: list[str] = []
    for action in parser._actions:
        if action.option_strings and action.dest != "help":
            arity = "" if action.nargs is None else f" {action.nargs}"
            lines.append(" ".join(names[id(action)]) + arity)
    return sorted(lines)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as context:
        print("\n".join(list_serve_flags(context)))
