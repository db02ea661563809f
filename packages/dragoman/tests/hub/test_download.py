"""Six layouts of repositories are downloaded, interrupted by SIGKILL, resumed, and used
again without a request.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path

import huggingface_hub
import pytest
from tests.hub.processes import find_partial_files, kill_during_download, start
from tests.hub.shapes import ENCODER, GGUF, LORA, MODELS, SHARDED, SINGLE, SPLIT
from tests.hub.stub import TOKEN, HubStub, compute_blob_id

from dragoman.hub import (
    DownloadCancelled,
    DownloadEvent,
    DownloadPlan,
    HubError,
    ModelReference,
    download,
    find_cached_repository,
    format_bytes,
    list_local_models,
    open_repository,
    parse_reference,
    remove_local_model,
)
from dragoman.launch.hub_models import (
    PreparedModel,
    download_prepared,
    prepare_model,
    prepare_pull,
)
from dragoman.launch.hub_reference import find_reference
from dragoman.pipeline.model_lifecycle import LoadProgress
from dragoman.settings import Settings


@pytest.fixture(autouse=True)
def only_llamacpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an installation with llama.cpp and no other optional engine."""

    def find_spec(name: str) -> ModuleSpec | None:
        if name == "xllamacpp":
            return ModuleSpec(name, None)
        return (
            None
            if name in ("torch", "transformers", "mlx_lm", "vllm")
            else importlib.util.find_spec(name)
        )

    monkeypatch.setattr("dragoman.launch.architecture_check.find_spec", find_spec)
    monkeypatch.setattr("dragoman.launch.engine_choice.find_spec", find_spec)


def prepare(model: str) -> PreparedModel:
    found = find_reference(model)
    assert found is not None
    return prepare_model(Settings(model=model), *found)


def fetch(plan: DownloadPlan) -> list[DownloadEvent]:
    events: list[DownloadEvent] = []
    download(plan, events.append, retry_seconds=0)
    return events


def names(plan: DownloadPlan) -> set[str]:
    return {file.path for file in plan.files}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.usefixtures("cache")
def test_downloaded_model_is_found_in_cache_without_requests(hub: HubStub, model: str):
    first = prepare(model)
    assert hub.count("GET /api/models") == 1
    events = fetch(first.plan)
    assert (events[-1].status, events[-1].all_completed) == ("success", first.plan.size)
    files = hub.repositories[first.plan.repository].files
    assert {path: (first.plan.directory / path).read_bytes() for path in names(first.plan)} == {
        path: files[path] for path in names(first.plan)
    }
    hub.requests.clear()
    second = prepare(model)
    fetch(second.plan)
    assert second.settings == first.settings
    assert hub.requests == []
    assert second.plan.commit == hub.repositories[first.plan.repository].commit


