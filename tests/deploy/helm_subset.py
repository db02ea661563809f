"""Renders the part of Helm's template language that the chart uses. Anything else is an
error.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import yaml

_CONTROL = re.compile(r"\s*\{\{-? (if|with|else|end)\b ?(.*?) ?-?\}\}\s*")
_EXPRESSION = re.compile(r"\{\{-? (.+?) -?\}\}")


class Chart:
    """A chart with overridden values. Values are merged by key, one level deep."""

    def __init__(self, folder: Path, overrides: dict[str, Any]) -> None:
        self.folder = folder
        values = yaml.safe_load((folder / "values.yaml").read_text())
        for name, value in overrides.items():
            values[name] = {**values[name], **value} if isinstance(values[name], dict) else value
        chart = yaml.safe_load((folder / "Chart.yaml").read_text())
        self._root: dict[str, Any] = {
            "Values": values,
            "Chart": {name[0].upper() + name[1:]: value for name, value in chart.items()},
            "Release": {"Name": "test", "Namespace": "models", "Service": "Helm"},
        }
        helpers = (folder / "templates/_helpers.tpl").read_text()
        found = re.findall(
            r'\{\{- define "(.+?)" -\}\}\n(.*?)\n\{\{- end -\}\}', helpers, re.DOTALL
        )
        self._helpers: dict[str, str] = dict(found)

    def render(self, name: str) -> list[dict[str, Any]]:
        text = self._render_text((self.folder / "templates" / name).read_text(), self._root)
        return [document for document in yaml.safe_load_all(text) if document]

    def _render_text(self, text: str, dot: Any) -> str:
        lines: list[str] = []
        # For each open block: whether its lines are used, and the value of `.` in it.
        blocks: list[tuple[bool, Any]] = [(True, dot)]
        for line in text.splitlines():
            control = _CONTROL.fullmatch(line)
            is_used, current = blocks[-1]
            if control is None:
                if is_used:
                    lines.append(self._render_line(line, current))
                continue
            match control[1]:
                case "end":
                    blocks.pop()
                case "else":
                    blocks[-1] = (blocks[-2][0] and not is_used, current)
                case kind:
                    value = self._evaluate(control[2], current) if is_used else None
                    blocks.append((is_used and bool(value), value if kind == "with" else current))
        assert len(blocks) == 1
        return "\n".join(line for line in lines if line.strip()) + "\n"

    def _render_line(self, line: str, dot: Any) -> str:
        return _EXPRESSION.sub(lambda match: self._evaluate_pipe(match[1], dot), line)

    def _evaluate_pipe(self, text: str, dot: Any) -> str:
        first, *functions = text.split(" | ")
        value = self._evaluate(first, dot)
        for function in functions:
            value = self._apply(function.split(), value)
        return str(value)

    def _apply(self, words: list[str], value: Any) -> Any:
        match words:
            case ["nindent", number]:
                return "\n" + "\n".join(
                    " " * int(number) + line for line in str(value).splitlines()
                )
            case ["quote"]:
                return f'"{value}"'
            case ["sha256sum"]:
                return hashlib.sha256(str(value).encode()).hexdigest()
            case ["default", path]:
                return value or self._evaluate(path, self._root)
            case ["trunc", number]:
                return str(value)[: int(number)]
            case ["trimSuffix", suffix]:
                return str(value).removesuffix(suffix.strip('"'))
            case _:
                raise AssertionError(f"unknown function {words}")

    def _evaluate(self, text: str, dot: Any) -> Any:  # noqa: PLR0911 - one for each form
        text = text.strip()
        if text.startswith("not ("):
            return not self._evaluate(text[5:-1], dot)
        match text.split():
            case ["or", *paths]:
                return any(self._evaluate(path, dot) for path in paths)
            case ["toYaml", path]:
                return yaml.safe_dump(self._evaluate(path, dot)).rstrip()
            case ["include", name, "."]:
                return self._render_text(self._helpers[name.strip('"')], self._root).rstrip()
            case ["printf", '"%s-%s"', first, second]:
                return f"{self._evaluate(first, dot)}-{self._evaluate(second, dot)}"
            case ["div", path, number]:
                return self._evaluate(path, dot) // int(number)
            case [".Files.Get", name]:
                return (self.folder / name.strip('"')).read_text()
            case ["."]:
                return dot
            case [path] if path.startswith("."):
                value = self._root
                for part in path[1:].split("."):
                    value = value[part]
                return value
            case _:
                raise AssertionError(f"unknown expression {text}")
