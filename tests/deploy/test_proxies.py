"""Proxies with the shipped configurations in front of a real server: streams,
WebSockets, bodies, closed metrics, health checks, addresses of clients.
"""

from __future__ import annotations

import csv
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tests.launch.test_process import server
from websockets.sync.client import connect

from tests.certificates import write_certificate
from tests.loopback import MAX_POLLS, find_free_port, pause, serve_app

PROXIES = Path(__file__).parents[2] / "deploy/proxies"
FOLDERS = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
HELLO = [{"role": "user", "content": "Hello"}]


def replace_all(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Replace names, ports and paths, each of which occurs."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def configure_nginx(folder: Path, backend: str, port: int) -> list[str]:
    text = replace_all(
        (PROXIES / "nginx.conf").read_text(),
        [
            ("server 127.0.0.1:8000;", f"server {backend};"),
            ("listen 443 ssl http2;", f"listen 127.0.0.1:{port} ssl http2;"),
            ("server_name llm.example.com;", "server_name localhost;"),
            ("/etc/ssl/llm.example.com.pem", f"{folder}/proxy.pem"),
            ("/etc/ssl/llm.example.com.key", f"{folder}/proxy.key"),
        ],
    )
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.getuid() == 0 else ""
    main = folder / "nginx.conf"
    main.write_text(
        f"{user}daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log "
        f"{folder}/error.log warn;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{text}\n}}\n"
    )
    return ["-c", str(main), "-p", str(folder), "-e", f"{folder}/error.log"]


def configure_haproxy(folder: Path, backend: str, port: int) -> list[str]:
    # Not a Unix socket: its path could be too long.
    state = f"ipv4@127.0.0.1:{find_free_port()}"
    (folder / "state").write_text(state)
    bundle = folder / "bundle.pem"
    bundle.write_bytes((folder / "proxy.pem").read_bytes() + (folder / "proxy.key").read_bytes())
    text = replace_all(
        (PROXIES / "haproxy.cfg").read_text(),
        [
            ("\nglobal\n", f"\nglobal\n    stats socket {state}\n"),
            ("bind :443 ", f"bind 127.0.0.1:{port} "),
            ("/etc/haproxy/llm.example.com.pem", str(bundle)),
            ("10.0.0.1:8000", backend),
            ("    server b 10.0.0.2:8000\n", ""),
            # Without a timeout of its own, a check may take as long as the interval.
            ("\ndefaults\n", "\ndefaults\n    timeout check 30s\n"),
            ("inter 5s", "inter 100ms"),
        ],
    )
    (folder / "haproxy.cfg").write_text(text)
    return ["-f", str(folder / "haproxy.cfg")]


def configure_caddy(folder: Path, backend: str, port: int) -> list[str]:
    text = replace_all(
        (PROXIES / "Caddyfile").read_text(),
        [
            (
                "llm.example.com {",
                f"https://localhost:{port} {{\n\tbind 127.0.0.1\n"
                f"\ttls {folder}/proxy.pem {folder}/proxy.key",
            ),
            ("127.0.0.1:8000", backend),
        ],
    )
    options = (
        f"{{\n\tadmin off\n\tauto_https disable_redirects\n\tstorage file_system {folder}\n}}\n"
    )
    (folder / "Caddyfile").write_text(options + text)
    return ["run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


def configure_envoy(folder: Path, backend: str, port: int) -> list[str]:
    host, _, backend_port = backend.partition(":")
    second = (
        "              - endpoint: {address: {socket_address: {address: 10.0.0.2, "
        "port_value: 8000}}}\n"
    )
    text = replace_all(
        (PROXIES / "envoy.yaml").read_text(),
        [
            (
                "{address: 0.0.0.0, port_value: 443}",
                f"{{address: 127.0.0.1, port_value: {port}}}",
            ),
            ("/etc/ssl/llm.example.com.pem", f"{folder}/proxy.pem"),
            ("/etc/ssl/llm.example.com.key", f"{folder}/proxy.key"),
            (second, ""),
            (
                "{address: 10.0.0.1, port_value: 8000}",
                f"{{address: {host}, port_value: {backend_port}}}",
            ),
        ],
    )
    (folder / "envoy.yaml").write_text(text)
    return ["-c", str(folder / "envoy.yaml"), "--log-level", "error"]


CONFIGURATIONS = {
    "nginx": configure_nginx,
    "haproxy": configure_haproxy,
    "caddy": configure_caddy,
    "envoy": configure_envoy,
}
programs = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                shutil.which(name, path=FOLDERS) is None, reason=f"{name} is not installed"
            ),
        )
        for name in CONFIGURATIONS
    ],
)


