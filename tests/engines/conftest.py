"""Starts real engines and the real binary before them, and hands tests unmodified `openai` clients.

LLAMA_SERVER names llama.cpp's server; VLLM names the folder of a virtual environment with vLLM, and
VLLM_MODEL a model for it. Tests of an engine that is not named are skipped: `make test-engines` says
so. Each test gets engines of its own, since it may end them.
"""

import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.request

import openai
import pytest

os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / os.environ.get("TOLLGATE_BIN", "target/debug/tollgate")
MODEL_FILE = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
KEYS = {"a": "sk-a-5d3c1b", "b": "sk-b-77e0aa"}

CONFIG = """\
listen: 127.0.0.1:{port}
data_dir: {data}
models:
  - name: m
    engine: {kind}
    replicas: [{{ url: "http://127.0.0.1:{engine}" }}]
    health: {{ interval: 250ms, timeout: 2s }}
    stream: {{ idle: 3s }}
    upstream: {{ model: smollm2, first_byte: 60s{upstream} }}
{model}
tenants:
  - {{ name: a, keys: [{{ env: KEY_A }}] }}
  - {{ name: b, keys: [{{ env: KEY_B }}] }}
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def page(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return None


def eventually(what, is_so, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = is_so()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not in {seconds} s: {what}")


class Process:
    """A program, what it says, and its port."""

    def __init__(self, words, log, env=None):
        self.log = log
        self.out = open(log, "w", encoding="utf-8")
        # A group of its own, for all that it starts: some of that outlives it when it is killed.
        self.process = subprocess.Popen(
            words, stdout=self.out, stderr=self.out, env=env, start_new_session=True
        )

    def send(self, what):
        self.process.send_signal(what)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # Nothing of it is left.
        self.out.close()


class Engine(Process):
    """An engine that listens."""

    def __init__(self, kind, words, port, folder, env=None):
        self.kind, self.port = kind, port
        super().__init__(words, folder / f"{kind}.log", env)
        eventually("the engine listens", lambda: page(port, "/health") is not None, 300)

    def running(self):
        """Requests that it says it runs."""
        return self.gauge("llamacpp:requests_processing", "vllm:num_requests_running")

    def waiting(self):
        """Requests that it says wait in it."""
        return self.gauge("llamacpp:requests_deferred", "vllm:num_requests_waiting")

    def gauge(self, of_llama, of_vllm):
        name = of_llama if self.kind == "llama-server" else of_vllm
        text = page(self.port, "/metrics") or ""
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)
        return sum(float(value) for value in found) if found else None


class Gateway(Process):
    """Tollgate before an engine."""

    def __init__(self, engine, folder, upstream="", model=""):
        self.port = free_port()
        file = folder / "tollgate.yaml"
        text = CONFIG.format(
            port=self.port,
            data=folder / "data",
            kind=engine.kind,
            engine=engine.port,
            upstream=upstream,
            model=model,
        )
        file.write_text(text, encoding="utf-8")
        env = {**os.environ, "KEY_A": KEYS["a"], "KEY_B": KEYS["b"]}
        super().__init__([BINARY, "serve", "--config", file], folder / "gateway.log", env)
        eventually("the gateway is ready", lambda: page(self.port, "/ready") is not None)

    def client(self, tenant="a"):
        url = f"http://127.0.0.1:{self.port}/v1"
        return openai.OpenAI(base_url=url, api_key=KEYS[tenant], max_retries=0, timeout=60)

    def metric(self, name):
        text = page(self.port, "/metrics") or ""
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)
        return sum(float(value) for value in found) if found else None


def llama_server(folder):
    program = os.environ.get("LLAMA_SERVER")
    if not program:
        pytest.skip("LLAMA_SERVER does not name llama.cpp's server")
    port = free_port()
    words = [program, "-m", MODEL_FILE, "--alias", "smollm2", "--host", "127.0.0.1", "--port", str(port)]
    more = ["--threads", "1", "--threads-batch", "1", "--ctx-size", "4096", "--parallel", "4", "--metrics"]
    return Engine("llama-server", [*map(str, words), *more], port, folder)


def vllm(folder, more=()):
    venv, model = os.environ.get("VLLM"), os.environ.get("VLLM_MODEL")
    if not venv or not model:
        pytest.skip("VLLM and VLLM_MODEL name no vLLM")
    port = free_port()
    words = [f"{venv}/bin/vllm", "serve", model, "--served-model-name", "smollm2", "--host", "127.0.0.1"]
    how = ["--port", str(port), "--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager"]
    also = ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--dtype", "bfloat16"]
    order = ["--scheduling-policy", "priority", "--max-num-batched-tokens", "2048"]
    # For the CPU: little KV, and the threads' library before the others.
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": str(folder / "cache")}
    if os.path.exists(preload := f"{venv}/lib/libiomp5.so"):
        env["LD_PRELOAD"] = preload
    return Engine("vllm", [*words, *how, *also, *order, *more], port, folder, env)


ENGINES = {"llama-server": llama_server, "vllm": vllm}


@pytest.fixture(params=list(ENGINES))
def engine(request, tmp_path):
    started = ENGINES[request.param](tmp_path)
    yield started
    started.end()


@pytest.fixture
def gateway(engine, tmp_path):
    started = Gateway(engine, tmp_path)
    yield started
    started.end()
