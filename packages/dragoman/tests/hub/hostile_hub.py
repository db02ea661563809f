"""A hub of a stranger on loopback: each of its repositories misbehaves in one way."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.hub.stub import compute_blob_id

COMMIT = "a" * 40
SENT_BYTES = 200 << 20
"""End of an endless answer, if the client reads it all."""
CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "vocab_size": 300,
}
WEIGHTS = b"\2" + bytes(7) + b"{}"
MODEL = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
}
PICKLE = b"\x80\x04cos\nsystem\n"
Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Answer:
    """An answer of the hub. is_endless: it repeats zeros after the body."""

    body: bytes = b""
    status: int = 200
    headers: Headers = ()
    is_endless: bool = False


@dataclass(frozen=True)
class Misbehaviour:
    """A repository that misbehaves.

    error: pattern of the error's sentence; empty if the model is downloaded all the
        same.
    files: in addition to `MODEL`, or instead of its files.
    absent: files of `MODEL` that it lacks.
    edit: changes the description with the list of files.
    listing: the answer in place of that description.
    answers: answers in place of files.
    headers: of all files.
    """

    error: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    absent: tuple[str, ...] = ()
    edit: Callable[[dict[str, Any]], None] | None = None
    listing: Answer | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict[str, Answer])
    headers: Headers = ()

    @property
    def content(self) -> dict[str, bytes]:
        return {
            path: data for path, data in {**MODEL, **self.files}.items() if path not in self.absent
        }

    def describe(self, name: str) -> Answer:
        if self.listing is not None:
            return self.listing
        description: dict[str, Any] = {
            "id": name,
            "sha": COMMIT,
            "siblings": [_describe_file(path, data) for path, data in self.content.items()],
        }
        if self.edit is not None:
            self.edit(description)
        return Answer(json.dumps(description).encode())


def _describe_file(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "rfilename": path,
        "size": len(data),
        "blobId": compute_blob_id(data),
    }
    if path.endswith((".safetensors", ".bin", ".gguf")):
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    return entry


def list_file(path: str) -> Misbehaviour:
    """Build a repository whose list has one more file."""
    return Misbehaviour(files={path: b"{}"})


def describe_weights(key: str, value: object, error: str) -> Misbehaviour:
    """Build a repository that describes its weights wrongly."""

    def edit(description: dict[str, Any]) -> None:
        description["siblings"][-1]["lfs"][key] = value

    return Misbehaviour(error, edit=edit)


def describe_config(key: str, value: object, error: str) -> Misbehaviour:
    """Build a repository that describes its config.json wrongly."""

    def edit(description: dict[str, Any]) -> None:
        description["siblings"][0][key] = value

    return Misbehaviour(error, edit=edit)


def describe_repository(key: str, value: object, error: str) -> Misbehaviour:
    """Build a repository that describes itself wrongly."""

    def edit(description: dict[str, Any]) -> None:
        description[key] = value

    return Misbehaviour(error, edit=edit)


def answer_weights(answer: Answer, error: str) -> Misbehaviour:
    return Misbehaviour(error, answers={"model.safetensors": answer})


def answer_config(answer: Answer, error: str) -> Misbehaviour:
    return Misbehaviour(error, answers={"config.json": answer})


def redirect(location: str, error: str) -> Misbehaviour:
    return answer_weights(Answer(status=302, headers=(("location", location),)), error)


def configure(**fields: object) -> dict[str, bytes]:
    return {"config.json": json.dumps({**CONFIG, **fields}).encode()}


def index(*paths: str) -> dict[str, bytes]:
    weight_map = {str(number): path for number, path in enumerate(paths)}
    return {"model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}


def repeat_listing(description: dict[str, Any]) -> None:
    description["siblings"] *= 5


def drop_checksum(description: dict[str, Any]) -> None:
    del description["siblings"][0]["blobId"]


NO_HUB = r"does not list evil/\w+ as a Hugging Face hub does"
LONGER = "is longer than the [0-9]+ bytes that the hub lists"
CODING = "content coding that was not requested"
DAMAGED = "arrived damaged"
UNREACHABLE = "cannot be reached"
LOOP = "redirects requests for evil/[a-z_]+ to addresses that cannot be followed"
ENDLESS = Answer(is_endless=True)
BOMB = gzip.compress(bytes(16 << 20))

MISBEHAVIOURS: dict[str, Misbehaviour] = {
    "path_parent": list_file("../../../../escape.json"),
    "path_inner_parent": list_file("a/../../../escape.json"),
    "path_absolute": list_file("/tmp/dragoman_escape.json"),
    "path_backslash": list_file("..\\..\\escape.json"),
    "path_drive": list_file("C:escape.json"),
    "path_empty_part": list_file("1_Pooling//config.json"),
    "path_dot": list_file("./escape.json"),
    "path_nul": list_file("a\0b.json"),
    "path_newline": list_file("a\nb.json"),
    "path_escape_sequence": list_file("\x1b[31mred.json"),
    "path_right_to_left": list_file("a\u202enosj.json"),
    "path_long": list_file("a" * 5000 + ".json"),
    "path_deep": list_file("a/" * 3000 + "config.json"),
    "path_surrogate": Misbehaviour(
        NO_HUB,
        listing=Answer(b'{"sha": "%s", "siblings": [{"rfilename": "\\ud800"}]}' % (b"a" * 40)),
    ),
    "path_file_and_directory": Misbehaviour(
        "the cache of .* cannot be used",
        files={"config.json/a.safetensors": WEIGHTS, **index("config.json/a.safetensors")},
    ),
    "path_twice": Misbehaviour(edit=repeat_listing),
    "path_many": Misbehaviour(
        "has 2[0-9]{3} configuration files", files={f"{n}.json": b"" for n in range(2000)}
    ),
    "commit_parent": describe_repository("sha", "../../../../escape", NO_HUB),
    "commit_long": describe_repository("sha", "b" * 64, NO_HUB),
    "commit_newline": describe_repository("sha", "b" * 40 + "\n", NO_HUB),
    "commit_null": describe_repository("sha", None, NO_HUB),
    "sha256_parent": describe_weights("sha256", "../../../../escape", NO_HUB),
    "sha256_uppercase": describe_weights("sha256", "A" * 64, NO_HUB),
    "sha256_other": describe_weights("sha256", "0" * 64, DAMAGED),
    "blob_id_parent": describe_config("blobId", "../../../../escape", NO_HUB),
    "blob_id_other": describe_config("blobId", "0" * 40, DAMAGED),
    "blob_id_absent": Misbehaviour("config.json without a checksum", edit=drop_checksum),
    "size_negative": describe_weights("size", -5, NO_HUB),
    "size_float": describe_weights("size", 1e300, NO_HUB),
    "size_null": describe_weights("size", None, NO_HUB),
    "size_huge": describe_weights("size", 10**15, "needs 1000.0 TB more"),
    "size_of_many_digits": describe_weights("size", 10**400, NO_HUB),
    "size_smaller": describe_weights("size", 3, LONGER),
    "size_larger": describe_weights("size", 5000, "is sent incompletely"),
    "size_of_config": describe_config("size", 100 << 20, "config.json of .* has more than 64 MiB"),
    "etag_absolute": Misbehaviour(headers=(("etag", '"/tmp/dragoman_escape"'),)),
    "etag_parent": Misbehaviour(headers=(("etag", '"../../../../escape"'),)),
    "etag_empty": Misbehaviour(headers=(("etag", '""'),)),
    "etag_linked": Misbehaviour(headers=(("x-linked-etag", '"../../../../escape"'),)),
    "commit_header": Misbehaviour(headers=(("x-repo-commit", "../../../../escape"),)),
    "xet_header": Misbehaviour(headers=(("x-xet-hash", "../../../../escape"),)),
    "header_long": answer_weights(Answer(headers=(("x", "a" * 200_000),)), UNREACHABLE),
    "header_length": answer_weights(Answer(headers=(("content-length", "-1"),)), UNREACHABLE),
    "weights_endless": answer_weights(ENDLESS, LONGER),
    "config_endless": answer_config(ENDLESS, LONGER),
    "weights_longer": answer_weights(Answer(WEIGHTS + b"x"), LONGER),
    "weights_other": answer_weights(Answer(bytes(10)), DAMAGED),
    "weights_absent": answer_weights(
        Answer(status=404, headers=(("x-error-code", "EntryNotFound"),)), "lacks a listed file"
    ),
    "weights_unavailable": answer_weights(Answer(status=503), "returned status 503"),
    "weights_unchanged": answer_weights(Answer(status=304), "returned status 304"),
    "coding_gzip": answer_weights(Answer(BOMB, headers=(("content-encoding", "gzip"),)), CODING),
    "coding_of_config": answer_config(Answer(BOMB, headers=(("content-encoding", "br"),)), CODING),
    "coding_of_list": Misbehaviour(
        CODING, listing=Answer(BOMB, headers=(("content-encoding", "gzip"),))
    ),
    "redirect_loop": redirect("/evil/redirect_loop/resolve/x/model.safetensors", LOOP),
    "redirect_file": redirect("file:///etc/passwd", LOOP),
    "redirect_data": redirect("data:,evil", LOOP),
    "redirect_invalid": redirect("http://[", LOOP),
    "redirect_nowhere": answer_weights(Answer(status=302), "returned status 302"),
    "redirect_other_host": redirect("{other}/stolen", DAMAGED),
    "list_html": Misbehaviour(NO_HUB, listing=Answer(b"<html>")),
    "list_empty": Misbehaviour(NO_HUB, listing=Answer(b"")),
    "list_array": Misbehaviour(NO_HUB, listing=Answer(b"[]")),
    "list_deep": Misbehaviour(NO_HUB, listing=Answer(b"[" * 200_000)),
    "list_latin": Misbehaviour(NO_HUB, listing=Answer(b'{"sha": "\xff"}')),
    "list_endless": Misbehaviour("has more than 64 MiB", listing=ENDLESS),
    "list_unavailable": Misbehaviour("returned status 500", listing=Answer(status=500)),
    "list_limited": Misbehaviour("the rate limit of", listing=Answer(status=429)),
    "list_disabled": Misbehaviour(
        "has been disabled",
        listing=Answer(
            status=403, headers=(("x-error-message", "Access to this resource is disabled."),)
        ),
    ),
    "list_without_files": describe_repository("siblings", [], "is empty"),
    "list_of_numbers": describe_repository("siblings", [1, 2], NO_HUB),
    "config_deep": Misbehaviour(files={"config.json": b'{"a":' * 100_000}),
    "config_array": Misbehaviour(files={"config.json": b"[]"}),
    "config_utf16": Misbehaviour(files={"config.json": '{"a": 1}'.encode("utf-16")}),
    "config_without_heads": Misbehaviour(files=configure(num_attention_heads=0)),
    "config_escape_sequence": Misbehaviour(files=configure(architectures=["\x1b[31mA\nB"])),
    "index_deep": Misbehaviour(
        "index.json is invalid", files={"model.safetensors.index.json": b"[" * 200_000}
    ),
    "index_parent": Misbehaviour(
        "lacks ../../etc/a.safetensors", files=index("../../etc/a.safetensors")
    ),
    "index_pickle": Misbehaviour(
        "lists pytorch_model.bin, which is not in safetensors",
        files={**index("pytorch_model.bin"), "pytorch_model.bin": PICKLE},
    ),
    "pickle_only": Misbehaviour(
        "pickle files only", files={"pytorch_model.bin": PICKLE}, absent=("model.safetensors",)
    ),
    "code": Misbehaviour(
        files={"model.py": b"raise SystemExit", **configure(auto_map={"AutoModel": "model.M"})}
    ),
    "link": Misbehaviour(files={"vocab.json": b"/etc/passwd"}),
    "template": Misbehaviour(
        files={
            "chat_template.jinja": b"{% for i in range(99999) %}{% for j in range(99999) %}x"
            b"{% endfor %}{% endfor %}"
        }
    ),
}


@dataclass
class HostileHub:
    """The running hub.

    sent: bytes of the answers for each repository.
    other_tokens: paths that were requested from its other name with a token.
    """

    url: str
    other_url: str
    sent: dict[str, int] = field(default_factory=dict[str, int])
    other_tokens: list[str] = field(default_factory=list[str])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HostileHub

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        is_other = self.headers["host"] != urlsplit(self.hub.url).netloc
        if is_other and self.headers.get("authorization") is not None:
            self.hub.other_tokens.append(path)
        if path == "/stolen":
            self.send("", Answer(bytes(10)), ())
        elif path.startswith("/api/models/evil/"):
            name = path.split("/")[4]
            self.send(name, MISBEHAVIOURS[name].describe(name), ())
        else:
            name = path.split("/")[2]
            repository = MISBEHAVIOURS[name]
            file = path.partition("/resolve/")[2].partition("/")[2]
            answer = repository.answers.get(file) or Answer(repository.content[file])
            self.send(name, answer, repository.headers)

    def send(self, name: str, answer: Answer, headers: Headers) -> None:
        self.send_response(answer.status)
        names = {key for key, _ in answer.headers}
        for key, value in (*headers, *answer.headers):
            self.send_header(key, value.replace("{other}", self.hub.other_url))
        if answer.is_endless:
            self.close_connection = True
        elif "content-length" not in names:
            self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.write(name, answer.body)
        zeros = bytes(1 << 16)
        while answer.is_endless and self.hub.sent[name] < SENT_BYTES and self.write(name, zeros):
            pass

    def write(self, name: str, data: bytes) -> bool:
        """Send bytes; False if the client is gone."""
        try:
            self.wfile.write(data)
        except OSError:
            return False
        self.hub.sent[name] = self.hub.sent.get(name, 0) + len(data)
        return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: clients end answers early."""


@contextmanager
def run_hostile_hub() -> Generator[HostileHub]:
    class Handler(_Handler):
        pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        port = server.server_address[1]
        hub = HostileHub(f"http://127.0.0.1:{port}", f"http://localhost:{port}")
        Handler.hub = hub
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
