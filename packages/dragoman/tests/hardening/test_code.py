"""Calls that the source must not contain. eval: vLLM CVE-2025-9141. pickle and similar
formats: LightLLM CVE-2026-26220, SGLang CVE-2026-3059. Shells, and processes outside
the modules that need them: LiteLLM CVE-2026-42271.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dragoman

SOURCE = Path(dragoman.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

NEVER_CALLED = {"eval", "exec", "compile", "__import__"}
NEVER_CALLED_ANYWHERE = {"literal_eval", "system", "popen", "create_subprocess_shell"}
NEVER_IMPORTED = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "ast",
    "code",
    "runpy",
}
STARTS_PROCESSES = {
    "commands/launch.py",
    "commands/local_server.py",
    "engines/llamacpp/process.py",
    "isolation/worker_pool.py",
}
"""Modules that start processes, only with their own arguments or those of the command
line.
"""


def calls(tree: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield the object, the name and the node of each call."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)):
                yield "", name, node
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                yield ast.unparse(value), name, node
            case _:
                pass


def find_imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case _:
                pass


def faults(source: str, file: str = "x.py") -> list[str]:
    tree = ast.parse(source)
    found = [f"import {name}" for name in find_imports(tree) if name in NEVER_IMPORTED]
    found += [
        "subprocess"
        for name in find_imports(tree)
        if name == "subprocess" and file not in STARTS_PROCESSES
    ]
    for on, name, call in calls(tree):
        path = f"{on}.{name}".removeprefix(".")
        keywords = {each.arg: ast.unparse(each.value) for each in call.keywords}
        if path in NEVER_CALLED or on == "builtins" or name in NEVER_CALLED_ANYWHERE:
            found.append(path)
        if path in ("torch.load", "numpy.load", "np.load"):
            found.append(path)
        if path.startswith("yaml.") and name in ("load", "unsafe_load", "full_load"):
            found.append(path)
        if (
            keywords.get("shell", "False") != "False"
            or keywords.get("allow_pickle", "False") != "False"
        ):
            found.append(path)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_source_files_contain_no_unsafe_calls(file: Path):
    assert faults(file.read_text(), file.relative_to(SOURCE).as_posix()) == []


@pytest.mark.parametrize(
    "line",
    [
        *(
            "eval('1')",
            "exec(x)",
            "import pickle",
            "from pickle import loads",
            "import ast",
            "ast.literal_eval(x)",
        ),
        *(
            "torch.load(f)",
            "np.load(f)",
            "yaml.load(f)",
            "os.system(x)",
            "subprocess.run(x, shell=True)",
        ),
        *(
            "import subprocess",
            "numpy.lib.format.read_array(f, allow_pickle=True)",
            "compile(x, 'a', 'exec')",
        ),
    ],
)
def test_faults_detects_each_unsafe_call(line: str):
    assert faults(line)