@pytest.mark.parametrize(
    ("model", "engine", "expected"),
    [
        (SINGLE, "tiny", {"config.json", "tokenizer.json", "model.safetensors"}),
        (
            SHARDED,
            "tiny",
            {f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
            | {"model.safetensors.index.json"},
        ),
        (ENCODER, "encoder", {"modules.json", "1_Pooling/config.json", "model.safetensors"}),
        (GGUF, "llamacpp", {"small-Q4_K_M.gguf"}),
        (f"{GGUF}:q8_0", "llamacpp", {"small-Q8_0.gguf"}),
        (f"gguf:{GGUF}:F16", "llamacpp", {"small-F16.gguf"}),
        (SPLIT, "llamacpp", {"split-Q4_K_M.gguf", "mmproj-split-F16.gguf"}),
        (
            f"{SPLIT}:Q8_0",
            "llamacpp",
            {f"Q8_0/split-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)}
            | {"mmproj-split-F16.gguf"},
        ),
    ],
)
@pytest.mark.usefixtures("cache")
def test_prepare_selects_engine_and_files_before_download(
    hub: HubStub, model: str, engine: str, expected: set[str]
):
    prepared = prepare(model)
    assert prepared.choice.engine == engine
    assert names(prepared.plan) >= expected
    assert engine != "llamacpp" or names(prepared.plan) == expected
    assert not any(name.endswith((".bin", ".py", ".md")) for name in names(prepared.plan))
    assert hub.count("GET /cdn/") == 0


def plan_adapter() -> DownloadPlan:
    found = find_reference(LORA)
    assert found is not None
    return prepare_pull(Settings(), *found).plan


@pytest.mark.usefixtures("cache")
def test_adapter_download_fetches_config_and_weights(hub: HubStub):
    plan = plan_adapter()
    fetch(plan)
    assert names(plan) == {"adapter_config.json", "adapter_model.safetensors"}
    assert plan.find_missing() == ()


# The kinds of safetensors repositories are downloaded by servers, in test_shapes.py.
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if model.startswith((GGUF, SPLIT)) else pytest.mark.long)
        for model in (*MODELS, LORA)
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL of POSIX")
def test_killed_download_is_resumed(hub: HubStub, cache: Path, model: str):
    partial = kill_during_download(hub, cache.parent, "pull", model)
    assert partial
    with start(hub, cache.parent, "pull", model) as process:
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    ranges = [
        requested for _, path, requested in hub.requests if path.startswith("/cdn/") and requested
    ]
    assert sorted(ranges) == sorted(f"bytes={size}-" for size in partial.values())
    plan = plan_adapter() if model == LORA else prepare(model).plan
    assert plan.commit in printed
    files = hub.repositories[plan.repository].files
    assert all((plan.directory / path).read_bytes() == files[path] for path in names(plan))
    assert plan.find_missing() == ()
    assert not find_partial_files(cache)


@pytest.mark.usefixtures("cache")
def test_download_resumes_after_connection_loss(hub: HubStub):
    hub.cuts = [7_000]
    plan = prepare(SINGLE).plan
    assert fetch(plan)[-1].status == "success"
    assert any(requested for _, path, requested in hub.requests if path.startswith("/cdn/"))


@pytest.mark.parametrize("cuts", [[7_000], [7_000, 0], [7_000, 5_000, 9_000]])
def test_download_without_range_support_restarts_file(hub: HubStub, cache: Path, cuts: list[int]):
    hub.cuts = cuts
    hub.ignores_ranges = True
    plan = prepare(GGUF).plan
    fetch(plan)
    assert plan.target.read_bytes() == hub.repositories[GGUF].files["small-Q4_K_M.gguf"]


@pytest.mark.parametrize(("ignores_ranges", "max_sent"), [(True, 3_000), (False, 0)])
def test_download_fails_after_attempts_without_progress(
    hub: HubStub, cache: Path, ignores_ranges: bool, max_sent: int
):
    hub.cuts = [7_000]
    hub.ignores_ranges = ignores_ranges
    plan = prepare(GGUF).plan
    hub.max_sent = max_sent
    with pytest.raises(
        HubError, match=r"small-Q4_K_M\.gguf .* run the command again to continue the download"
    ):
        fetch(plan)
    assert hub.count("GET /cdn") < 10


def test_download_empty_responses_do_not_delay_cancellation(hub: HubStub, cache: Path):
    plan = prepare(GGUF).plan
    cancelled = threading.Event()
    hub.max_sent = 0

    def cancel(event: DownloadEvent) -> None:
        if event.file is not None:
            cancelled.set()

    with pytest.raises(DownloadCancelled):
        download(plan, cancel, cancelled)
    assert hub.count("GET /cdn") == 0


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999 B"), (999_960, "1.0 MB"), (4_200_000_000, "4.2 GB")]
)
def test_format_bytes_rounds_to_next_unit(count: int, text: str):
    assert format_bytes(count) == text


def test_download_damaged_file_is_removed_and_reported(hub: HubStub, cache: Path):
    hub.repositories[SINGLE].damaged = frozenset({"model.safetensors"})
    plan = prepare(SINGLE).plan
    with pytest.raises(
        HubError, match=r"model\.safetensors of org/single arrived damaged .* run the command again"
    ):
        fetch(plan)
    assert not (plan.directory / "model.safetensors").exists()
    assert find_cached_repository(ModelReference(SINGLE)) is None
    hub.repositories[SINGLE].damaged = frozenset()
    assert fetch(prepare(SINGLE).plan)[-1].status == "success"


