"""Measurements of the source: sizes, names, docstrings, imports.

    python -m tests.project.code_metrics [FOLDER]        prints them

FOLDER, below src/dragoman, limits the lists of offenders; whole-package counts are
always over everything.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/dragoman"

BANNED = frozenset(
    (
        *(
            "said",
            "told",
            "kept",
            "asked",
            "made",
            "heard",
            "shown",
            "meant",
            "brought",
            "placed",
            "whoever",
            "nobody",
        ),
        *(
            "strand",
            "mailbox",
            "door",
            "parting",
            "seals",
            "rooms",
            "house",
            "recital",
            "ill",
            "bury",
            "buried",
        ),
        *("bell", "lookout"),
    )
)
"""Metaphors and words that the field does not use; no name in the repository contains
one.
"""

OTHER_FOLDERS = ("tests", "benchmarks", "docs", "training")
"""Folders with Python code besides the package; rules for names apply there too."""

IRREGULAR_PARTICIPLES = frozenset(
    (
        *(
            "begun",
            "bound",
            "broken",
            "built",
            "caught",
            "chosen",
            "dealt",
            "done",
            "drawn",
            "driven",
            "felt",
            "found",
        ),
        *(
            "frozen",
            "given",
            "gone",
            "grown",
            "held",
            "hidden",
            "known",
            "left",
            "lent",
            "lost",
            "met",
            "paid",
            "seen",
        ),
        *(
            "sent",
            "sought",
            "spent",
            "spoken",
            "stolen",
            "stuck",
            "taken",
            "taught",
            "thrown",
            "torn",
            "understood",
        ),
        *("won", "worn", "woven", "written"),
    )
)
VERBS_IN_ED = frozenset(
    {
        "bleed",
        "breed",
        "embed",
        "exceed",
        "feed",
        "need",
        "proceed",
        "seed",
        "shed",
        "speed",
        "succeed",
    }
)

PARTICIPLE_FUNCTIONS = frozenset(
    (
        "allowed_token_ids",
        "chunked_body",
        "compressed",
        "folded",
        "namespaced_call",
        "normalized",
        "structured_json",
    )
)
"""Checks of `dragoman check`, whose names are their ids."""

LIBRARY_NAMES = frozenset({"connection_made"})
"""Names that a library's interface prescribes (asyncio.Protocol)."""

