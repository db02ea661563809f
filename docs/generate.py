"""Generates the tables of the docs from the code: `python docs/generate.py`. With
--check it only lists outdated pages.

A table is delimited by `<!-- table: NAME -->` and `<!-- end -->` in a page of this
directory.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

import click
from click.testing import CliRunner
from examples import DIALECTS, REFUSES, body
from msgspec.structs import replace

from dragoman.commands.agent_setups import AGENTS
from dragoman.commands.foreign_flags import ASK_FLAGS, SERVE_FLAGS
from dragoman.core.capabilities import Capabilities, Feature
from dragoman.core.errors import ContextTooLong, DragomanError, MethodNotAllowed, RequestError
from dragoman.core.request import GenerationLimits, SamplingOptions
from dragoman.dialects.anthropic.errors import ANTHROPIC_ERRORS
from dragoman.dialects.interfaces import Profile, ReaderOptions
from dragoman.dialects.openai_errors import OPENAI_ERRORS
from dragoman.dialects.parameter_table import ParameterSupport, SupportStatus
from dragoman.dialects.registry import list_parameters
from dragoman.dialects.tgi.errors import TGI_ERRORS
from dragoman.launch import build_models
from dragoman.launch.engine_registry import list_engines
from dragoman.parsers.call_families import CALL_FAMILIES
from dragoman.parsers.delimited_calls import AlternativeSyntaxes
from dragoman.parsers.family_types import Fingerprints
from dragoman.parsers.harmony import (
    HARMONY_FINGERPRINTS,
    HARMONY_REASONING_NAMES,
    HARMONY_TOOL_NAMES,
)
from dragoman.parsers.json_calls import JsonObjectSyntax, NamePrefixedSyntax
from dragoman.parsers.reasoning_families import REASONING_FAMILIES
from dragoman.pipeline.call_terms import CallTerms
from dragoman.pipeline.capability_checks import check_request, find_part_types, find_support
from dragoman.pipeline.request_metrics import ModelMetrics
from dragoman.serving.clock import SystemClock
from dragoman.serving.http_metrics import HttpMetrics
from dragoman.serving.route import Route
from dragoman.serving.routes.responses.websocket import ResponsesWebSocket
from dragoman.serving.routes.table import Features, build_routes
from dragoman.settings import FIELDS, SettingField, Settings, format_flag
from dragoman.settings.fields import SUPPORTED_BY
from dragoman_check.areas import AREAS, CHECKS
from dragoman_check.check_catalog import Check
from dragoman_check.commands.bench_flags import BENCH_FLAGS
from dragoman_cli import CommandLine, ForeignFlag
from dragoman_sim.vllm_flags import list_explained_flags

DOCS = Path(__file__).parent
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


SPECS = sorted(list_engines(), key=lambda spec: (spec.name != "tiny", spec.name))
"""All engines; the one of the embedded model first."""
ENGINES = tuple(spec.name for spec in SPECS if not spec.needs_argument)
"""Those that need no model."""


PARAMETERS = tuple(dict.fromkeys(row.dialect for row in list_parameters()))
"""The names of the dialects' tables of parameters."""


def parameters(dialect: str) -> Iterable[str]:
    """Every parameter of a dialect, its status, and for generating dialects the result
    of an example on each engine.
    """
    columns = {name: _capabilities(name) for name in ENGINES} if dialect in DIALECTS else {}
    yield f"| parameter | status |{''.join(f' {name} |' for name in columns)} notes |"
    yield f"| --- | --- |{' --- |' * len(columns)} --- |"
    for row in list_parameters():
        if row.dialect == dialect:
            cells = "".join(f" {_on(can, row)} |" for can in columns.values())
            yield f"| `{row.name}` | {row.status} |{cells} {_cell(row.note)} |"


def _on(can: Capabilities, row: ParameterSupport) -> str:
    """The result of an example of the parameter, as a request to an engine with these
    capabilities.
    """
    if row.status is not SupportStatus.HONOURED or row.name in REFUSES.get(row.dialect, ()):
        return ""
    call = DIALECTS[row.dialect].read(json.dumps(body(row.dialect, row.name)).encode(), READING)
    warnings: list[str] = []
    try:
        for request in call.requests:
            support = find_support(request, can, TERMS)
            part_types = find_part_types(request.prompt)
            warnings += check_request(request, support, part_types, can, TERMS)
    except RequestError:
        return "refused"
    return "warned" if warnings else "yes"


