"""Take the screenshots of docs/ui.md: `python -m tests.clients.screenshots`. Needs
Chromium.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from .client_process import serving
from .devtools import Page, browsing
from .test_ui import BOTH_ANSWERED, TOOLS, ask, open_view, set_up

ANSWER = """Use `sorted` for a new list, and `list.sort` to sort **in place**:

```python
names = ["Ada", "Grace", "Alan"]
print(sorted(names))
names.sort(key=len, reverse=True)
```

| Function | Returns | Sorts in place |
|:---------|:--------|:--------------:|
| `sorted(x)` | a new list | no |
| `x.sort()` | `None` | yes |

- Both take *O(n log n)* comparisons, and fewer if parts are in order.
- Both are stable: see [Sorting techniques](https://docs.python.org/3/howto/sorting.html).
"""
FOLDER = Path(__file__).parents[2] / "docs" / "images"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        browsing(Path(name)) as page,
    ):
        with _serve(Path(name) / "scripted", "scripted --directives") as address:
            _draw_markdown(page, address)
        with _serve(Path(name) / "tiny", "tiny --seed 1") as address:
            _draw_chat(page, address)
        with _serve(
            Path(name) / "sim", "sim --data-parallel-size 2 --sim-output-tokens 300"
        ) as address:
            _draw_load(page, address)


@contextmanager
def _serve(folder: Path, arguments: str) -> Generator[str]:
    folder.mkdir()
    with serving(f"{arguments} --store memory", folder) as address:
        yield address


def _save(page: Page, name: str) -> None:
    page.evaluate("document.activeElement?.blur()")
    (FOLDER / f"ui-{name}.png").write_bytes(page.screenshot())


def _draw_chat(page: Page, address: str) -> None:
    page.resize(1280, 800)
    set_up(page, address, temperature="0", tools=TOOLS)
    ask(page, "What is the weather in Rome?")
    page.fill("form.group .code", '{"temperature": 24}')
    page.click("button", "Send result")
    page.wait("document.querySelectorAll('.turn > .meta').length === 2")
    _save(page, "chat")
    page.click("button", "New conversation")
    set_up(page, address, temperature="0", effort="high", system="Answer briefly.")
    ask(page, "What is 123 * 45?")
    page.click("button", "Regenerate")
    page.wait("document.body.innerText.includes('2/2') && document.querySelector('.turn > .meta')")
    page.click("button", "Tokens")
    page.wait("document.querySelectorAll('.tokens').length === 2")
    levels = "[5, 4, 3, 2, 1, 0].map((level) => document.querySelector(`.tokens .p${level}`))"
    page.evaluate(f"{levels}.find(Boolean).click()")
    _save(page, "tokens")
    set_up(page, address, temperature="0")
    page.click("[role=tab]", "Wire")
    page.click("button", "Send to both")
    page.wait(BOTH_ANSWERED)
    page.evaluate("document.querySelector('.columns').scrollIntoView()")
    _save(page, "wire")


def _draw_markdown(page: Page, address: str) -> None:
    page.resize(1280, 800)
    set_up(page, address)
    # The reply is scripted, and the message shown is another.
    page.evaluate(
        "(() => { const real = fetch; window.fetch = (url, options) => real(url, options.body ?"
        " {...options, body: JSON.stringify({...JSON.parse(options.body), messages: [{role:"
        f" 'user', content: {json.dumps(f'[[say {json.dumps(ANSWER)}]]')}}}]}})}} : options); }})()"
    )
    ask(page, "How do I sort a list in Python, and how fast is it?")
    page.evaluate("document.querySelector('.log').scrollTop = 0")
    _save(page, "markdown")
    page.choose("[aria-label='Second model']", "scripted")
    page.click("button", "Regenerate")
    page.wait("document.querySelectorAll('.compare .meta').length === 2")
    page.resize(1280, 800, dark=True)
    page.evaluate("document.querySelector('.log').scrollTop = 0")
    _save(page, "compare")
    page.resize(390, 844, dark=True, mobile=True)
    page.choose("[aria-label='Second model']", "")
    page.click("[aria-label='Previous branch']")
    page.evaluate("document.querySelector('.log').scrollTop = 0")
    _save(page, "phone")


def _draw_load(page: Page, address: str) -> None:
    page.resize(1200, 900, dark=True)
    stop = threading.Event()
    senders = [threading.Thread(target=_send, args=(address, number, stop)) for number in range(24)]
    for sender in senders:
        sender.start()
    try:
        open_view(page, address, "server")
        page.wait(
            "document.querySelectorAll('polyline')[0]?.getAttribute('points').split(' ').length > "
            "40"
        )
        _save(page, "server")
        page.click("[role=tab]", "Simulator")
        page.wait(
            "document.querySelectorAll('polyline')[0]?.getAttribute('points').split(' ').length > "
            "100"
        )
        _save(page, "simulator")
    finally:
        stop.set()
        for sender in senders:
            sender.join()


def _send(address: str, number: int, stop: threading.Event) -> None:
    with httpx2.Client(base_url=address, trust_env=False, timeout=60) as client:
        turn = 0
        while not stop.is_set():
            turn += 1
            prompt = f"Question {number} of turn {turn}: " + "tell me more about it. " * (
                number * 7 + turn % 5
            )
            client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 40 + number * 9})


if __name__ == "__main__":
    main()
