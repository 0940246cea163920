#!/usr/bin/env python3
"""Runs one workload through real sockets and in the simulator, and prints both side by side.

    scripts/simulator_beside_sockets.py --tollgate BIN [--model FILE.gguf]

Through sockets: `tollgate bench engine`, in front of it `tollgate serve`, and `tollgate bench run`
as the clients. With a model it is the engine in the server's process, and what its steps cost is
fitted first, by `tollgate bench calibrate`. In the simulator: the same engine, policy and arrivals on a virtual clock. Both
sides are counted here, from rows and log, in the same way; prompts are as long in the simulator as the endpoint counted. It needs nothing but Python.
"""

import argparse
import csv
import math
import os
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

STEP_MS, PER_SEQUENCE_US, PREFILL = 30, 450, 4000
SIGMA = 0.7
TTFT_S = 2.0
# Sequences at once, tokens of a prompt, median tokens of an answer, and seconds a token at most; of the
# emulated engine, and of a small model on one core, which must answer often enough to count.
SIZES = {False: (16, 128, 64, 0.1), True: (8, 32, 24, 0.3)}
LOADS = [0.5, 0.9, 1.5, 3.0]

EMULATED = {"step": f"{STEP_MS}ms", "per_sequence": f"{PER_SEQUENCE_US}us", "prefill_per_second": str(PREFILL)}


def capacity(cost, given):
    """Requests a second of an engine that is never without work: all slots in each step, and the
    prompts of those that are exchanged."""
    output = given.median * math.exp(SIGMA**2 / 2)
    if "steps" in cost:
        # What is in use is of answers in the middle, of which the long ones are met more often.
        kept = given.slots * (given.prompt + output * math.exp(SIGMA**2) / 2)
        full = dict(re.findall(r"(\d+): (\w+)", cost["steps"]))[str(given.slots)]
        step = seconds(full) + given.slots * kept / float(cost.get("attention_per_second", "inf"))
    else:
        step = seconds(cost["step"]) + given.slots * seconds(cost["per_sequence"])
    prompt = seconds(cost.get("prompt_step", "0s")) + given.prompt / float(cost["prefill_per_second"])
    return 1 / (output * step / given.slots + prompt)


def seconds(text):
    """Of a time as scenarios have it."""
    number, unit = re.fullmatch(r"(\d+)(us|ms|s)", text).groups()
    return int(number) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def fleet(cost, given):
    kind = "embedded, chunk: 512, kv_tokens: 16384" if given.model else "emulated"
    says = ", ".join(f"{key}: {value}" for key, value in cost.items())
    return f"fleet: [{{ engine: {kind}, slots: {given.slots}, {says} }}]\n"


def tenants(given, rate, prompt):
    return (
        f"tenants:\n  - name: a\n    arrivals: {{ poisson: {{ rate: {rate:.4f} }} }}\n"
        f"    prompt: {{ constant: {prompt} }}\n    output: {{ lognormal: {{ median: {given.median}, "
        f"sigma: {SIGMA}, min: 4, max: 400 }} }}\n"
    )


def slo(given, before, after=""):
    promise = f"{{ ttft: {TTFT_S:.0f}s, tpot: {given.tpot * 1e3:.0f}ms }}"
    return f"{before}{promise}{after}" if given.promise else ""


def told(requests, given):
    """Of (due, first, last, tokens): goodput a second, and the TTFT of those that had one."""
    inside = [one for one in requests if given.warm_up <= one[0] < given.duration]
    waits = sorted(first - due for due, first, _, _ in inside if first is not None)
    good = 0
    for due, first, last, tokens in inside:
        if last is not None and first - due <= TTFT_S:
            good += tokens < 2 or (last - first) / (tokens - 1) <= given.tpot
    at = lambda part: waits[min(len(waits) - 1, int(len(waits) * part))] if waits else float("nan")
    return {
        "goodput/s": good / (given.duration - given.warm_up),
        "TTFT p50 ms": 1e3 * at(0.5),
        "TTFT p95 ms": 1e3 * at(0.95),
    }


def simulated(given, cost, rate, seed, folder):
    scenario, log = f"{folder}/scenario.yaml", f"{folder}/log"
    with open(scenario, "w") as file:
        file.write(
            f"title: beside sockets\nduration: {given.duration}s\ndrain: 120s\n"
            f"model: {{ context: 4096, queue: 1000, max_wait: 2s{slo(given, ', slo: ')} }}\n"
            f"{fleet(cost, given)}{tenants(given, rate, given.counted)}    says: truth\ncompare: [tollgate]\n"
        )
    command = [given.tollgate, "sim", scenario, "--seed", str(seed), "--log", log]
    subprocess.run(command, stdout=subprocess.DEVNULL)
    seen = {}
    with open(log) as file:
        for line in file:
            at, way, what, *rest = line.split()
            values = dict(pair.split("=", 1) for pair in rest if "=" in pair)
            request = values.get("request")
            if way != "<" or request is None:
                continue
            if what == "arrived":
                seen[request] = [float(at), None, None, 0]
            elif what == "first_token":
                seen[request][1] = float(at)
            elif what == "streamed":
                seen[request][3] += int(values["output"])
                seen[request][2] = float(at)
            elif what == "engine_ended" and values["ending"].startswith("Finished"):
                seen[request][2:] = [float(at), int(values["output"])]
    return list(seen.values())