READING = ReaderOptions(default_model="tiny")
TERMS = CallTerms("x", new_id=lambda: "x", now=datetime.fromtimestamp(0, UTC))


def routes() -> Iterable[str]:
    """Every route with what its module declares for it."""
    yield "| path | methods | access | errors | module |"
    yield "| --- | --- | --- | --- | --- |"
    meters = ModelMetrics(build_models(Settings(model="scripted"), SystemClock()), lambda: 0.0)
    table = build_routes(Features(ui=True), meters, HttpMetrics())
    for module, declared in table.items():
        for route in declared:
            yield _route(route.path, ", ".join(route.operations), route, module)
    yield _route(ResponsesWebSocket.path, "WebSocket", ResponsesWebSocket, "responses.websocket")


def _route(path: str, methods: str, declared: Route | type[ResponsesWebSocket], module: str) -> str:
    file = f"../../packages/dragoman/src/dragoman/serving/routes/{module.replace('.', '/')}.py"
    return (
        f"| `{path}` | {methods} | {declared.access.value} | {declared.envelope.name} | "
        f"[{module}]({file}) |"
    )


def engines() -> Iterable[str]:
    """The features of each engine, from its capabilities. `depends`: on the model, or
    on how it is served.
    """
    can: dict[str, tuple[Capabilities, Capabilities]] = {}
    for spec in sorted(SPECS, key=lambda spec: spec.needs_argument):
        if spec.capabilities is not None:
            found = {name: (each.least, each.most) for name, each in spec.capabilities().items()}
        elif not spec.needs_argument:
            found = {spec.name: (_capabilities(spec.name),) * 2}
        else:
            continue
        # The pipeline adds the suffix to the prompts of a model with tokens for it.
        if "chat_template" in (spec.supports or ()):
            found = {
                name: (least, _add_feature(most, Feature.SUFFIX))
                for name, (least, most) in found.items()
            }
        can |= found
    yield f"| feature | {' | '.join(can)} |"
    yield f"| --- |{' --- |' * len(can)}"
    for feature in Feature:
        marks = (
            _mark(feature in least.features, feature in most.features)
            for least, most in can.values()
        )
        yield f"| {feature.value.replace('_', ' ')} | {' | '.join(marks)} |"
    for name in (*SamplingOptions.__struct_fields__, *GenerationLimits.__struct_fields__):
        here = name in _PIPELINE
        marks = (
            _mark(here or name in one.parameters, here or name in two.parameters)
            for one, two in can.values()
        )
        yield f"| `{name}` | {' | '.join(marks)} |"


def _add_feature(capabilities: Capabilities, feature: Feature) -> Capabilities:
    return replace(capabilities, features=capabilities.features | {feature})


def _mark(always: bool, sometimes: bool) -> str:
    return "yes" if always else "depends" if sometimes else "no"


_PIPELINE = frozenset({"max_tokens", "stop", "include_stop"})
"""Honoured for every engine by the pipeline."""


@cache
def _capabilities(model: str) -> Capabilities:
    return next(iter(build_models(Settings(model=model), SystemClock()))).capabilities


def settings() -> Iterable[str]:
    """Every setting, by group."""
    yield "| option | environment | default | description |"
    yield "| --- | --- | --- | --- |"
    for field in FIELDS:
        flag = "MODEL" if field.name == "model" else format_flag(field.option_name)
        engines = SUPPORTED_BY.get(field.name)
        whose = "" if engines is None else f" *({', '.join(engines)})*"
        yield (
            f"| `{flag}` | `{field.environment_variable}` | {_default(field)} | "
            f"{_cell(field.option.help)}{whose} |"
        )


