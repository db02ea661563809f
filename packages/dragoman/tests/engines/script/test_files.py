"""Scripts as files: their contents, and error messages."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import yaml

from dragoman.core.events import FinishReason
from dragoman.engines.script import (
    CallTool,
    Fail,
    MatchRule,
    Refuse,
    Say,
    Script,
    ScriptEntry,
    ScriptError,
    Think,
    UsageOverride,
    Wait,
    load_script,
    script_file,
)

FULL = """\
- Hello!
- match: {contains: weather, equals: a, glob: "*", role: user, model: m, tool: t}
  reply:
    - text: [Cut, so]
    - reasoning: Hm
    - refusal: "No"
    - tool: {name: f, arguments: {city: Zürich}, id: call_9}
    - tool: {name: f, arguments: "{broken"}
    - tool: {name: f, arguments: ["{", "}"]}
    - tool: {name: f}
    - delay: 0.5
    - error: {status: 503, message: Later, code: busy, retry_after: 3}
  times: 2
- match: {contains: [a, b]}
  reply: {text: x}
  more: [y, [{text: z}]]
  repeat: true
  delay: 1
  pace: 0.1
  chunks: words
  finish: length
  usage: {prompt: 1, cached: 0}
"""
ENTRIES = (
    ScriptEntry((Say("Hello!"),)),
    ScriptEntry(
        (
            Say(("Cut", "so")),
            Think("Hm"),
            Refuse("No"),
            CallTool("f", '{"city": "Zürich"}', "call_9"),
            CallTool("f", "{broken"),
            CallTool("f", ("{", "}")),
            CallTool("f", "{}"),
            Wait(0.5),
            Fail(503, "Later", "busy", None, 3.0),
        ),
        MatchRule(("weather",), "a", "*", "user", "m", "t"),
        times=2,
    ),
    ScriptEntry(
        (Say("x"),),
        MatchRule(("a", "b")),
        ((Say("y"),), (Say("z"),)),
        repeat=True,
        delay=1.0,
        pace=0.1,
        chunks="words",
        finish=FinishReason.LENGTH,
        usage=UsageOverride(prompt=1, cached=0),
    ),
)


def write_script(folder: Path, text: str, name: str = "script.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_load_script_parses_all_fields(tmp_path: Path):
    assert _same(load_script(write_script(tmp_path, FULL)), Script(ENTRIES))


def test_load_script_formats_are_equivalent(tmp_path: Path):
    entries = yaml.safe_load(FULL)
    full = load_script(write_script(tmp_path, json.dumps(entries, indent=1), "script.json"))
    lines = load_script(
        write_script(tmp_path, "\n\n".join(map(json.dumps, entries)) + "\n", "script.jsonl")
    )
    assert _same(full, Script(ENTRIES))
    assert _same(lines, Script(ENTRIES))


def _same(one: Script, other: Script) -> bool:
    """Compare structs by their fields: a file may produce a subclass of what a program
    produces.
    """
    return repr(one).replace("_Error", "Fail").replace("_Usage", "UsageOverride") == repr(other)


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("- Hello\n- reply:\n    - txt: x\n", "s.yaml", r"entry 2 \(line 2\): .*txt"),
        (
            "- Hello\n\n- reply: x\n  match: {contains: 3}\n",
            "s.yaml",
            r"entry 2 \(line 3\): match.contains: .*int",
        ),
        (
            "- reply: [{text: a, delay: 1}]\n",
            "s.yaml",
            r"entry 1 \(line 1\): reply\[0\]: .*text and delay",
        ),
        ("- reply: [{}]\n", "s.yaml", "has none"),
        ("- reply: [{error: {status: 200}}]\n", "s.yaml", "from 400 to 599"),
        (
            "- reply: [{text: x}, {error: {status: 404}}]\n",
            "s.yaml",
            "the status of an error must be from 500",
        ),
        ("- reply: [{delay: .nan}]\n", "s.yaml", "from 0 to 3600"),
        ("- reply: [{tool: {name: f, arguments: {a: .nan}}}]\n", "s.yaml", "entry 1"),
        (
            "- reply: [{tool: {name: f, arguments: {a: 2024-01-01}}}]\n",
            "s.yaml",
            "arguments of f: .*date.*quote",
        ),
        ("- reply: x\n  reply: y\n", "s.yaml", "line 1: 'reply' appears twice"),
        ("- reply: x\n  times: 0\n", "s.yaml", "at least 1"),
        ("- reply: x\n  times: true\n", "s.yaml", "times"),
        ("- reply: x\n  finish: abort\n", "s.yaml", "finish"),
        ("- yes\n", "s.yaml", "entry 1"),
        ('- "\\ud800"\n', "s.yaml", "surrogate"),
        ("- &a [*a]\n", "s.yaml", "recursive"),
        ("- [a\n", "s.yaml", "line"),
        ("reply: x\n", "s.yaml", "list of entries"),
        ("", "s.yaml", "list of entries"),
        ("[]", "s.yaml", "at least one entry"),
        ('[\n "a",\n {"reply": 1}\n]', "s.json", r"entry 2 \(line 3\): reply"),
        ('["\\ud800"]', "s.json", "surrogate"),
        ('[{"reply": "x", "reply": "y"}]', "s.json", "appears twice"),
        ('{"reply": "x"}', "s.json", "list of entries"),
        ("[1,", "s.json", "line 1"),
        ('"a"\n{"reply": "x",}\n', "s.jsonl", "line 2"),
        ('"a"\n\n{"replies": "x"}\n', "s.jsonl", r"entry 2 \(line 3\)"),
        ("\n", "s.jsonl", "at least one entry"),
        ("- x", "s.txt", "must end in one of .yaml"),
        ("[" * 100_000, "s.json", "s.json"),
    ],
)
def test_load_script_invalid_file_reports_location(tmp_path: Path, text: str, name: str, why: str):
    with pytest.raises(ScriptError, match=why) as caught:
        load_script(write_script(tmp_path, text, name))
    assert str(caught.value).startswith(str(tmp_path / name))


def test_load_script_unreadable_file_raises(tmp_path: Path):
    with pytest.raises(ScriptError, match="No such file"):
        load_script(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"- \xff")
    with pytest.raises(ScriptError, match="utf-8"):
        load_script(tmp_path / "latin.yaml")


def test_docstring_example_is_valid_script(tmp_path: Path):
    example = (script_file.__doc__ or "").partition("\n\n")[2]
    assert len(load_script(write_script(tmp_path, inspect.cleandoc(example))).entries) == 5