@contextmanager
def run_proxy(name: str, folder: Path, backend: str) -> Generator[str]:
    """Run a proxy in front of this server and yield its URL. Only names, ports and paths
    of the configuration are replaced.
    """
    program = shutil.which(name, path=FOLDERS)
    assert program is not None
    write_certificate(folder, "proxy")
    port = find_free_port()
    arguments = CONFIGURATIONS[name](folder, urlsplit(backend).netloc, port)
    log = folder / "proxy.log"
    with (
        log.open("w") as output,
        subprocess.Popen([program, *arguments], stdout=output, stderr=output) as process,
    ):
        try:
            wait_for_port(port, process, log)
            yield f"https://localhost:{port}"
        finally:
            # At SIGTERM a proxy waits for its open connections.
            process.kill()


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(MAX_POLLS):
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        pause()
    raise AssertionError(f"the proxy did not start: {log.read_text()}")


@contextmanager
def connected(proxy: str, folder: Path) -> Generator[httpx2.Client]:
    context = ssl.create_default_context(cafile=str(folder / "proxy.pem"))
    with httpx2.Client(base_url=proxy, verify=context, timeout=60) as client:
        yield client


@programs
def test_proxy_passes_streams_and_websockets_but_not_metrics(name: str, tmp_path: Path) -> None:
    with server(tmp_path, "--directives") as (_, url), run_proxy(name, tmp_path, url) as proxy:
        with connected(proxy, tmp_path) as client:
            answer = client.post("/v1/chat/completions", json={"messages": HELLO})
            assert (answer.status_code, answer.json()["object"]) == (200, "chat.completion")
            slow = {
                "messages": [{"role": "user", "content": "[[say one]] [[delay 600]] [[say two]]"}],
                "stream": True,
            }
            with client.stream("POST", "/v1/chat/completions", json=slow) as stream:
                # It arrives although the response lasts ten minutes: nothing is
                # buffered.
                first = next(line for line in stream.iter_lines() if '"content":"' in line)
                assert first.startswith("data: ")
            large = client.post(
                "/v1/chat/completions", json={"messages": HELLO, "metadata": {"x": "y" * 2**21}}
            )
            assert large.status_code != 413
            for path in ("/metrics", "/%6detrics", "/metrics?x=1"):
                assert client.get(path).status_code in (403, 404), path
            assert client.get("/readyz").status_code == 200
        context = ssl.create_default_context(cafile=str(tmp_path / "proxy.pem"))
        address = proxy.replace("https", "wss") + "/v1/responses"
        # With a full queue of unread events, closing would wait ten seconds.
        with connect(address, ssl=context, max_queue=None, open_timeout=120) as socket_:
            socket_.send(
                '{"type": "response.create", "model": "scripted", "input": "Hello", "store": false}'
            )
            assert '"response.created"' in str(socket_.recv(timeout=60))


@programs
def test_proxy_replaces_address_claimed_by_client(name: str, tmp_path: Path) -> None:
    async def show(request: Request) -> JSONResponse:
        return JSONResponse(dict(request.headers))

    app = Starlette(routes=[Route("/{path:path}", show)])
    claimed = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "http"}
    with (
        serve_app(app) as url,
        run_proxy(name, tmp_path, url) as proxy,
        connected(proxy, tmp_path) as client,
    ):
        seen = client.get("/v1/models", headers=claimed).json()
    # What a proxy adds comes last; a server that trusts one proxy reads that.
    last = seen["x-forwarded-for"].split(",")[-1].strip()
    # Envoy writes its own address for a client on loopback.
    assert last != claimed["x-forwarded-for"] if name == "envoy" else last == "127.0.0.1"
    assert seen["x-forwarded-proto"] == "https"
    assert seen["host"].startswith("localhost")


@pytest.mark.skipif(
    shutil.which("haproxy", path=FOLDERS) is None, reason="haproxy is not installed"
)
def test_haproxy_health_check_finds_server_ready(tmp_path: Path) -> None:
    with server(tmp_path) as (_, url), run_proxy("haproxy", tmp_path, url):
        row: dict[str, str] = {}
        for _ in range(MAX_POLLS):
            row = read_haproxy_state((tmp_path / "state").read_text())
            # `INI` until the first check has ended, `* ` before it while another runs.
            if row["check_status"].removeprefix("* ") not in ("", "INI"):
                break
            pause()
        assert (row["check_status"].removeprefix("* "), row["status"]) == ("L7OK", "UP")


def read_haproxy_state(address: str) -> dict[str, str]:
    """Return the state of the backend's server."""
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as connection:
        connection.sendall(b"show stat\n")
        text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    rows = csv.DictReader(text.lstrip("# ").splitlines())
    return next(row for row in rows if (row["pxname"], row["svname"]) == ("dragoman", "a"))
