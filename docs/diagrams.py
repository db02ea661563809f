"""Draws the diagrams of the docs as SVG: `python docs/diagrams.py`. They load nothing,
in light and dark colours.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
IMAGES = DOCS / "images"
PER_ROW = 6
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #15191b; text-anchor: middle }
.name { font-weight: 600 } .note { fill: #586368 }
.code { font: 12px ui-monospace, Menlo, Consolas, monospace }
.left { text-anchor: start } .right { text-anchor: end }
.page { fill: #fff } .box { fill: #f5f7f7; stroke: #b9c3c5 }
.core { fill: #e5f3f1; stroke: #0b6b61 }
.line { stroke: #586368; fill: none; stroke-width: 1.5 } .back { stroke: #0b6b61 }
.head { fill: #586368 } .tip { fill: #0b6b61 }
@media (prefers-color-scheme: dark) {
  text { fill: #e7ebec } .note { fill: #9aa6ac }
  .page { fill: #101316 } .box { fill: #1d2227; stroke: #4a555c }
  .core { fill: #14302d; stroke: #5ccfbf }
  .line { stroke: #9aa6ac } .back { stroke: #5ccfbf } .head { fill: #9aa6ac } .tip { fill: #5ccfbf }
}
"""
STAGES: Sequence[tuple[str, str, str]] = (
    ("http/", "bytes of a request", "bytes of the response"),
    ("serving/", "access, body, media", "response, keep-alive, storage"),
    ("dialects/", "reader", "writer"),
    ("pipeline/", "admission, prompt, limits, grammar", "detokenizer, parsers, stop strings"),
    ("engines/", "scheduling", "tokens, or events"),
)
"""Package, and what it does on the way to the engine and on the way back."""
BETWEEN: Sequence[tuple[str, str]] = (
    ("ASGI messages", "ASGI messages"),
    ("bytes of the body", "bytes"),
    ("GenerateRequest", "Event"),
    ("TokenRequest", "TokenOutput"),
)
"""What passes between two packages, down and up."""
ASIDE: Sequence[tuple[str, str]] = (
    ("dragoman_sim", "simulator, laboratory"),
    ("dragoman_check", "checker, load driver"),
    ("dragoman_cli", "runs the commands"),
    ("dragoman_http", "client for streams"),
    ("pytest_dragoman", "tests of clients"),
    ("testing", "for others' tests"),
    ("ui", "files of the page"),
)
"""The other distributions, and folders of the server beside its layers."""
TOUR: Mapping[str, Sequence[tuple[int, str]]] = {
    "shared": ((1, "events.py"), (2, "event_grammar.py"), (3, "reply.py")),
    "reader": ((4, "wire.py"), (5, "reader.py")),
    "preparation": ((6, "request_preparation.py"),),
    "run": ((7, "token_run.py"),),
    "engine": ((8, "engine.py"),),
    "writer": ((9, "writer.py"),),
}
"""The numbers and files of tour.md by their place in the drawing."""