@pytest.mark.usefixtures("cache")
def test_download_on_full_disk_fails_before_start(
    hub: HubStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan = prepare(GGUF).plan
    usage = shutil.disk_usage(tmp_path)._replace(free=100)

    def disk_usage(_: Path) -> object:
        return usage

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    with pytest.raises(
        HubError,
        match=r"needs 300\.0 kB more and .* has 100 B free; free space, or set HF_HUB_CACHE",
    ):
        fetch(plan)
    assert hub.count("GET /cdn/") == 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "org/absent",
            "org/absent does not exist at .*, or is private; check the spelling, or set HF_TOKEN",
        ),
        (f"{SINGLE}@v9", "org/single has no such revision; see "),
        (f"{GGUF}:Q2_K", "has no quantization Q2_K; choose one of F16, Q4_K_M, Q8_0"),
        (
            f"{SINGLE}:Q8_0",
            "has no quantization|has no GGUF file to select Q8_0 from; serve it as `org/single`",
        ),
        (
            LORA,
            "org/lora is a LoRA adapter; serve its base model with `--lora-modules NAME=org/lora`",
        ),
    ],
)
@pytest.mark.usefixtures("cache")
def test_prepare_invalid_model_raises_one_line_error(hub: HubStub, model: str, message: str):
    with pytest.raises(HubError, match=message) as raised:
        prepare(model)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("cache")
def test_gated_model_requires_token(hub: HubStub, monkeypatch: pytest.MonkeyPatch):
    hub.repositories[SINGLE].is_gated = True
    for token in (None, "hf_of_somebody_else"):
        if token is not None:
            monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(
            HubError,
            match=r"org/single is gated: accept its terms at .*/org/single and set HF_TOKEN",
        ):
            prepare(SINGLE)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert fetch(prepare(SINGLE).plan)[-1].status == "success"
    assert hub.leaked_tokens == []


@pytest.mark.usefixtures("cache")
def test_repository_with_only_pickle_weights_is_rejected(hub: HubStub):
    files = hub.repositories[SINGLE].files
    del files["model.safetensors"]
    with pytest.raises(HubError, match="has its weights in pickle files only"):
        prepare(SINGLE)


@pytest.mark.usefixtures("cache")
def test_complete_model_is_prepared_when_hub_is_unreachable(
    hub: HubStub, monkeypatch: pytest.MonkeyPatch
):
    fetch(prepare(SINGLE).plan)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert prepare(SINGLE).plan.find_missing() == ()
    with pytest.raises(
        HubError, match=r"http://127\.0\.0\.1:9 cannot be reached; check the network"
    ):
        prepare(SHARDED)


@pytest.mark.usefixtures("cache")
def test_model_reference_pins_revision(hub: HubStub):
    old = hub.repositories[GGUF].commit
    fetch(prepare(f"{GGUF}@{old}").plan)
    hub.requests.clear()
    assert prepare(f"{GGUF}@{old}").plan.commit == old
    assert hub.requests == []
    with pytest.raises(
        HubError, match="names the revision v1, but --revision is v2; remove one of them"
    ):
        parse_reference(f"{GGUF}@v1", "v2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen3-0.6B", ModelReference("Qwen/Qwen3-0.6B")),
        (
            "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M",
            ModelReference("ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M"),
        ),
        ("org/name:Q8_0@v1.0", ModelReference("org/name", "Q8_0", "v1.0")),
        ("org/name@refs/pr/3", ModelReference("org/name", None, "refs/pr/3")),
        ("hf:gpt2", ModelReference("gpt2")),
        ("vllm:org/name@abc", ModelReference("org/name", None, "abc")),
        ("hf.co/org/name:Q8_0", ModelReference("org/name", "Q8_0")),
        ("https://huggingface.co/org/name/", ModelReference("org/name")),
    ],
)
def test_find_reference_parses_model_references(text: str, expected: ModelReference):
    found = find_reference(text)
    assert found is not None
    assert found[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        "tiny",
        "./org/name",
        "/org/name",
        "org/name/more",
        "model.gguf",
        "dir/model.gguf",
        "sim:rtx4090",
        "http://a/v1",
    ],
)
def test_find_reference_other_models_returns_none(text: str):
    assert find_reference(text) is None


@pytest.mark.usefixtures("cache")
def test_repository_paths_outside_directory_are_ignored(hub: HubStub):
    hub.repositories[SINGLE].files["../../escape.json"] = b"{}"
    assert not any(".." in file.path for file in open_repository(ModelReference(SINGLE)).files)


