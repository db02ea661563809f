"""Rules for names, docstrings, imports and layout, read from the syntax of each file.

    python -m tests.project.code_metrics [FOLDER]        lists what breaks them

FOLDER, relative to the root of the repository, limits the list.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path
from typing import NamedTuple, cast

ROOT = Path(__file__).resolve().parents[2]

SOURCES = tuple(sorted(ROOT.glob("packages/*/src")))
"""The folders that hold the packages."""

OTHER_FOLDERS = (
    *sorted(ROOT.glob("packages/*/tests")),
    *(ROOT / name for name in ("tests", "benchmarks", "deploy", "docs", "requirements")),
    ROOT / "training",
)
"""Folders with Python code besides the packages; rules for names apply there too."""

BANNED = frozenset(
    {
        *{"asked", "brought", "heard", "kept", "made", "meant", "nobody", "placed", "said"},
        *{"shown", "told", "whoever"},
        *{"bell", "buried", "bury", "door", "house", "ill", "lookout", "mailbox", "parting"},
        *{"recital", "rooms", "seals", "strand"},
    }
)
"""Metaphors and words that the field does not use; no name in the repository contains
one.
"""
SENTENCE_WORDS = frozenset({"kept"})
"""The banned words that a test's name may contain, since it is a sentence."""

IRREGULAR_PARTICIPLES = frozenset(
    {
        *{"begun", "bound", "broken", "built", "caught", "chosen", "dealt", "done", "drawn"},
        *{"driven", "felt", "found", "frozen", "given", "gone", "grown", "held", "hidden"},
        *{"known", "left", "lent", "lost", "met", "paid", "seen", "sent", "sought", "spent"},
        *{"spoken", "stolen", "stuck", "taken", "taught", "thrown", "torn", "understood"},
        *{"won", "worn", "woven", "written"},
    }
)
VERBS_IN_ED = frozenset(
    {
        *{"bleed", "breed", "embed", "exceed", "feed", "need", "proceed", "seed", "shed"},
        *{"speed", "succeed"},
    }
)

PARTICIPLE_FUNCTIONS = frozenset(
    {
        *{"allowed_token_ids", "chunked_body", "compressed", "folded", "namespaced_call"},
        *{"malformed", "normalized", "structured_json"},
    }
)
"""Checks of `dragoman check`, whose names are their ids, and a reply of pytest-dragoman,
which is named for what is sent.
"""

LIBRARY_NAMES = frozenset({"connection_made"})
"""Names that a library's interface prescribes (asyncio.Protocol)."""

SHARED_CLASS_NAMES = frozenset({"Reader", "Writer"})
"""Classes with the same role in sibling dialects, and therefore the same name."""

MAX_TEST_NAME = 60
_RELATIVE_WORDS = re.compile(r"_(that|which|what|whatever|who|whoever|nobody)_")
_TOOL_COMMENT = re.compile(r"#\s*(noqa|type:|pyright:|pragma|fmt:|isort:|ruff:|!)")
_READ_NODES = frozenset(
    {
        *{ast.Assign, ast.Attribute, ast.Name, ast.alias, ast.arg},
        *{ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef},
        *{ast.Import, ast.ImportFrom, ast.MatchAs, ast.MatchStar},
    }
)
"""The types of syntax nodes that `_read_node` reads."""


class Function(NamedTuple):
    name: str
    line: int
    is_property: bool


class Import(NamedTuple):
    """One imported name.

    targets: the modules that it may refer to, the most specific first.
    line: the line of the statement.
    """

    targets: tuple[str, ...]
    line: int


@dataclass
class Module:
    """What the rules need of one file. The syntax tree itself is not kept.

    name: dotted, with the package or the folder: `dragoman.core.events`,
      `tests.core.test_events`.
    classes: its public classes, outside functions and other classes.
    aliases: its public type aliases, and what each stands for.
    names: all names that it defines, and the first line of each.
    field_docstrings: classes whose docstring begins with a field.
    packed: lines of assignments such as `self.a, self.b = 1, 2`.
    headings: lines of comments that divide the module.
    """

    path: Path
    name: str
    functions: list[Function] = field(default_factory=list[Function])
    classes: list[str] = field(default_factory=list[str])
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    imports: list[Import] = field(default_factory=list[Import])
    names: dict[str, int] = field(default_factory=dict[str, int])
    field_docstrings: list[str] = field(default_factory=list[str])
    packed: list[int] = field(default_factory=list[int])
    headings: list[int] = field(default_factory=list[int])


def load_modules() -> list[Module]:
    """The modules of all packages."""
    return [module for source in SOURCES for module in _load_folder(source, source)]


def load_other_modules() -> list[Module]:
    """The modules of tests, benchmarks, docs, scripts and training."""
    return [module for folder in OTHER_FOLDERS for module in _load_folder(folder, folder.parent)]


