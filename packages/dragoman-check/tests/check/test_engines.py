"""`check` against Dragoman's own engines: no check fails."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from tests.engines.encoder.directories import SCORER, write_encoder
from tests.engines.llamacpp.files import write_embedded
from tests.engines.vllm.serving import settings as vllm_settings
from tests.engines.vllm.serving import without_accelerator

from dragoman.engines import tiny
from dragoman.settings import Settings
from dragoman_check.check_report import CheckOutcome

from .mutation_score import check_server, find_failures
from .reference import build_reference, serve


@pytest.fixture(scope="module")
def reference() -> Generator[str]:
    proxy, models = build_reference()
    with serve(proxy, models) as url:
        yield url


def start(settings: Settings) -> AbstractContextManager[str]:
    return serve(*build_reference(settings))


QUICK = "^(?!sdk|load).*"
"""All areas except those that import SDKs, which is slow, and those that generate load.
"""


@pytest.mark.parametrize("model", ["sim", "scripted"])
def test_reference_engine_passes_all_checks(reference: str, model: str) -> None:
    report = check_server(reference, QUICK, model=model)
    assert find_failures(report) == ()
    assert report.find_exit_code(strict=True) == 0
    assert report.score == 100


def test_embedded_model_passes_openai_profile_checks(reference: str) -> None:
    """A claimed feature must not be rejected."""
    report = check_server(
        reference,
        "^(chat|responses|state|sdk).*(tool|schema|stream|retrieve)",
        model="tiny",
        profile="openai",
    )
    assert find_failures(report) == ()
    skipped = [
        verdict.reason for verdict in report.verdicts if verdict.outcome is CheckOutcome.SKIPPED
    ]
    assert all(reason.startswith("not claimed") for reason in skipped), skipped
    assert report.counts[CheckOutcome.PASSED] > 90


def test_encoder_passes_all_checks(tmp_path: Path) -> None:
    """The encoder only embeds: the rules of generation do not apply, although the
    server has the routes.
    """
    write_encoder(tmp_path)
    with start(Settings(model=f"encoder:{tmp_path}")) as url:
        report = check_server(url, QUICK, model="")
    assert find_failures(report) == ()
    areas = {
        verdict.check.area for verdict in report.verdicts if verdict.outcome is CheckOutcome.PASSED
    }
    assert areas == {"embeddings", "models", "http", "operations"}
    assert report.counts[CheckOutcome.PASSED] > 60


def test_reranker_passes_all_checks(tmp_path: Path) -> None:
    """It neither generates nor embeds."""
    write_encoder(tmp_path, SCORER)
    with start(Settings(model=f"encoder:{tmp_path}")) as url:
        report = check_server(url, "^(models|chat|embeddings|operations)", model="")
    assert find_failures(report) == ()
    areas = {
        verdict.check.area for verdict in report.verdicts if verdict.outcome is CheckOutcome.PASSED
    }
    assert areas == {"models", "operations"}


@pytest.mark.long
def test_embedded_model_passes_all_checks(reference: str) -> None:
    report = check_server(reference, ".*", model="tiny")
    assert find_failures(report) == ()
    assert report.counts[CheckOutcome.PASSED] > 650


@pytest.mark.long
def test_upstream_engine_passes_all_checks() -> None:
    with ExitStack() as stack:
        upstream_url = stack.enter_context(
            start(Settings(model="tiny", api_profile="vllm", max_model_len=4096))
        )
        url = stack.enter_context(start(Settings(model=f"{upstream_url}/v1", max_model_len=4096)))
        report = check_server(url, QUICK, model="")
    assert find_failures(report) == ()
    assert report.counts[CheckOutcome.PASSED] > 500


@pytest.mark.torch
@pytest.mark.long
def test_transformers_engine_passes_all_checks() -> None:
    pytest.importorskip("torch", reason="needs torch (CPU)")
    pytest.importorskip("transformers", reason="needs transformers")
    settings = Settings().replace(
        device="cpu", model=f"transformers:{tiny.find_bundled_model()}", max_model_len=4096
    )
    with start(settings) as url:
        report = check_server(url, QUICK, model="")
    assert find_failures(report) == ()
    assert report.counts[CheckOutcome.PASSED] > 500


@pytest.mark.llamacpp
@pytest.mark.long
def test_llamacpp_engine_passes_all_checks(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="needs xllamacpp")
    pytest.importorskip("gguf", reason="needs gguf")
    settings = Settings(
        model=str(write_embedded(tmp_path / "tiny.gguf")),
        threads=1,
        dtype="float32",
        max_model_len=4096,
    )
    with start(settings) as url:
        report = check_server(url, QUICK, model="")
    assert find_failures(report) == ()
    assert report.counts[CheckOutcome.PASSED] > 500


@pytest.mark.mlx
@pytest.mark.long
def test_mlx_engine_passes_all_checks() -> None:
    pytest.importorskip("mlx_lm", reason="needs mlx-lm")
    with start(Settings(model=f"mlx:{tiny.find_bundled_model()}", max_model_len=4096)) as url:
        report = check_server(url, QUICK, model="")
    assert find_failures(report) == ()
    assert report.counts[CheckOutcome.PASSED] > 500


@pytest.mark.vllm
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_vllm_engine_passes_all_checks() -> None:
    with without_accelerator(), start(vllm_settings()) as url:
        report = check_server(url, QUICK, model="")
    assert find_failures(report) == ()
    assert report.counts[CheckOutcome.PASSED] > 500
