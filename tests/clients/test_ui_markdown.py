"""The Markdown of answers in Chromium: what it becomes, what it never becomes, and how
it grows.
"""

from __future__ import annotations

import json
import random

import pytest

from .devtools import BROWSER, Page
from .page_servers import Servers

pytestmark = [pytest.mark.clients, pytest.mark.skipif(BROWSER is None, reason="needs Chromium")]

DOCUMENT = """# Title
An *answer* with **strong** ~~old~~ text, `code_with_underscores` and snake_case.
A [link](https://a.example/b_(c)), https://b.example/x. And a line\\
break.

1. one
   - inner
   - [x] done

2. two

> quoted
goes on

| Name | Size |
|:-----|-----:|
| a\\|b | `1|2` |

```python
def f():
\treturn "*no emphasis*"
```
$$
x_1 * y * z_2
$$
Inline $a_1$ costs $5 and $6.

- - deep

***
#hashtag
Setext
------
````md
```js
inner
```
````
"""
EXPECTED = {
    "# A *b*": "<h3>A <em>b</em></h3>",
    "**a** __b__ _c_ ***d***": (
        "<p><strong>a</strong> <strong>b</strong> <em>c</em> <em><strong>d</strong></em></p>"
    ),
    "a * b * c snake_case_name": "<p>a * b * c snake_case_name</p>",
    "``a ` b`` `<i>`": "<p><code>a ` b</code> <code>&lt;i&gt;</code></p>",
    "1. a\n2. b\n   - c": "<ol><li>a</li><li>b<ul><li>c</li></ul></li></ol>",
    "> a\nb\n\nc": "<blockquote><p>a\nb</p></blockquote><p>c</p>",
    "a<br>b  \nc": "<p>a<br>b  <br>c</p>",
    "---": "<hr>",
    "$x_1$ is \\(y\\)": "<p><code>$x_1$</code> is <code>\\(y\\)</code></p>",
    "[a](https://x.example/)": '<p><a href="https://x.example/">a</a></p>',
    "see https://x.example/a.": (
        '<p>see <a href="https://x.example/a">https://x.example/a</a>.</p>'
    ),
    "| a | b |\n|---|--:|\n| 1 | 2 |": (
        "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
        "<tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>"
    ),
    "```js\na\n```": ("<div><div><span>js</span><button>Copy</button></div><pre>a</pre></div>"),
}
PIECES = (
    *(
        "# ",
        "- ",
        "- a\n",
        "1. ",
        "> ",
        "```\n",
        "```py\n",
        "~~~\n",
        "\n",
        "\n\n",
        "  ",
        "    ",
        "\t",
    ),
    *("a", "b c", "a\n", "*", "**", "_", "`", "|", "|-|-|\n", "$$\n", "[x](https://a.example)"),
    *("===\n", "---\n", "<b>", "\\", "\r\n", "#"),
)
ACTIVE = "a, img, script, iframe, object, embed, form, input, style, link, svg, base, meta"
BIDI = "\u202eevil\u202c \u2066x\u2069"
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>\n\n<svg/onload=alert(1)>",
    "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](java\nscript:alert(1))",
    "[a](<javascript:alert(1)>) [b](\\javascript:alert(1)) [c](&#106;avascript:alert(1))",
    "[a](data:text/html,<script>alert(1)</script>) ![b](data:image/svg+xml,<svg/>)",
    "[a](vbscript:x) [b](file:///etc/passwd) [c](blob:x) [d](//evil.example) [e](/v1/models)",
    "![a](https://evil.example/pixel.png?secret)\n\n[a]: javascript:alert(1)\n[a]",
    "<javascript:alert(1)> <https://good.example@evil.example/>",
    "[bank](https://bank.example@evil.example/)",
    "```html\n<script>alert(1)</script>\n",
    "````\n```\n<b>\n```\n",
    f"{BIDI} `{BIDI}` [{BIDI}](https://a.example/{BIDI})",
    "**a *b ~~c `d [e](f <g $h",
    "| a | b\n|--|\n| <b> |",
)
LARGE = {
    "a line": "x" * 1_000_000,
    "words": "word " * 200_000,
    "stars": "**a " * 100_000,
    "brackets": "[" * 500_000 + "](",
    "links": "[a](" * 200_000,
    "backticks": "`a``b```" * 100_000,
    "quotes": ">" * 500_000,
    "fences": "```\n" * 100_001,
    "items": "- a\n" * 100_000,
    "nested items": "\n".join(" " * depth + "- x" for depth in range(1000)),
    "nested emphasis": "*a **b " * 2000 + "** *" * 2000,
    "cells": "|" * 200_000 + "\n" + "|-" * 100_000 + "|\n",
    "heading": "# a" + " " * 500_000 + "b",
    "delimiters": "a|b\n-|-" + " " * 500_000 + "x",
    "formulas": "\\[ a\n" * 100_000,
    "dollars": "$a" * 300_000,
    "lines": "\n" * 1_000_000,
}


