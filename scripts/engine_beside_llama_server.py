#!/usr/bin/env python3
"""Runs Tollgate's embedded engine beside llama.cpp's own server, and prints what each does.

    scripts/engine_beside_llama_server.py --tollgate BIN --llama-server BIN --model FILE.gguf

Both serve the same file with the same threads, batch, sequences and context. Rounds alternate
between them, so that what else the computer does falls on both alike; a server that is not asked
waits without using a core. Printed are the medians of the rounds, and their ratio. It needs nothing
but Python, and asks both through /v1/completions with the same bytes.

Of the prompt tokens of shared prefixes it says how many each computed, by what each tells: Tollgate
in `usage.prompt_tokens_details.cached_tokens`, llama.cpp's server in `timings.prompt_n`.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

WORDS = "toll gate road cart lane queue fair price dusk dawn keeper bridge river stone".split()
SEQUENCES = 32
CONTEXT = 1024


def text(chance, words):
    return " ".join(chance.choice(WORDS) for _ in range(words))


async def ask(port, prompt, most):
    """One streamed answer: when its first text and its last came, and its usage."""
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": most,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    data = json.dumps(body).encode()
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    first, usage, computed, last = None, None, None, b""
    while line := await reader.readline():
        last = line.strip() or last
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if event.get("usage"):
            usage = event["usage"]
        if event.get("timings"):
            computed = event["timings"]["prompt_n"]
        if first is None and event.get("choices") and event["choices"][0].get("text"):
            first = time.perf_counter()
    writer.close()
    if usage is None or usage["completion_tokens"] != most:
        raise SystemExit(f"an answer on port {port} is not whole: {usage}, {last}")
    ended = time.perf_counter()
    if computed is None:
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        computed = usage["prompt_tokens"] - cached
    return (first or ended) - begun, {**usage, "computed": computed}


async def together(port, asks, at_once, computed=None):
    """All of them, so many at a time: tokens in all, seconds, and the times to the first text.
    `computed` is given the prompt tokens that each had to compute."""
    gate = asyncio.Semaphore(at_once)

    async def one(prompt, most):
        async with gate:
            return await ask(port, prompt, most)

    begun = time.perf_counter()
    told = await asyncio.gather(*(one(prompt, most) for prompt, most in asks))
    took = time.perf_counter() - begun
    firsts = [first for first, _ in told]
    if computed is not None:
        computed.extend(usage["computed"] for _, usage in told)
    prompt = sum(usage["prompt_tokens"] for _, usage in told)
    output = sum(usage["completion_tokens"] for _, usage in told)
    return prompt, output, took, firsts


def prefill(chance, port):
    asks = [(f"{chance.random()} {text(chance, 480)}", 1) for _ in range(3)]
    prompt, _, took, _ = asyncio.run(together(port, asks, 1))
    return {"prefill tokens/s": prompt / took}


def decode(streams):
    def run(chance, port):
        asks = [(f"{chance.random()} the", 64) for _ in range(streams)]
        _, output, took, _ = asyncio.run(together(port, asks, streams))
        return {f"decode tokens/s, {streams} streams": output / took}

    return run


def shared(requests):
    def run(chance, port):
        # Of this round alone, so that nothing is left of the one before.
        systems = [f"{chance.random()} {text(chance, 520)}" for _ in range(4)]
        asks = []
        for _ in range(requests):
            own = text(chance, 30)
            begins = chance.choice(systems) if chance.random() < 0.7 else text(chance, 40)
            asks.append((f"{begins} {chance.random()} {own}", 32))
        counted = []
        prompt, output, took, firsts = asyncio.run(together(port, asks, 8, counted))
        return {
            "shared prefixes, tokens/s": (prompt + output) / took,
            "shared prefixes, p50 TTFT s": statistics.median(firsts),
            "shared prefixes, seconds": took,
            "shared prefixes, prompt tokens": prompt,
            "of them computed": sum(counted),
        }

    return run


def start(command, port, ready, log):
    child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    until = time.time() + 60
    while time.time() < until:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}", timeout=1) as answer:
                if answer.status == 200:
                    return child
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{command[0]} did not start; see its log")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ports = [free_port(), free_port()]
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--tollgate", required=True)
    options.add_argument("--llama-server", required=True)
    options.add_argument("--model", required=True)
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--requests", type=int, default=32, help="of the shared workload")
    options.add_argument("--only", choices=["plain", "shared"])
    options.add_argument("--streams", default="1,8,16,32", help="that decode at once")
    options.add_argument("--step-tokens", type=int, help="of Tollgate, in place of its default")
    options.add_argument("--prefix-cache", choices=["on", "off"], default="on", help="of Tollgate")
    given = options.parse_args()
    plain = [prefill] + [decode(int(streams)) for streams in given.streams.split(",")]
    work = {"plain": plain, "shared": [shared(given.requests)]}
    chosen = work[given.only] if given.only else plain + work["shared"]
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "w") as log:
        config = f"{folder}/config.yaml"
        step = f" step_tokens: {given.step_tokens}," if given.step_tokens else ""
        with open(config, "w") as file:
            file.write(
                f"listen: 127.0.0.1:{ports[0]}\ndata_dir: {folder}/data\n"
                "identity: { anonymous: allow }\n"
                f"models: [{{ name: m, path: {os.path.abspath(given.model)},"
                f" threads: {given.threads}, max_sequences: {SEQUENCES}, context: {CONTEXT},"
                f" kv_tokens: {SEQUENCES * CONTEXT},{step}"
                f" prefix_cache: {given.prefix_cache} }}]\n"
            )
        children = [
            start([given.tollgate, "serve", "--config", config], ports[0], "/ready", log),
            start(
                [given.llama_server, "-m", given.model, "--alias", "m", "--host", "127.0.0.1"]
                + ["--port", str(ports[1]), "--threads", str(given.threads)]
                + ["--threads-batch", str(given.threads), "--parallel", str(SEQUENCES)]
                + ["--ctx-size", str(SEQUENCES * CONTEXT), "--batch-size", "2048"]
                + ["--ubatch-size", "512"],
                ports[1],
                "/health",
                log,
            ),
        ]
        try:
            results = [{}, {}]
            for seed in range(given.seed, given.seed + given.rounds):
                for run in chosen:
                    for side, port in enumerate(ports):
                        for name, value in run(random.Random(seed), port).items():
                            results[side].setdefault(name, []).append(value)
                            print(f"{['tollgate', 'llama.cpp'][side]}: {name} {value:.3g}", file=sys.stderr)
        finally:
            for child in children:
                os.killpg(child.pid, signal.SIGTERM)
    title = f"medians of {given.rounds} rounds"
    print(f"{title:34}{'tollgate':>10}{'llama.cpp':>10}{'ratio':>8}")
    for name, ours in results[0].items():
        ours, theirs = statistics.median(ours), statistics.median(results[1][name])
        print(f"{name:34}{ours:10.3g}{theirs:10.3g}{ours / theirs:8.2f}")


if __name__ == "__main__":
    main()
