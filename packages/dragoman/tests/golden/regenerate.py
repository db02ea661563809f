"""Show how the golden files differ from the current output, and update them: `python -m
tests.golden.regenerate`.
"""

from __future__ import annotations

from difflib import unified_diff

from .renderings import CASES, GOLDEN


def main() -> None:
    wanted = {path: data for golden in GOLDEN for path, data in golden.files()}
    for path, data in wanted.items():
        before = path.read_bytes() if path.exists() else b""
        if before != data:
            _show(path.name, before, data)
            path.write_bytes(data)
    for path in set(CASES.glob("*")) - set(wanted):
        if not path.name.endswith(".events.jsonl"):
            print(f"removed {path.name}")
            path.unlink()


def _show(name: str, before: bytes, after: bytes) -> None:
    old, new = (data.decode().split("\n") for data in (before, after))
    print("\n".join(unified_diff(old, new, f"{name} (before)", name, lineterm="", n=1)))


if __name__ == "__main__":
    main()
