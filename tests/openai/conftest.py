"""Starts the real binary with the real model, and hands tests unmodified `openai` clients.

Nothing is imported from Tollgate: these tests know what a user of the API knows.
"""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

import openai
import pytest

# A proxy for the outside world has no business between a test and the loopback.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / os.environ.get("TOLLGATE_BIN", "target/debug/tollgate")
MODEL_FILE = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"

MODEL = "smollm2"
ALIAS = "gpt-4o-mini"
KEYS = {
    "quiet": "sk-quiet-4f1f1c64a5d0",
    "busy": "sk-busy-9b0e2d7718c3",
    "metered": "sk-metered-2c6a8e01f7d5",
}
MAX_BODY = 1024 * 1024

CONFIG = """\
listen: 127.0.0.1:{port}
data_dir: {data_dir}
identity:
  anonymous: deny
  trust_tenant_header: false
server:
  max_body: 1MiB
models:
  - name: {model}
    aliases: [{alias}]
    engine: embedded
    path: {model_file}
    threads: 1
tenants:
  - name: quiet
    keys: [{{ env: QUIET_KEY }}]
    class: standard
    weight: 1
  - name: busy
    keys: [{{ env: BUSY_KEY }}]
    class: standard
    weight: 1
  - name: metered
    keys: [{{ env: METERED_KEY }}]
    class: standard
    weight: 1
    limits: {{ rpm: 1, burst: 1 }}
"""


class Gateway:
    """A running `tollgate serve` on a free port of the loopback."""

    def __init__(self, folder):
        self.port = free_port()
        self.log_path = folder / "tollgate.log"
        config = folder / "tollgate.yaml"
        config.write_text(
            CONFIG.format(
                port=self.port,
                data_dir=folder / "data",
                model=MODEL,
                alias=ALIAS,
                model_file=MODEL_FILE,
            )
        )
        environment = os.environ | {
            f"{name.upper()}_KEY": key for name, key in KEYS.items()
        }
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [BINARY, "serve", "--config", config],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def client(self, tenant="quiet", key=None, **options):
        """An `openai` client of a tenant; it does not retry, so a test sees the first answer."""
        return openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1",
            api_key=KEYS[tenant] if key is None else key,
            max_retries=0,
            timeout=120,
            **options,
        )

    def request(self, method, path, body=None, key=KEYS["quiet"], headers=None):
        """One plain HTTP exchange: status, headers, and the body as bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = dict(headers or {})
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def is_ready(self):
        if self.process.poll() is not None:
            pytest.fail(f"tollgate exited with {self.process.returncode}:\n{self.log()}")
        try:
            return self.request("GET", "/ready", key=None)[0] == 200
        except OSError:
            return False

    def in_flight(self):
        """The requests in flight, summed over the labels that the metric carries."""
        status, _, body = self.request("GET", "/metrics", key=None)
        assert status == 200
        lines = body.decode().splitlines()
        samples = [line for line in lines if line.startswith("tollgate_in_flight_requests")]
        assert samples, "the metric tollgate_in_flight_requests is not there"
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def log(self):
        return self.log_path.read_text(errors="replace")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(condition, seconds):
    """Whether the condition comes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def start(folder):
    """A gateway that is ready, and the seconds that this took."""
    assert BINARY.exists(), f"{BINARY} is missing; run: cargo build -p tollgate"
    assert MODEL_FILE.exists(), f"{MODEL_FILE} is missing; run: scripts/fetch-model.sh"
    began = time.monotonic()
    gateway = Gateway(folder)
    if not eventually(gateway.is_ready, seconds=60):
        gateway.stop()
        pytest.fail(f"tollgate is not ready after 60 s:\n{gateway.log()}")
    return gateway, time.monotonic() - began


@pytest.fixture(scope="session")
def gateway(tmp_path_factory):
    """One gateway for all tests that leave it as it was."""
    running, _ = start(tmp_path_factory.mktemp("gateway"))
    yield running
    running.stop()


@pytest.fixture
def own_gateway(tmp_path):
    """A gateway for one test that stops it, with the seconds that it took to be ready."""
    running, seconds = start(tmp_path)
    yield running, seconds
    running.stop()


@pytest.fixture
def client(gateway):
    return gateway.client()