@pytest.mark.usefixtures("cache")
def test_remove_local_model_single_revision_is_rejected(hub: HubStub):
    fetch(prepare(GGUF).plan)
    with pytest.raises(HubError, match=r"all revisions .* `dragoman rm org/small-GGUF`"):
        remove_local_model(parse_reference(f"{GGUF}@{hub.repositories[GGUF].commit}"))
    assert remove_local_model(parse_reference(GGUF)) > 0


def test_list_local_models_names_subfolder_file_by_reference(hub: HubStub, cache: Path):
    hub.repositories[GGUF].files["sub/model.gguf"] = b"GGUF"
    fetch(prepare(f"{GGUF}:model").plan)
    [model] = list_local_models(cache)
    assert model.name == f"{GGUF}:model"


@pytest.mark.parametrize("model", [SHARDED, f"{SPLIT}:Q8_0"])
def test_list_local_models_omits_incomplete_model(hub: HubStub, cache: Path, model: str):
    plan = prepare(model).plan
    fetch(plan)
    assert [found.name for found in list_local_models(cache)] == [model]
    next(plan.directory.rglob("*-00002-of-*")).unlink()
    assert list_local_models(cache) == []


@pytest.mark.parametrize("branch", ["v1.0", "feature/x", "refs/pr/3"])
def test_second_branch_of_commit_starts_offline(
    hub: HubStub, cache: Path, monkeypatch: pytest.MonkeyPatch, branch: str
):
    hub.repositories[SINGLE].branches = frozenset({branch})
    fetch(prepare(SINGLE).plan)
    prepared = prepare(f"{SINGLE}@{branch}")
    download_prepared(prepared, LoadProgress())
    hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert prepare(f"{SINGLE}@{branch}").plan.commit == prepared.plan.commit
    assert hub.requests == []


@pytest.mark.usefixtures("cache")
def test_offline_cache_without_branch_names_commit(hub: HubStub, monkeypatch: pytest.MonkeyPatch):
    commit = hub.repositories[SINGLE].commit
    fetch(prepare(f"{SINGLE}@{commit}").plan)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match=f"name the commit, as in `{SINGLE}@{commit}`"):
        prepare(SINGLE)
    assert prepare(f"{SINGLE}@{commit}").plan.commit == commit
    with pytest.raises(HubError, match="org/sharded is not completely downloaded, and HF_HUB_OFF"):
        prepare(SHARDED)


@pytest.mark.usefixtures("cache")
def test_downloaded_files_are_found_by_huggingface_hub(hub: HubStub):
    plan = prepare(SINGLE).plan
    fetch(plan)
    for file in plan.files:
        found = huggingface_hub.try_to_load_from_cache(SINGLE, file.path)
        assert found == str(plan.directory / file.path)
    [cached] = huggingface_hub.scan_cache_dir(huggingface_hub.constants.HF_HUB_CACHE).repos
    assert {name for revision in cached.revisions for name in revision.refs} == {"main"}
    # A file of git, and one outside of it: the names of blobs are the hub's ETags.
    names = {
        path: (plan.directory / path).resolve().name for path in hub.repositories[SINGLE].files
    }
    content = hub.repositories[SINGLE].files
    assert names["config.json"] == compute_blob_id(content["config.json"])
    weights = hashlib.sha256(content["model.safetensors"]).hexdigest()
    assert names["model.safetensors"] == weights


def test_download_replaces_blob_with_other_content(hub: HubStub, cache: Path):
    plan = prepare(SINGLE).plan
    [weights] = (file for file in plan.files if file.path == "model.safetensors")
    blob = cache / "models--org--single/blobs" / weights.checksum
    blob.write_bytes(bytes(weights.size))
    fetch(plan)
    content = hub.repositories[SINGLE].files["model.safetensors"]
    assert (plan.directory / "model.safetensors").read_bytes() == content


@pytest.mark.usefixtures("cache")
def test_download_without_symlinks_copies_files(hub: HubStub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_SYMLINKS", True)
    plan = prepare(SINGLE).plan
    fetch(plan)
    assert not any(path.is_symlink() for path in plan.directory.iterdir())
    content = hub.repositories[SINGLE].files["config.json"]
    assert (plan.directory / "config.json").read_bytes() == content
