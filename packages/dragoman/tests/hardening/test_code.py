"""Calls that the source must not contain. eval: vLLM CVE-2025-9141. pickle and similar
formats: LightLLM CVE-2026-26220, SGLang CVE-2026-3059. Shells, and processes outside
the modules that need them: LiteLLM CVE-2026-42271.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import dragoman

SOURCE = Path(dragoman.__file__).parent

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


def calls(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield the object, the name and the node of each call."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id=name)):
                yield "", name, node
            case ast.Call(func=ast.Attribute(value=ast.Name(id=on), attr=name)):
                # Unparsing these too would take most of the time.
                yield on, name, node
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                yield ast.unparse(value), name, node
            case _:
                pass


def find_imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case _:
                pass


def faults(source: str, file: str = "x.py") -> list[str]:
    nodes = list(ast.walk(ast.parse(source)))
    imports = list(find_imports(nodes))
    found = [f"import {name}" for name in imports if name in NEVER_IMPORTED]
    found += [
        "subprocess" for name in imports if name == "subprocess" and file not in STARTS_PROCESSES
    ]
    for on, name, call in calls(nodes):
        path = f"{on}.{name}".removeprefix(".")
        keywords = {
            each.arg: ast.unparse(each.value)
            for each in call.keywords
            if each.arg in ("shell", "allow_pickle")
        }
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


def test_source_files_contain_no_unsafe_calls():
    found = {
        name: faults(file.read_text(), name)
        for file in SOURCE.rglob("*.py")
        for name in (file.relative_to(SOURCE).as_posix(),)
    }
    assert "commands/launch.py" in found
    assert {name: calls for name, calls in found.items() if calls} == {}


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