SHARED_CLASS_NAMES = frozenset({"Reader", "Writer"})
"""Classes with the same role in sibling dialects, and therefore the same name."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Module(NamedTuple):
    path: Path
    name: str
    """Dotted, with the package or the folder: `dragoman.core.events`,
    `tests.core.test_events`.
    """
    tree: ast.Module
    lines: list[str]


class Function(NamedTuple):
    module: str
    name: str
    lines: int
    body_lines: int
    """Without signature and docstring."""


def load_modules() -> list[Module]:
    return _load_folder(PACKAGE)


def load_other_modules() -> list[Module]:
    """The modules of tests, benchmarks, docs and training."""
    return [module for folder in OTHER_FOLDERS for module in _load_folder(ROOT / folder)]


def find_functions(modules: list[Module]) -> list[Function]:
    return [
        Function(module.name, node.name, _length(node), _body_length(node))
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, _FUNCTIONS)
    ]


def find_private_used_once(modules: list[Module]) -> list[Function]:
    """Return private functions that their module references exactly once."""
    found: list[Function] = []
    for module in modules:
        references = Counter[str]()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name):
                references[node.id] += 1
            elif isinstance(node, ast.Attribute):
                references[node.attr] += 1
        functions = (
            f
            for f in find_functions([module])
            if f.name.startswith("_") and not f.name.startswith("__")
        )
        found += [function for function in functions if references[function.name] == 1]
    return found


def count_passed_on(modules: list[Module], functions: list[Function]) -> int:
    """Count the functions that their module passes on as callbacks or parser states,
    and which cannot be inlined.
    """
    called: dict[str, set[str]] = {}
    for module in modules:
        calls = (node.func for node in ast.walk(module.tree) if isinstance(node, ast.Call))
        called[module.name] = {
            function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            for function in calls
        }
    return sum(function.name not in called[function.module] for function in functions)


def find_participle_functions(modules: list[Module]) -> list[str]:
    """Return functions whose name begins with a participle (`told`, `_named_tools`)
    instead of a verb.

    Properties are excluded, since they are values.
    """
    offenders: list[str] = []
    for module in modules:
        for node in ast.walk(module.tree):
            if (
                isinstance(node, _FUNCTIONS)
                and node.name not in PARTICIPLE_FUNCTIONS
                and not _is_property(node)
            ):
                word = node.name.strip("_").partition("_")[0]
                if word in IRREGULAR_PARTICIPLES or (
                    word.endswith("ed") and word not in VERBS_IN_ED
                ):
                    offenders.append(f"{module.name}:{node.lineno} {node.name}")
    return offenders


def find_import_cycle(modules: list[Module]) -> list[str]:
    """Return a cycle of modules that import each other, the first repeated at the end;
    empty if there is none.

    Imports within functions and under TYPE_CHECKING cannot fail at startup and do not
    count.
    """
    names = {module.name for module in modules}
    graph: dict[str, list[str]] = {}
    for module in modules:
        package = (
            module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
        )
        statements = ast.Module(
            [node for node in module.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))],
            [],
        )
        targets: set[str] = set()
        for found in _imported_by_statement(statements, package):
            # A submodule that is imported from its package does not need the rest of
            # the package's `__init__`.
            targets.add(next((target for target in found if target in names), module.name))
        graph[module.name] = sorted(targets - {module.name})
    finished: set[str] = set()
    path: list[str] = []
    none: list[str] = []

    def visit(name: str) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in finished:
            return []
        path.append(name)
        cycle = next((cycle for target in graph[name] if (cycle := visit(target))), none)
        path.pop()
        finished.add(name)
        return cycle

    return next((cycle for name in graph if (cycle := visit(name))), none)


def find_importers(modules: list[Module]) -> dict[str, set[str]]:
    """Map each module to its importers. An import of a name counts for the module that
    defines the path.
    """
    names = {module.name for module in modules}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        package = (
            module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
        )
        for target in _imported(module.tree, package):
            if target in names and target != module.name:
                importers[target].add(module.name)
    return importers


ROUTES = "dragoman.serving.routes."
"""A routes module is found by its URL and imported only by the routes table, so it may
be small.
"""


def find_small_single_importer(modules: list[Module]) -> list[str]:
    """Return modules under 60 lines with exactly one importer, except packages'
    `__init__` and routes.
    """
    importers = find_importers(modules)
    return [
        module.name
        for module in modules
        if module.path.name != "__init__.py" and not module.name.startswith(ROUTES)
        if len(module.lines) < 60 and len(importers[module.name]) == 1
    ]


def find_repeated_classes(modules: list[Module]) -> dict[str, list[str]]:
    """Return public class names that more than one module defines."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module.name)
    return {
        name: found
        for name, found in places.items()
        if len(found) > 1 and name not in SHARED_CLASS_NAMES
    }


def find_docstrings_that_begin_with_a_field(modules: list[Module]) -> list[str]:
    offenders: list[str] = []
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and (text := ast.get_docstring(node)):
                first = re.match(r"`?(\w+)(?:, \w+)*`?: ", text)
                if first and first[1] in _field_names(node):
                    offenders.append(f"{module.name}.{node.name}")
    return offenders


def find_banned_names(modules: list[Module]) -> list[str]:
    """Return names of modules, definitions, parameters, attributes and variables that
    contain a banned word.
    """
    offenders: list[str] = []
    for module in modules:
        names = {module.path.stem: 1}
        for node in ast.walk(module.tree):
            for name, line in _defined_names(node):
                names.setdefault(name, line)
        banned = (name for name in names if name not in LIBRARY_NAMES and split_name(name) & BANNED)
        offenders += [f"{module.name}:{names[name]} {name}" for name in banned]
    return offenders


def count_comment_lines(modules: list[Module]) -> int:
    """Count lines with a comment, except those for tools (noqa, type, pyright)."""
    count = 0
    for module in modules:
        with tokenize.open(module.path) as source:
            comments = [
                t.string
                for t in tokenize.generate_tokens(source.readline)
                if t.type == tokenize.COMMENT
            ]
        count += sum(
            1 for text in comments if not re.match(r"#\s*(noqa|type:|pyright:|pragma|fmt:)", text)
        )
    return count


