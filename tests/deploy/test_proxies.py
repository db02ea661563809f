"""nginx with the shipped configuration in front of a real server: streams, WebSockets,
bodies, closed metrics.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from tests.launch.test_process import server
from websockets.sync.client import connect

from tests.certificates import write_certificate
from tests.loopback import MAX_POLLS, find_free_port, pause

CONFIG = Path(__file__).parents[2] / "deploy/proxies/nginx.conf"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@contextmanager
def run_nginx(folder: Path, backend: str) -> Generator[str]:
    """Run nginx in front of this server; only names, ports and paths of the
    configuration are replaced.
    """
    assert NGINX is not None
    certificate, key = write_certificate(folder, "proxy")
    port = find_free_port()
    text = CONFIG.read_text()
    for old, new in (
        ("server 127.0.0.1:8000;", f"server {backend};"),
        ("listen 443 ssl http2;", f"listen 127.0.0.1:{port} ssl http2;"),
        ("server_name llm.example.com;", "server_name localhost;"),
        ("/etc/ssl/llm.example.com.pem", str(certificate)),
        ("/etc/ssl/llm.example.com.key", str(key)),
    ):
        assert old in text
        text = text.replace(old, new)
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
    with subprocess.Popen(
        [NGINX, "-c", str(main), "-p", str(folder), "-e", f"{folder}/error.log"]
    ) as process:
        try:
            wait_for_port(port, process)
            yield f"https://localhost:{port}"
        finally:
            process.send_signal(signal.SIGTERM)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(MAX_POLLS):
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        pause()
    raise AssertionError("nginx did not start; see its error.log")


def test_nginx_passes_streams_and_websockets_but_not_metrics(tmp_path: Path) -> None:
    with (
        server(tmp_path, "--directives") as (_, url),
        run_nginx(tmp_path, url.removeprefix("http://")) as proxy,
    ):
        context = ssl.create_default_context(cafile=str(tmp_path / "proxy.pem"))
        with httpx2.Client(base_url=proxy, verify=context, timeout=30) as client:
            hello = [{"role": "user", "content": "Hello"}]
            answer = client.post("/v1/chat/completions", json={"messages": hello})
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
                "/v1/chat/completions", json={"messages": hello, "metadata": {"x": "y" * 2**21}}
            )
            assert large.status_code != 413
            assert client.get("/metrics").status_code == 403
            assert client.get("/readyz").status_code == 200
        with connect(proxy.replace("https", "wss") + "/v1/responses", ssl=context) as socket_:
            socket_.send(
                '{"type": "response.create", "model": "scripted", "input": "Hello", "store": false}'
            )
            assert '"response.created"' in str(socket_.recv(timeout=30))