class Servers:
    """A gateway, and behind it an engine."""

    def __init__(self, given, folder):
        ports = [free_port(), free_port()]
        where = f'replicas: [{{ url: "http://127.0.0.1:{ports[0]}" }}]'
        model = f"    engine: vllm\n    {where}\n    context: 4096\n"
        if given.model:
            path = os.path.abspath(given.model)
            model = f"    path: {path}\n    threads: {given.threads}\n    step_tokens: 512\n"
            model += "    context: 1024\n    kv_tokens: 16384\n"
        with open(f"{folder}/tollgate.yaml", "w") as file:
            file.write(
                f"listen: 127.0.0.1:{ports[1]}\ndata_dir: {folder}/data\n"
                f"identity: {{ anonymous: allow }}\nmodels:\n  - name: m\n{model}"
                f"    max_sequences: {given.slots}\n    queue: {{ max_requests: 1000, max_wait: 2s }}\n"
                f"{slo(given, '    slo: ', chr(10))}"
            )
        engine = ["bench", "engine", "--listen", f"127.0.0.1:{ports[0]}", "--model", "m"]
        engine += ["--slots", str(given.slots), "--step", f"{STEP_MS}ms", "--seen", "0"]
        engine += ["--per-sequence", f"{PER_SEQUENCE_US}us", "--prefill", str(PREFILL)]
        gateway = ["serve", "--config", f"{folder}/tollgate.yaml"]
        log = open(f"{folder}/servers.log", "w")
        self.children = []
        for command in [gateway] if given.model else [engine, gateway]:
            self.children.append(subprocess.Popen([given.tollgate, *command], stdout=log, stderr=log))
        self.url = f"http://127.0.0.1:{ports[1]}/v1"
        ready(ports[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            child.send_signal(signal.SIGINT)
            child.wait()


def calibrated(given):
    """What the steps of the engine in the process cost, as clients see them."""
    if not given.model:
        return EMULATED
    if given.cost:
        return costs(given.cost)
    with tempfile.TemporaryDirectory() as folder, Servers(given, folder) as servers:
        fit = ["bench", "calibrate", "--url", servers.url, "--model", "m", "--engine", "embedded"]
        fit += ["--prompts", "16,32,64", "--sequences", "1,2,3,4,5,6,7,8", "--output", "24", "--each", "8s"]
        told = subprocess.run([given.tollgate, *fit], capture_output=True, text=True)
    if told.returncode:
        raise SystemExit(told.stderr)
    print("\n".join(line for line in told.stdout.splitlines() if line.startswith("#")), flush=True)
    return costs(told.stdout)


def costs(text):
    """Of a fleet in YAML."""
    keys = "steps|attention_per_second|prompt_step|prefill_per_second"
    return dict(re.findall(rf"\b({keys}): (\{{.*?\}}|\w+)", text))


def through_sockets(given, _cost, rate, seed, folder):
    with open(f"{folder}/workload.yaml", "w") as file:
        file.write(tenants(given, rate, given.prompt))
    rows = f"{folder}/rows.csv"
    with Servers(given, folder) as servers:
        run = ["bench", "run", "--url", servers.url, "--model", "m", "--seed", str(seed)]
        run += ["--tokenizer", "learn" if given.model else "bytes", "--rows", rows, "--slip-max", "50ms"]
        run += ["--workload", f"{folder}/workload.yaml", "--duration", f"{given.duration}s"]
        run += ["--warm-up", f"{given.warm_up}s"]
        told = subprocess.run([given.tollgate, *run], capture_output=True, text=True)
        if told.returncode:
            raise SystemExit(told.stderr)
    second = lambda text: int(text) / 1e6 if text else None
    with open(rows) as file:
        all_rows = list(csv.DictReader(file))
    counts = [int(row["prompt_tokens"]) for row in all_rows if row["prompt_tokens"]]
    given.counted = round(statistics.mean(counts)) if counts else given.prompt
    return [
        (
            second(row["intended_us"]),
            second(row["first_token_us"]),
            second(row["last_token_us"]) if row["ending"] == "completed" else None,
            int(row["output_tokens"] or 0),
        )
        for row in all_rows
    ]


def ready(port):
    until = time.time() + 60
    while time.time() < until:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the gateway did not start")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--tollgate", required=True)
    options.add_argument("--model", help="the engine in the process, on this file")
    options.add_argument("--threads", type=int, default=1, help="of that engine")
    options.add_argument("--cost", help="what its steps cost, as this prints it; else that is fitted first")
    options.add_argument("--duration", type=int, default=60)
    options.add_argument("--warm-up", type=int, default=10)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--promise", action="store_true", help="with admission by latency")
    options.add_argument("--loads", default=",".join(map(str, LOADS)))
    given = options.parse_args()
    given.slots, given.prompt, given.median, given.tpot = SIZES[bool(given.model)]
    given.tollgate = os.path.abspath(given.tollgate)
    cost = calibrated(given)
    full = capacity(cost, given)
    print(f"{fleet(cost, given).strip()}, capacity {full:.2f} requests/s", flush=True)
    print("load,what,sockets,simulator,ratio")
    for load in map(float, given.loads.split(",")):
        sides = {}
        for seed in range(1, given.seeds + 1):
            for name, run in [("sockets", through_sockets), ("simulator", simulated)]:
                with tempfile.TemporaryDirectory() as folder:
                    for what, value in told(run(given, cost, load * full, seed, folder), given).items():
                        sides.setdefault(what, {}).setdefault(name, []).append(value)
        for what, both in sides.items():
            real, virtual = (statistics.median(both[name]) for name in ("sockets", "simulator"))
            print(f"{load},{what},{real:.4g},{virtual:.4g},{real / virtual if virtual else math.nan:.3f}", flush=True)


if __name__ == "__main__":
    main()
