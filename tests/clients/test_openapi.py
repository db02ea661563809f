"""The OpenAPI document in other tools: a validator, a property-based tester, and a
client generator.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import pytest

from .client_process import needs, run, serving

pytestmark = pytest.mark.clients

GENERATOR = Path(sys.prefix) / "openapi/bin/openapi-python-client"
"""Installed by `make test-clients`."""
SWITCHES = "sleep|pause|release|abort|^/update|/start_weight|/shutdown"
"""Routes that change the server so that other requests fail."""
PROGRAM = """
import sys
sys.path.insert(0, "generated")
from dragoman_client import Client
from dragoman_client.api.chat_completions import post_v1_chat_completions
from dragoman_client.api.models import get_v1_models
from dragoman_client.models import ChatRequest

client = Client(base_url=sys.argv[1])
print(get_v1_models.sync(client=client).data[0].id)
message = {"role": "user", "content": "What is the capital of Japan?"}
body = ChatRequest.from_dict({"messages": [message], "temperature": 0})
print(post_v1_chat_completions.sync(client=client, body=body).choices[0].message.content)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving("tiny", tmp_path_factory.mktemp("described")) as where:
        yield where


@pytest.fixture
def document(address: str, tmp_path: Path) -> Path:
    file = tmp_path / "openapi.json"
    file.write_bytes(httpx2.get(f"{address}/openapi.json", timeout=60).raise_for_status().content)
    return file


@needs("openapi_spec_validator")
def test_openapi_document_passes_validator(document: Path) -> None:
    validate: Any = import_module("openapi_spec_validator").validate
    validate(json.loads(document.read_text()))


@needs("schemathesis")
@pytest.mark.parametrize("examples", [3, pytest.param(10, marks=pytest.mark.long)])
def test_openapi_fuzzed_requests_match_described_responses(
    address: str, tmp_path: Path, examples: int
) -> None:
    checks = (
        "not_a_server_error,status_code_conformance,"
        "content_type_conformance,response_schema_conformance"
    )
    arguments = [
        "run",
        f"{address}/openapi.json",
        "--checks",
        f"{checks},response_headers_conformance",
    ]
    arguments += ["--mode", "all", "--phases", "examples,fuzzing", "-n", str(examples)]
    arguments += ["--seed", "1", "--exclude-path-regex", SWITCHES]
    program = "from schemathesis.cli import schemathesis; schemathesis()"
    run(tmp_path, sys.executable, "-c", program, *arguments)


@pytest.mark.skipif(
    not GENERATOR.exists(), reason="needs openapi-python-client in an environment of its own"
)
def test_openapi_generated_client_gets_answer(address: str, document: Path, tmp_path: Path) -> None:
    output = run(
        tmp_path, str(GENERATOR), "generate", "--path", str(document), "--output-path", "generated"
    )
    # It does not support JSON lines.
    assert output.count("WARNING parsing") == output.count(
        "Unsupported content_type application/x-jsonl"
    ), output
    (tmp_path / "client.py").write_text(PROGRAM)
    assert run(tmp_path, str(GENERATOR.with_name("python")), "client.py", address).splitlines() == [
        "tiny",
        "The capital of Japan is Tokyo.",
    ]