@pytest.fixture
def blank(page: Page, servers: Servers) -> Page:
    """The page with the module under test in `view`, and helpers in `window`."""
    page.open(f"{servers.start('scripted --directives')}/ui")
    page.evaluate(
        """(async () => {
        window.view = await import(new URL("ui/markdown_view.js", document.baseURI));
        window.shown = (text) => document.body.appendChild(view.renderMarkdown(text));
        const keep = ["href"];
        window.plain = (element) => {
          const copy = element.cloneNode(true);
          for (const one of copy.querySelectorAll("*"))
            for (const name of one.getAttributeNames())
              if (!keep.includes(name)) one.removeAttribute(name);
          return copy.innerHTML;
        };
        })()"""
    )
    return page


def test_markdown_blocks_become_elements(blank: Page):
    script = f"{json.dumps(list(EXPECTED))}.map((text) => plain(view.renderMarkdown(text)))"
    assert dict(zip(EXPECTED, blank.evaluate(script), strict=True)) == EXPECTED


def test_markdown_document_shows_all_text(blank: Page):
    blank.evaluate(f"shown({json.dumps(DOCUMENT)})")
    text = blank.evaluate("document.body.lastChild.textContent")
    words = ("Title", "code_with_underscores", "inner", "two", "goes on", "a|b", "1|2", "x_1 * y")
    assert [word for word in words if word not in text] == []
    assert blank.evaluate(
        "[...document.querySelectorAll('.fence pre')].map((one) => one.innerText)"
    ) == [
        'def f():\n\treturn "*no emphasis*"',
        "```js\ninner\n```",
    ]
    heading = "[...document.querySelectorAll('.text > h4')].at(-1).textContent"
    assert blank.evaluate(heading) == "#hashtag\nSetext"


def test_markdown_code_block_copies_source(blank: Page):
    code = f'print("{BIDI}")\n\tx'
    blank.evaluate(
        "Object.defineProperty(navigator, 'clipboard', { configurable: true,"
        " value: { writeText: async (text) => (window.copied = text) } })"
    )
    for end in ("\n```", ""):
        blank.evaluate(
            f"document.body.replaceChildren(), shown({json.dumps(f'```py{chr(10)}{code}{end}')})"
        )
        blank.evaluate("document.querySelector('.fence button').click()")
        assert blank.wait("window.copied") == code
        assert "[U+202E]" in blank.text(".fence pre")
        blank.evaluate("delete window.copied")


def test_markdown_of_hostile_text_stays_text(blank: Page):
    for text in HOSTILE:
        blank.evaluate(f"document.body.replaceChildren(), shown({json.dumps(text)})")
        found = blank.evaluate(
            f"[...document.body.querySelectorAll('{ACTIVE}')]"
            ".map((one) => [one.localName, one.href, one.rel])"
        )
        for name, url, rel in found:
            assert (name, rel) == ("a", "noopener noreferrer nofollow"), text
            assert url.startswith(("https://evil.example/pixel", "https://a.example")), text
        handlers = blank.evaluate(
            "[...document.body.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
            ".filter((name) => name.startsWith('on') || name === 'style' || name === 'srcdoc')"
        )
        assert handlers == [], text
        assert not set(blank.evaluate("document.body.textContent")) & set("\u202e\u2066"), text
    blank.evaluate("document.body.replaceChildren(), shown('[a](javascript:alert(1)) <b>x</b>')")
    assert blank.text("p") == "a (javascript:alert(1)) <b>x</b>"


def test_markdown_of_large_unclosed_text_renders(blank: Page):
    """Work that grows with the square of the text would take minutes, and time out."""
    for name, text in LARGE.items():
        blank.evaluate(f"window.large = view.renderMarkdown({json.dumps(text)}), 0")
        assert blank.evaluate("large.childNodes.length") >= (name != "lines"), name


def test_markdown_in_pieces_equals_whole(blank: Page):
    generator = random.Random(7)
    texts = [DOCUMENT]
    texts += ["".join(generator.choices(PIECES, k=generator.randint(2, 40))) for _ in range(400)]
    script = """
    (texts, sizes) => texts.filter((text) => {
      const growing = new view.MarkdownView();
      let at = 0;
      for (let turn = 0; at < text.length; turn++) {
        at = Math.min(text.length, at + sizes[turn % sizes.length]);
        growing.update(text.slice(0, at));
      }
      const [one, two] = [growing.element, view.renderMarkdown(text)];
      return plain(one) !== plain(two);
    })"""
    sizes = [generator.randint(1, 9) for _ in range(97)]
    assert blank.evaluate(f"({script})({json.dumps(texts)}, {json.dumps(sizes)})") == []


@pytest.mark.parametrize(
    "piece",
    ["A paragraph of words.\n\n", "- an item of a list\n", "a line of code\n"],
    ids=["paragraphs", "items", "code"],
)
def test_markdown_stream_work_grows_linearly(blank: Page, piece: str):
    """The work for n pieces is a multiple of their length, not of its square."""
    script = """
    (piece, start, count) => {
      const growing = new view.MarkdownView();
      let text = start;
      for (let at = 0; at < count; at++) for (const part of [piece.slice(0, 5), piece.slice(5)])
        growing.update((text += part));
      return growing.work / text.length;
    }"""
    start = "```\n" if "code" in piece else ""
    ratio = blank.evaluate(f"({script})({json.dumps(piece)}, {json.dumps(start)}, 2000)")
    assert ratio < 10