class Drawing:
    """One SVG."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._title = title
        self._width = width
        self._height = height
        self._parts: list[str] = []

    def draw_box(
        self, place: tuple[int, int, int, int], lines: Sequence[tuple[str, str]], kind: str = "box"
    ) -> None:
        """place: left, top, width, height. lines: text and its class."""
        x, y, width, height = place
        self._parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        )
        top = y + height / 2 + 4.5 - 9 * (len(lines) - 1)
        for number, (text, style) in enumerate(lines):
            self.write(x + width // 2, int(top + 18 * number), text, style)

    def write(self, x: int, y: int, text: str, style: str = "note") -> None:
        self._parts.append(f'<text class="{style}" x="{x}" y="{y}">{escape(text)}</text>')

    def draw_line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        self._parts.append(f'<path class="line" d="M{start[0]} {start[1]}L{end[0]} {end[1]}"/>')

    def draw_arrow(
        self, start: tuple[int, int], end: tuple[int, int], *, is_back: bool = False
    ) -> None:
        """A straight line, with its head at the end."""
        (x1, y1) = start
        (x2, y2) = end
        dx = (x2 > x1) - (x2 < x1)
        dy = (y2 > y1) - (y2 < y1)
        points = (
            f"{x2},{y2} {x2 - 8 * dx - 5 * dy},{y2 - 8 * dy - 5 * dx} "
            f"{x2 - 8 * dx + 5 * dy},{y2 - 8 * dy + 5 * dx}"
        )
        self._parts.append(
            f'<path class="line{" back" * is_back}" d="M{x1} {y1}L{x2 - 6 * dx} {y2 - 6 * dy}"/>'
        )
        self._parts.append(f'<polygon class="{"tip" if is_back else "head"}" points="{points}"/>')

    def render(self) -> str:
        size = (
            f'viewBox="0 0 {self._width} {self._height}" width="{self._width}" '
            f'height="{self._height}"'
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
            f'aria-label="{escape(self._title)}">'
        )
        page = f'<rect class="page" width="{self._width}" height="{self._height}" rx="10"/>'
        return "\n".join(
            (
                head,
                f"<title>{escape(self._title)}</title><style>{STYLE}</style>",
                page,
                *self._parts,
                "</svg>\n",
            )
        )


def draw_request() -> Drawing:
    """A request's way through the packages and back."""
    drawing = Drawing("A request's way from the bytes to the engine, and back", 760, 486)
    for number, (package, down, up) in enumerate(STAGES):
        y = 20 + 92 * number
        drawing.draw_box((20, y, 720, 54), (), "core" if package == "pipeline/" else "box")
        drawing.write(380, y + 32, package, "code name")
        drawing.write(180, y + 32, down, "text")
        drawing.write(580, y + 32, up, "text")
        if number < len(BETWEEN):
            drawing.draw_arrow((180, y + 54), (180, y + 92))
            drawing.draw_arrow((580, y + 92), (580, y + 54), is_back=True)
            drawing.write(192, y + 78, BETWEEN[number][0], "code left")
            drawing.write(592, y + 78, BETWEEN[number][1], "code left")
    drawing.write(
        380, 464, "The non-streamed response is built from the same events as the stream."
    )
    return drawing