def split_name(name: str) -> set[str]:
    """`_was_toldTwice` -> {"was", "told", "twice"}."""
    return {
        word.lower()
        for part in name.split("_")
        for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", part)
    }


def _defined_names(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield node.name, node.lineno
    elif isinstance(node, ast.arg):
        yield node.arg, node.lineno
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, node.lineno
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr, node.lineno
    elif isinstance(node, ast.alias) and node.asname:
        yield node.asname, node.lineno
    elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name, node.lineno


def _field_names(node: ast.ClassDef) -> set[str]:
    names = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            names |= {
                argument.arg
                for argument in (*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs)
            }
    return names


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    for targets in _imported_by_statement(tree, package):
        yield from targets


def _imported_by_statement(tree: ast.Module, package: str) -> Iterator[tuple[str, ...]]:
    """Yield for each imported name the module paths that it may refer to, the most
    specific first.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            target = ".".join(part for part in (base, node.module) if part)
            yield from ((f"{target}.{alias.name}", target) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name,) for alias in node.names)


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def _load_folder(folder: Path) -> list[Module]:
    modules: list[Module] = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        modules.append(Module(path, name, ast.parse(text), text.splitlines()))
    return modules


def _length(node: ast.AST) -> int:
    assert isinstance(node, _FUNCTIONS)
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _body_length(node: ast.AST) -> int:
    assert isinstance(node, _FUNCTIONS)
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (node.end_lineno or node.lineno) - body[0].lineno + 1 if body else 0


def main(folder: str = "") -> None:
    modules = load_modules()
    prefix = ".".join(("dragoman", *folder.strip("/").split("/"))) if folder else "dragoman"
    functions = find_functions(modules)
    lengths = sorted(function.lines for function in functions)
    once = find_private_used_once(modules)
    lines = sum(len(module.lines) for module in modules)
    small = find_small_single_importer(modules)
    comments = count_comment_lines(modules)
    print(f"modules                           {len(modules)}")
    print(f"lines                             {lines}")
    middle = lengths[len(lengths) // 2]
    p95 = lengths[len(lengths) * 95 // 100]
    print(f"function length p50 / p95 / max   {middle} / {p95} / {lengths[-1]}")
    print(
        f"private, referenced once          {len(once)} of {len(functions)} = "
        f"{len(once) / len(functions):.1%}"
    )
    print(f"  of at most 5 lines              {sum(f.body_lines <= 5 for f in once)}")
    print(f"  passed on, not called           {count_passed_on(modules, once)}")
    print(f"small, with a single importer     {len(small)}")
    print(f"comment lines                     {comments} = {comments / lines:.2%}")
    print(f"public class names defined twice  {len(find_repeated_classes(modules))}")
    print(
        f"docstrings that begin with a field  "
        f"{len(find_docstrings_that_begin_with_a_field(modules))}"
    )
    print(
        f"banned names                      "
        f"{len(find_banned_names(modules + load_other_modules()))}"
    )
    print(f"functions named by a participle   {len(find_participle_functions(modules))}")
    if not folder:
        return
    mine = [
        module
        for module in modules
        if module.name == prefix or module.name.startswith(f"{prefix}.")
    ]
    own_lines = sum(len(module.lines) for module in mine)
    print(
        f"\nin {prefix}: {len(mine)} modules, {own_lines} lines, {count_comment_lines(mine)} "
        f"comment lines"
    )
    for title, found in (
        (
            "private, referenced once, at most 5 lines",
            [f"{f.module}.{f.name}" for f in once if f.body_lines <= 5],
        ),
        ("small, with a single importer", small),
        (
            "class names defined twice",
            [
                f"{p}.{name}"
                for name, places in find_repeated_classes(modules).items()
                for p in places
            ],
        ),
        ("docstrings that begin with a field", find_docstrings_that_begin_with_a_field(modules)),
        ("banned names", find_banned_names(modules)),
        ("functions named by a participle", find_participle_functions(modules)),
    ):
        for name in found:
            if name.startswith(prefix):
                print(f"  {title}: {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