def parse_module(path: Path, name: str, text: str) -> Module:
    tree = ast.parse(text)
    module = Module(path, name, headings=list(_find_headings(text, tree)))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in tree.body:
        _read_top_level(module, node)
    for node in _walk(tree):
        if type(node) in _READ_NODES:
            _read_node(module, node, package)
    return module


def find_participle_functions(modules: Iterable[Module]) -> list[str]:
    """Return functions whose name begins with a participle (`told`, `_named_tools`)
    instead of a verb.

    Properties are excluded, since they are values.
    """
    return [
        f"{module.name}:{function.line} {function.name}"
        for module in modules
        for function in module.functions
        if not function.is_property and function.name not in PARTICIPLE_FUNCTIONS
        if _is_participle(function.name.strip("_").partition("_")[0])
    ]


def find_bad_test_names(modules: Iterable[Module]) -> list[str]:
    """Return tests whose name is too long, has capital letters or reads as a relative
    clause.
    """
    return [
        f"{module.name}:{function.line} {function.name}"
        for module in modules
        for function in module.functions
        if function.name.startswith("test_") and not is_good_test_name(function.name)
    ]


def is_good_test_name(name: str) -> bool:
    return (
        re.fullmatch(r"test_[a-z0-9_]+", name) is not None
        and len(name) <= MAX_TEST_NAME
        and _RELATIVE_WORDS.search(name) is None
    )