def _default(field: SettingField) -> str:
    if isinstance(field.default, bool):
        # The row of a switch is that of the option that changes its default.
        return "off"
    if (
        field.default is None
        or field.default == ()
        or not isinstance(field.default, str | int | float)
    ):
        return ""
    return f"`{field.default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def tool_parsers() -> Iterable[str]:
    """Every tool call family, from the table that defines the parsers."""
    yield "| models | names | detected | enforced |"
    yield "| --- | --- | --- | --- |"
    for family in CALL_FAMILIES:
        enforced = (
            "JSON"
            if isinstance(
                family.syntax, JsonObjectSyntax | NamePrefixedSyntax | AlternativeSyntaxes
            )
            else "by argument"
        )
        bare = ", bare" if family.delimiters.leading else ""
        yield (
            f"| {family.models} | {_names(family.names)} | {_found(family.fingerprints)} | "
            f"{enforced}{bare} |"
        )
    yield f"| gpt-oss | {_names(HARMONY_TOOL_NAMES)} | {_found(HARMONY_FINGERPRINTS)} | JSON |"


def reasoning_parsers() -> Iterable[str]:
    yield "| models | names | markers | detected |"
    yield "| --- | --- | --- | --- |"
    for family in REASONING_FAMILIES:
        marks = " ".join(f"`{mark.strip()}`" for mark in (family.begin_marker, family.end_marker))
        yield (
            f"| {family.models} | {_names(family.names)} | {_cell(marks)} | "
            f"{_found(family.fingerprints)} |"
        )
    yield (
        f"| gpt-oss | {_names(HARMONY_REASONING_NAMES)} | the channel `analysis` | "
        f"{_found(HARMONY_FINGERPRINTS)} |"
    )


AGREEMENT = DOCS.parent / "packages" / "dragoman" / "tests" / "parsers" / "agreement"


