"""The vLLM engine: runs a model with vLLM's AsyncLLM in this process and its workers,
token ids in and token ids out.

`backend` and the modules that import it need vLLM. The supported versions are defined
here, the capabilities in `features`: they must be readable without it.
"""

from __future__ import annotations

import re

from ...core.errors import EngineError

SUPPORTED_VERSIONS = ((0, 32), (0, 33))
"""The first and the last release of vLLM that the tests run with. Its Python interface
changes with every release.
"""


def check_version(installed: str) -> None:
    """Raise EngineError for a version of vLLM that is not supported.

    installed: `vllm.__version__`.
    """
    match = re.match(r"(\d+)\.(\d+)", installed)
    # A build from a source tree without tags has no version to compare: setuptools-scm
    # names it `0.1.dev1+g<commit>`, and vLLM `dev` if even that is missing.
    if (
        match is None
        or installed.startswith("0.1.dev")
        or SUPPORTED_VERSIONS[0] <= (int(match[1]), int(match[2])) <= SUPPORTED_VERSIONS[1]
    ):
        return
    first, last = (".".join(map(str, version)) for version in SUPPORTED_VERSIONS)
    raise EngineError(
        f"vLLM {installed} is installed, but this server works with vLLM {first} to {last}: "
        "pip install 'dragoman[vllm]'"
    )