def find_import_cycles(modules: list[Module]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or not.

    Imports within functions and under TYPE_CHECKING count too. They cannot fail at
    startup, but the modules still cannot be understood or moved one at a time.
    """
    names = {module.name for module in modules}
    graph: dict[str, set[str]] = {}
    for module in modules:
        # A submodule that is imported from its package does not need the rest of the
        # package's `__init__`.
        found = (
            next((target for target in each.targets if target in names), module.name)
            for each in module.imports
        )
        graph[module.name] = set(found) - {module.name}
    return [sorted(group) for group in _find_components(graph) if len(group) > 1]


def find_repeated_classes(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Return public class names that more than one module of a package defines."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in modules:
        for name in module.classes:
            places[module.name.partition(".")[0], name].append(module.name)
    return {
        name: found
        for (_, name), found in places.items()
        if len(found) > 1 and name not in SHARED_CLASS_NAMES
    }


def find_ambiguous_aliases(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Return public names of types that stand for different types in different modules
    of a package.
    """
    places: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for module in modules:
        package = module.name.partition(".")[0]
        for name in module.classes:
            places[package, name]["a class"].append(module.name)
        for name, meaning in module.aliases.items():
            places[package, name][meaning].append(module.name)
    return {
        name: [f"{meaning} in {', '.join(found)}" for meaning, found in meanings.items()]
        for (_, name), meanings in places.items()
        if len(meanings) > 1
    }


def find_docstrings_that_begin_with_a_field(modules: Iterable[Module]) -> list[str]:
    return [f"{module.name}.{name}" for module in modules for name in module.field_docstrings]


def find_banned_names(modules: Iterable[Module]) -> list[str]:
    """Return names of modules, definitions, parameters, attributes and variables that
    contain a banned word.
    """
    return [
        f"{module.name}:{line} {name}"
        for module in modules
        for name, line in module.names.items()
        if name not in LIBRARY_NAMES
        if split_name(name) & (BANNED - SENTENCE_WORDS if name.startswith("test_") else BANNED)
    ]


def find_section_headings(modules: Iterable[Module]) -> list[str]:
    return [_place(module, line) for module in modules for line in module.headings]


def find_packed_attributes(modules: Iterable[Module]) -> list[str]:
    return [_place(module, line) for module in modules for line in module.packed]


@cache
def split_name(name: str) -> frozenset[str]:
    """`_was_toldTwice` -> {"was", "told", "twice"}."""
    return frozenset(
        word.lower()
        for part in name.split("_")
        for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", part)
    )


def _load_folder(folder: Path, parent: Path) -> list[Module]:
    modules: list[Module] = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(parent).with_suffix("").parts
        if "node_modules" not in parts:
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules.append(parse_module(path, name, path.read_text()))
    return modules


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Like ast.walk, in any order and without the nodes that have no fields."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            if type(value) is list:
                items = cast(list[object], value)
                stack += [item for item in items if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                stack.append(value)


def _read_top_level(module: Module, node: ast.stmt) -> None:
    match node:
        case ast.ClassDef(name=name) if not name.startswith("_"):
            module.classes.append(name)
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_type(name, value):
            module.aliases[name] = ast.unparse(value)
        case ast.AnnAssign(
            target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias"), value=ast.expr() as value
        ) if not name.startswith("_"):
            module.aliases[name] = ast.unparse(value)
        case _:
            pass


def _is_type(name: str, value: ast.expr) -> bool:
    """Whether an assignment gives a public name to a type: `JsonValue = str | int`."""
    return re.fullmatch(r"[A-Z]\w*[a-z]\w*", name) is not None and isinstance(
        value, (ast.Subscript, ast.BinOp, ast.Name, ast.Attribute)
    )


def _read_node(module: Module, node: ast.AST, package: str) -> None:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            _add_name(module, name, node.lineno)
        case ast.arg(arg=name) | ast.alias(asname=str(name)):
            _add_name(module, name, node.lineno)
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            _add_name(module, name, node.lineno)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            _add_name(module, name, node.lineno)
            is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
            module.functions.append(Function(name, node.lineno, is_property))
        case ast.ClassDef(name=name):
            _add_name(module, name, node.lineno)
            if _begins_with_field(node):
                module.field_docstrings.append(name)
        case ast.Import() | ast.ImportFrom():
            module.imports += _read_import(node, package)
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            if _is_packed(targets, values):
                module.packed.append(node.lineno)
        case _:
            pass


def _add_name(module: Module, name: str, line: int) -> None:
    module.names[name] = min(line, module.names.get(name, line))


def _read_import(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import((alias.name,), node.lineno) for alias in node.names)
        return
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
    target = ".".join(part for part in (base, node.module) if part)
    for alias in node.names:
        yield Import((f"{target}.{alias.name}", target), node.lineno)


def _is_packed(targets: list[ast.expr], values: list[ast.expr]) -> bool:
    """Whether attributes get several independent values in one statement. An exchange
    of values (`self.a, self.b = self.b, self.a`) needs one statement.
    """
    written = {ast.unparse(target) for target in targets}
    read = {
        ast.unparse(node)
        for value in values
        for node in ast.walk(value)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
    }
    return any(isinstance(target, ast.Attribute) for target in targets) and not written & read


def _begins_with_field(node: ast.ClassDef) -> bool:
    text = ast.get_docstring(node)
    first = re.match(r"`?(\w+)(?:, \w+)*`?: ", text) if text else None
    return first is not None and first[1] in _find_fields(node)


def _find_fields(node: ast.ClassDef) -> set[str]:
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


def _find_headings(text: str, tree: ast.Module) -> Iterator[int]:
    """Yield the first line of each comment at column 0 between blank lines, outside
    data tables. It is a title for the lines below it, which would be a module.
    """
    if "\n\n#" not in text:
        return
    lines = ["", *text.splitlines(), ""]
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(StringIO(text).readline)
        if token.type == tokenize.COMMENT
        and token.start[1] == 0
        and not _TOOL_COMMENT.match(token.string)
    }
    within = {
        line
        for node in tree.body
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for line in sorted(comments - within):
        end = line
        while end + 1 in comments:
            end += 1
        if not lines[line - 1].strip() and not lines[end + 1].strip():
            yield line


def _find_components(graph: dict[str, set[str]]) -> Iterator[set[str]]:
    """Tarjan's algorithm: yield the strongly connected components."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []

    def visit(name: str) -> Iterator[set[str]]:
        numbers[name] = lowest[name] = len(numbers)
        path.append(name)
        for target in sorted(graph[name]):
            if target not in numbers:
                yield from visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in path:
                lowest[name] = min(lowest[name], numbers[target])
        if lowest[name] == numbers[name]:
            start = path.index(name)
            yield set(path[start:])
            del path[start:]

    for name in graph:
        if name not in numbers:
            yield from visit(name)


def _is_participle(word: str) -> bool:
    return word in IRREGULAR_PARTICIPLES or (word.endswith("ed") and word not in VERBS_IN_ED)


def _place(module: Module, line: int) -> str:
    path = module.path
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}"


def main(folder: str = "") -> None:
    prefix = (ROOT / folder).resolve()
    modules = load_modules()
    other_modules = load_other_modules()
    mine = [module for module in modules if module.path.is_relative_to(prefix)]
    every = [module for module in modules + other_modules if module.path.is_relative_to(prefix)]
    own_names = {module.name for module in mine}
    cycles = [group for group in find_import_cycles(modules) if own_names & set(group)]
    for title, found in (
        ("import cycles", [" <-> ".join(group) for group in cycles]),
        ("class names defined twice", _list_places(find_repeated_classes(mine))),
        ("type names with several meanings", _list_places(find_ambiguous_aliases(mine))),
        ("docstrings that begin with a field", find_docstrings_that_begin_with_a_field(mine)),
        ("banned names", find_banned_names(every)),
        ("functions named by a participle", find_participle_functions(mine)),
        ("test names", find_bad_test_names(every)),
        ("section headings", find_section_headings(mine)),
        ("attributes assigned as a tuple", find_packed_attributes(every)),
    ):
        print(f"{title}: {len(found)}")
        for each in found:
            print(f"    {each}")


def _list_places(found: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {'; '.join(places)}" for name, places in found.items()]


if __name__ == "__main__":
    main(*sys.argv[1:])