def parser_differences() -> Iterable[str]:
    """How many texts are read as by vLLM's parsers, and the differences, as
    packages/dragoman/tests/parsers/agreement has them.
    """
    differences = json.loads((AGREEMENT / "differences.json").read_text(encoding="utf-8"))
    for kind, texts in (("tools", "texts with tool calls"), ("reasoning", "texts with reasoning")):
        number = len((AGREEMENT / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines())
        agreeing = number - sum(
            len(entry["cases"]) for entry in differences if entry["kind"] == kind
        )
        yield f"- {agreeing} of {number} {texts} are read as by vLLM."
    yield ""
    yield "| parsers | text | vLLM | Dragoman | why | texts |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for entry in differences:
        names = _names(dict.fromkeys(case.rpartition("-")[0] for case in entry["cases"]))
        names += " reasoning" if entry["kind"] == "reasoning" else ""
        cells = (entry[key] for key in ("text", "vllm", "dragoman", "why"))
        yield f"| {names} | {' | '.join(map(_cell, cells))} | {len(entry['cases'])} |"


_REASONS = (
    (
        "state beside keys and values",
        "state beside keys and values that is not in the library's cache",
    ),
    ("its output with paged attention differs", "another output with paged attention"),
    ("attention uses its own mask or drops ours", "attention with a mask of its own"),
    ("this model's attention uses `", "attention with a feature that the engine lacks"),
    ("returns no cache", "no cache of keys and values"),
    ("does not state a longest context", "no longest context in its configuration"),
    ("read the library's attention mask or cache", "layers that read the library's mask or cache"),
)
"""Parts of the messages that refuse models, and how the table names their reason."""


def architectures() -> Iterable[str]:
    """What became of every architecture, as recorded by
    tests/engines/transformers/architectures.py.
    """
    found = json.loads((DOCS / "architectures.json").read_text(encoding="utf-8"))
    groups: dict[str, list[str]] = {"right": [], "wrong": []}
    for tried in found["tried"]:
        result = tried["result"]
        if result == "refused":
            reason = next(
                (words for part, words in _REASONS if part in tried["reason"]), tried["reason"]
            )
            result = f"refused: {reason}"
        groups.setdefault(result, []).append(re.sub(r", (.+)", r" (\1)", tried["name"]))
    versions = ", ".join(f"{library} {version}" for library, version in found["versions"].items())
    yield f"Recorded on {found['date']} with {versions}."
    yield ""
    yield "| result | number | architectures (`model_type`) |"
    yield "| --- | --- | --- |"
    untried = groups.pop("not tried", [])
    for result, names in (*groups.items(), ("not tried", untried)):
        yield f"| {_cell(result)} | {len(names)} | {', '.join(names) or '-'} |"


def cli() -> Iterable[str]:
    """The help of every command but `serve`, whose options are the settings."""
    line = CommandLine()
    context = click.Context(line, info_name="dragoman")
    commands: list[tuple[str, ...]] = []
    for name in line.list_commands(context):
        command = line.get_command(context, name)
        if isinstance(command, click.Group):
            commands += [(name, inner) for inner in command.list_commands(context)]
        elif name != "serve":
            commands.append((name,))
    environment = {"COLUMNS": "100", "NO_COLOR": "1"}
    for names in commands:
        result = CliRunner().invoke(line, [*names, "--help"], prog_name="dragoman", env=environment)
        yield from (
            "",
            f"## dragoman {' '.join(names)}",
            "",
            "```text",
            result.output.strip(),
            "```",
        )
    yield ""


def errors() -> Iterable[str]:
    """Every error of `core.errors`, as the dialects send it."""
    yield "| error | status | code | OpenAI | Anthropic | TGI |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for kind in (DragomanError, *_list_subclasses(DragomanError)):
        error = _EXAMPLES[kind]() if kind in _EXAMPLES else kind("m")
        bodies = {
            each.name: json.loads(each.render(error, "r", Profile.OPENAI))
            for each in (OPENAI_ERRORS, ANTHROPIC_ERRORS, TGI_ERRORS)
        }
        type = bodies[ANTHROPIC_ERRORS.name]["error"]["type"]
        anthropic = f"{ANTHROPIC_ERRORS.map_status(error)} `{type}`"
        tgi = f"{TGI_ERRORS.map_status(error)} `{bodies[TGI_ERRORS.name]['error_type']}`"
        retry = "" if error.retry_after is None else ", `Retry-After`"
        code = f"`{error.code}`" if error.code else ""
        text = inspect.cleandoc(kind.__dict__.get("__doc__") or "").partition("\n\n")[0]
        # A docstring without a sentence describes its fields.
        about = f"`{kind.__name__}`" + (
            "" if not text or re.match(r"\w+: ", text) else f": {_cell(text)}"
        )
        openai = bodies[OPENAI_ERRORS.name]["error"]["type"]
        yield f"| {about} | {error.status}{retry} | {code} | `{openai}` | {anthropic} | {tgi} |"


def _list_subclasses(kind: type[DragomanError]) -> Iterable[type[DragomanError]]:
    for inner in kind.__subclasses__():
        if inner.__module__ == DragomanError.__module__:
            yield inner
            yield from _list_subclasses(inner)


_EXAMPLES: dict[type[DragomanError], Callable[[], DragomanError]] = {
    ContextTooLong: lambda: ContextTooLong(limit=1, prompt=2),
    MethodNotAllowed: lambda: MethodNotAllowed("m", allowed=("GET",)),
}
"""Those that need more than a message."""


def _names(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def _found(signs: Fingerprints) -> str:
    return "yes" if signs else "no"


def check_areas() -> Iterable[str]:
    """The areas of `dragoman check`, with the claims on which they apply and the number
    of their checks.
    """
    yield "| area | applies to servers with | checks | of these must |"
    yield "| --- | --- | --- | --- |"
    for area in AREAS:
        common = set.intersection(*(set(check.claims) for check in area.checks))
        must = sum(check.level == "must" for check in area.checks)
        yield (
            f"| `{area.name}` | {', '.join(sorted(common)) or 'as the rule says'} | "
            f"{len(area.checks)} | {must} |"
        )
    rules = len({(check.id.partition(".")[2], check.rule) for check in CHECKS})
    yield (
        f"| all | | {len(CHECKS)}, of {rules} rules | "
        f"{sum(check.level == 'must' for check in CHECKS)} |"
    )


def vllm_flags() -> Iterable[str]:
    """vLLM's flags that the simulator does not have, and the reason that its error
    states.
    """
    yield "| flags of vLLM | why not, and what to use instead |"
    yield "| --- | --- |"
    for flags, reason in list_explained_flags():
        yield f"| {flags} | {reason} |"


def serve_flags() -> Iterable[str]:
    """Flags of other servers, and what to use instead in `dragoman serve`."""
    return _foreign_flags(SERVE_FLAGS)


def ask_flags() -> Iterable[str]:
    """The same for `dragoman run` and `chat`."""
    return _foreign_flags(ASK_FLAGS)


def bench_flags() -> Iterable[str]:
    """The same for `dragoman bench`."""
    return _foreign_flags(BENCH_FLAGS)


def _foreign_flags(flags: Iterable[ForeignFlag]) -> Iterable[str]:
    yield "| flags | of | what to do here |"
    yield "| --- | --- | --- |"
    for flag in flags:
        names = ", ".join(f"`{name}`" for name in flag.names)
        yield f"| {names} | {flag.programs} | {_cell(flag.advice)} |"


def check_rules() -> Iterable[str]:
    """The rules of `dragoman check`; one that holds in several areas is one row."""
    rows: dict[tuple[str, str], list[Check]] = {}
    for check in CHECKS:
        rows.setdefault((check.id.partition(".")[2], check.rule), []).append(check)
    yield "| check | areas | rule | level | source |"
    yield "| --- | --- | --- | --- | --- |"
    for (name, rule), found in rows.items():
        areas = ", ".join(check.area for check in found)
        sources = ", ".join(
            f"[{i}]({source})" for i, source in enumerate(dict.fromkeys(c.source for c in found), 1)
        )
        level = found[0].level + (", destructive" if found[0].is_destructive else "")
        yield f"| `{name}` | {areas} | {_cell(rule)} | {level} | {sources} |"


def metrics() -> Iterable[str]:
    """Every metric of `/metrics`, as its collector defines it."""
    sys.path.append(str(DOCS.parent / "deploy"))
    from metrics import list_metrics  # noqa: PLC0415 - the dashboard is generated from the same definitions

    yield "| metric | type | labels | meaning |"
    yield "| --- | --- | --- | --- |"
    for metric in list_metrics():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.type} | {labels} | {metric.text} |"


def agents() -> Iterable[str]:
    clients = DOCS.parent / "tests/clients"
    package = json.loads((clients / "node/package.json").read_text())
    versions = {**package["dependencies"], **package["optionalDependencies"]}
    runs = json.loads((clients / "agent_runs.json").read_text())
    yield "| `launch` | agent | version | API | edits the file by |"
    yield "| --- | --- | --- | --- | --- |"
    for name, agent in AGENTS.items():
        run = runs[name]
        version = run.get("version") or versions[agent.install.rpartition(" ")[2]]
        edit = f"`{run['calls'][-1][0]}`" if "calls" in run else "its text"
        page = DOCS / "agents" / f"{agent.title.lower().replace(' ', '-')}.md"
        target = page.name if page.exists() else f"other-agents.md#{page.stem}"
        yield f"| `{name}` | [{agent.title}]({target}) | {version} | {agent.api} | {edit} |"


TABLES: dict[str, Callable[[], Iterable[str]]] = {
    **{dialect: partial(parameters, dialect) for dialect in PARAMETERS},
    "agents": agents,
    "engines": engines,
    "routes": routes,
    "settings": settings,
    "metrics": metrics,
    "architectures": architectures,
    "check_areas": check_areas,
    "vllm_flags": vllm_flags,
    "serve_flags": serve_flags,
    "ask_flags": ask_flags,
    "bench_flags": bench_flags,
    "check_rules": check_rules,
    "cli": cli,
    "errors": errors,
    "tool_parsers": tool_parsers,
    "reasoning_parsers": reasoning_parsers,
    "parser_differences": parser_differences,
}


def renewed(page: str) -> str:
    """The page with its tables regenerated."""

    def table(found: re.Match[str]) -> str:
        return found[1] + "\n".join(TABLES[found[2]]()) + "\n" + found[3]

    return _TABLE.sub(table, page)


def main() -> int:
    stale: list[str] = []
    for file in sorted(DOCS.rglob("*.md")):
        page = file.read_text(encoding="utf-8")
        new = renewed(page)
        if new != page:
            stale.append(str(file.relative_to(DOCS)))
            if "--check" not in sys.argv:
                file.write_text(new, encoding="utf-8")
    print(f"outdated: {', '.join(stale)}" if stale else "all tables are up to date")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
