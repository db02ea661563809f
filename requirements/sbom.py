"""Writes a lock as a CycloneDX 1.6 SBOM in JSON to stdout: `python requirements/sbom.py
requirements/serve.lock`.

It needs nothing but Python, and the same lock gives the same bytes: there is no
timestamp, and the serial number is derived from the contents.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PACKAGE = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?==(?P<version>[^ ;]+)( ; (?P<marker>.*?))? *\\?$", re.M
)


def version() -> str:
    file = ROOT / "packages/dragoman/src/dragoman/_version.py"
    found = re.search(r'^VERSION = "([^"]+)"', file.read_text(), re.M)
    if found is None:
        raise SystemExit(f"{file} names no version")
    return found[1]


def own_packages() -> list[dict[str, object]]:
    """The packages of this repository beside the server, which have its version."""
    names = sorted(file.parent.name for file in ROOT.glob("packages/*/pyproject.toml"))
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{version()}",
            "name": name,
            "version": version(),
            "purl": f"pkg:pypi/{name}@{version()}",
            "licenses": [{"license": {"id": "Apache-2.0"}}],
        }
        for name in names
        if name != "dragoman"
    ]


def components(lock: str) -> list[dict[str, object]]:
    """One a pinned package; a package may have several versions, for different
    machines.
    """
    found: list[dict[str, object]] = []
    for entry in re.split(r"\n(?=\S)", lock.strip()):
        match = _PACKAGE.match(entry)
        if match is None:
            raise SystemExit(f"no exact version: {entry.splitlines()[0]}")
        name = re.sub(r"[-_.]+", "-", match["name"]).lower()
        purl = f"pkg:pypi/{name}@{match['version']}"
        component: dict[str, object] = {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": match["version"],
            "purl": purl,
            "scope": "required" if match["marker"] is None else "optional",
            # Of each file that pip accepts: wheels for several machines, and the
            # source.
            "hashes": [
                {"alg": "SHA-256", "content": digest}
                for digest in re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
            ],
        }
        if match["marker"] is not None:
            component["properties"] = [{"name": "dragoman:marker", "value": match["marker"]}]
        found.append(component)
    return found


def sbom(lock: str) -> dict[str, object]:
    """All pinned packages. The locks do not say which of them needs which: there is no
    graph of dependencies.
    """
    own = f"pkg:pypi/dragoman@{version()}"
    digest = hashlib.sha256(f"{own}\n{lock}".encode()).hexdigest()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "dragoman",
                "version": version(),
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "components": own_packages(),
            }
        },
        "components": components(lock),
    }


if __name__ == "__main__":
    json.dump(sbom(Path(sys.argv[1]).read_text()), sys.stdout, indent=1)
    sys.stdout.write("\n")
