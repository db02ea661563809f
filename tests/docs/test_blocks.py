"""The parts of a page that are run, and the comparison of their output."""

from __future__ import annotations

import pytest

from .blocks import BlockError, Command, blocks, commands, prints

PAGE = """\
# Title

```console
$ not marked
```

<!-- test: scripted --port 0 -->

```console
$ curl \\
> x
one
two
```

<!-- test -->
```python
print(1)
```
<!-- output -->
```
1
```
<!-- file: demo.yaml -->
```yaml
- Hello
```
```text
<!-- test -->
```
"""


def test_blocks_returns_only_marked_blocks():
    found = [(block.kind, block.argument, block.language, block.line) for block in blocks(PAGE)]
    assert found == [
        ("test", "scripted --port 0", "console", 9),
        ("test", "", "python", 17),
        ("output", "", "", 21),
        ("file", "demo.yaml", "yaml", 25),
    ]
    assert [block.text for block in blocks(PAGE)][1:] == ["print(1)\n", "1\n", "- Hello\n"]


def test_commands_splits_console_into_commands_and_output():
    console = next(iter(blocks(PAGE))).text
    assert commands(console) == [Command("curl \\\nx", "one\ntwo\n")]
    assert commands("$ a\n$ b\n") == [Command("a", ""), Command("b", "")]


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("<!-- test -->\n\ntext", "line 1: no fence follows"),
        ("<!-- test -->", "no fence follows"),
        ("<!-- test -->\n```python\nx", "never closed"),
        ("text\n```\nx", "never closed"),
        ("<!-- tests -->\n```python\n```", "line 1: .* is no mark"),
        ("<!--test-->\n```python\n```", "is no mark"),
    ],
)
def test_blocks_unknown_marker_raises_error(page: str, why: str):
    with pytest.raises(BlockError, match=why):
        list(blocks(page))


def test_commands_output_before_command_raises_error():
    with pytest.raises(BlockError, match="before any command"):
        commands("output\n$ command\n")


@pytest.mark.parametrize(
    ("expected", "printed", "right"),
    [
        ("", "anything", True),
        ("one\n", "one\n", True),
        ("one two", "one\n  two\n", True),
        ("one", "one two", False),
        ("one ...", "one two", True),
        ("... two", "one two", True),
        ('{"id": "...", "x": 1}', '{"id": "a", "x": 1}', True),
        ('{"id": "...", "x": 1}', '{"id": "a", "x": 2}', False),
        ("a...b...c", "a1b2c", True),
        ("a...b...c", "a12c", False),
        ("ab...ba", "aba", False),
    ],
)
def test_prints_dots_match_any_text(expected: str, printed: str, right: bool):
    assert prints(expected, printed) is right