def read_layers() -> list[list[str]]:
    """The layers of the server from above, as `make check` enforces them."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layers: list[str] = next(
        contract["layers"]
        for contract in contracts
        if contract["type"] == "layers" and contract.get("containers", ["dragoman"]) == ["dragoman"]
    )
    return [
        [name.strip().removeprefix("dragoman.") for name in re.split("[|:]", layer)]
        for layer in layers
    ]


def draw_packages() -> Drawing:
    """Which package may import which."""
    rows = [
        layer[at : at + PER_ROW] for layer in read_layers() for at in range(0, len(layer), PER_ROW)
    ]
    height = 20 + 50 * len(rows)
    title = "The packages of the server in layers: each may import those below it"
    drawing = Drawing(title, 960, height + 40)
    for number, row in enumerate(rows):
        gap = 10
        width = (690 - gap * (len(row) - 1)) // len(row)
        for place, name in enumerate(row):
            box = (20 + place * (width + gap), 20 + 50 * number, width, 38)
            drawing.draw_box(box, ((name, "code"),), "core" if name == "core" else "box")
    drawing.draw_arrow((732, 20), (732, height - 12))
    drawing.write(748, 34, "may import", "note left")
    for number, (name, purpose) in enumerate(ASIDE):
        drawing.draw_box((752, 60 + 76 * number, 188, 62), ((name, "code"), (purpose, "note")))
    drawing.write(
        365,
        height + 18,
        "No package imports one above it or beside it. Right: what stands apart.",
    )
    return drawing


def draw_tour() -> Drawing:
    """The files of tour.md on the way of a request."""
    drawing = Drawing("The files of the tour, numbered, on the way of a request", 760, 372)

    def draw_files(place: str, box: tuple[int, int, int, int], note: str) -> None:
        files = [(f"{number} {name}", "code name") for number, name in TOUR[place]]
        kind = "core" if place == "shared" else "box"
        drawing.draw_box(box, (*files, (note, "note")), kind)

    draw_files("reader", (20, 20, 216, 84), "completions: bytes to requests")
    draw_files("writer", (524, 20, 216, 84), "completions: events to bytes")
    draw_files("preparation", (20, 152, 216, 66), "pipeline: prompt and limits")
    draw_files("run", (524, 152, 216, 66), "pipeline: tokens to events")
    draw_files("engine", (20, 266, 720, 66), "tiny: scheduling and sampling")
    draw_files("shared", (262, 20, 236, 198), "core: what both sides share")
    drawing.draw_arrow((128, 104), (128, 152))
    drawing.write(140, 132, "GenerateRequest", "code left")
    drawing.draw_arrow((128, 218), (128, 266))
    drawing.write(140, 246, "TokenRequest", "code left")
    drawing.draw_arrow((632, 152), (632, 104), is_back=True)
    drawing.write(644, 132, "Event", "code left")
    drawing.draw_arrow((632, 266), (632, 218), is_back=True)
    drawing.write(644, 246, "TokenOutput", "code left")
    drawing.write(380, 356, "Down on the left: the request. Up on the right: the answer.")
    return drawing


def draw_deployment() -> Drawing:
    """Several replicas, with what is around them."""
    drawing = Drawing(
        "A deployment: clients, a proxy, replicas, engines, the store and monitoring", 940, 412
    )
    clients = (("clients", "name"), ("OpenAI, Anthropic,", "note"), ("Ollama, agents", "note"))
    drawing.draw_box((20, 118, 150, 84), clients)
    drawing.draw_arrow((170, 160), (230, 160))
    drawing.write(200, 148, "HTTPS")
    drawing.draw_box(
        (230, 118, 150, 84),
        (("proxy", "name"), ("TLS, no buffering,", "note"), ("no repeated POST", "note")),
    )
    drawing.draw_arrow((380, 160), (420, 160))
    drawing.draw_box((420, 20, 240, 280), ())
    for number in range(2):
        y = 60 + 124 * number
        name = f"dragoman, replica {number + 1}"
        replica = (
            (name, "name"),
            ("keys, limits, dialects", "note"),
            ("/readyz, /livez, /metrics", "code"),
        )
        drawing.draw_box((435, y, 210, 84), replica, "core")
        drawing.draw_arrow((645, y + 42), (730, y + 42))
        engine = (
            ("engine", "name"),
            ("in the same process,", "note"),
            ("or a server such as vLLM", "note"),
        )
        drawing.draw_box((730, y, 190, 84), engine)
    drawing.write(540, 46, "any number of replicas")
    drawing.draw_arrow((490, 300), (490, 338))
    drawing.write(482, 324, "state, jobs, counters", "note right")
    drawing.draw_box(
        (380, 338, 220, 54), (("store", "name"), ("PostgreSQL, or SQLite for one", "note"))
    )
    drawing.draw_line((630, 300), (630, 365))
    drawing.draw_arrow((630, 365), (730, 365))
    drawing.draw_box(
        (730, 338, 190, 54), (("Prometheus, OTLP", "name"), ("metrics, alerts, traces", "note"))
    )
    return drawing


def draw_all() -> Iterator[tuple[Path, str]]:
    """Each file with its content."""
    for name, drawing in (
        ("request", draw_request()),
        ("packages", draw_packages()),
        ("tour", draw_tour()),
        ("deployment", draw_deployment()),
    ):
        yield IMAGES / f"{name}.svg", drawing.render()


if __name__ == "__main__":
    for path, text in draw_all():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.stdout.write(f"written: {path.name}\n")
            path.write_text(text, encoding="utf-8")
