#!/usr/bin/env python3
"""Three engines under an open load, one of which is killed, stopped, slowed and made to reset.

    scripts/chaos.py TOLLGATE [SECONDS [RATE]]

Under RATE (100) requests a second the engine is unwell for SECONDS (20), and has 40 more to come back.
Prints a line of CSV for each: requests, those that came whole, those that broke off behind a token, those that were lost before one, what the replica had in flight at most in the two seconds after
its return beside the most that another had, and how long it took until it took work again. Exits 1
where a request was lost before a token, or the replica was not back by the end of its phase.

Everything listens on 127.0.0.1, ports 18100 to 18104, and is ended when it is done.
"""

import csv
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

GATEWAY, RESETTING, ENGINES = 18100, 18101, (18102, 18103, 18104)


class Resetting(threading.Thread):
    """What is in front of the first engine: passes bytes on, and resets every third connection if told."""

    def __init__(self):
        super().__init__(daemon=True)
        self.resets, self.count = False, 0
        self.listener = socket.create_server(("127.0.0.1", RESETTING), backlog=512)

    def run(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            engine = socket.create_connection(("127.0.0.1", ENGINES[0]), timeout=5)
        except OSError:
            reset(client)
            return
        engine.settimeout(None)
        for one in (client, engine):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=pump, args=(engine, client), daemon=True)
        back.start()
        while True:
            try:
                data = client.recv(65536)
            except OSError:
                data = b""
            if data.startswith(b"POST") and self.resets:
                self.count += 1
                if self.count % 3 == 0:
                    reset(client)
                    reset(engine)
                    return
            if not data:
                close(engine)
                return
            try:
                engine.sendall(data)
            except OSError:
                reset(client)
                return


def pump(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    close(sink)


def reset(one):
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    close(one)


def close(one):
    for end in (lambda: one.shutdown(socket.SHUT_RDWR), one.close):
        try:
            end()
        except OSError:
            pass


class Bench:
    """The engines, the gateway, and what is asked of them."""

    def __init__(self, tollgate, folder):
        self.tollgate, self.folder = tollgate, folder
        self.engines = [self.engine(port) for port in ENGINES]
        self.front = Resetting()
        self.front.start()
        file = os.path.join(folder, "tollgate.yaml")
        urls = ", ".join(f'{{ url: "http://127.0.0.1:{port}" }}' for port in (RESETTING, *ENGINES[1:]))
        with open(file, "w", encoding="utf-8") as out:
            out.write(
                f"listen: 127.0.0.1:{GATEWAY}\ndata_dir: {folder}/data\n"
                "identity: { anonymous: allow, trust_tenant_header: true }\n"
                "models:\n  - name: stub\n    engine: vllm\n"
                "    health: { interval: 500ms, timeout: 1s }\n"
                "    upstream: { first_byte: 10s }\n    stream: { idle: 5s }\n"
                f"    replicas: [{urls}]\n"
            )
        env = dict(os.environ, TOLLGATE_LOG="error")
        log = open(os.path.join(folder, "gateway.log"), "w", encoding="utf-8")
        self.gateway = subprocess.Popen(
            [tollgate, "serve", "--config", file], stdout=log, stderr=log, env=env
        )
        until(30, lambda: get(f"http://127.0.0.1:{GATEWAY}/ready") is not None, "it is ready")

    def engine(self, port):
        words = ["bench", "engine", "--listen", f"127.0.0.1:{port}", "--slots", "64", "--step", "5ms"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started = subprocess.Popen([self.tollgate, *words, "--prefill", "100000"], **quiet)
        until(30, lambda: get(f"http://127.0.0.1:{port}/health") is not None, "the engine listens")
        return started

    def load(self, seconds, rate):
        self.rows = os.path.join(self.folder, "rows.csv")
        tenant = f"a:rate={rate},prompt=64,output=16"
        words = ["--tenant", tenant, "--tokenizer", "bytes", "--duration", f"{seconds}s"]
        more = ["--warm-up", "0s", "--drain", "30s", "--slip-max", "1s", "--rows", self.rows]
        url = f"http://127.0.0.1:{GATEWAY}/v1"
        return subprocess.Popen(
            [self.tollgate, "bench", "run", "--url", url, "--model", "stub", *words, *more],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def gauges(self, name):
        page = get(f"http://127.0.0.1:{GATEWAY}/metrics") or ""
        found = re.findall(rf'tollgate_{name}{{[^}}]*replica="(\d+)"[^}}]*}} (\d+)', page)
        return {int(replica): int(value) for replica, value in found}

    def end(self):
        self.gateway.terminate()
        for one in self.engines:
            one.kill()
        self.gateway.wait(90)


def get(url, data=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=2) as answer:
            return answer.read().decode()
    except OSError:
        return None


def until(seconds, is_so, what):
    begun = time.monotonic()
    while not is_so():
        if time.monotonic() - begun > seconds:
            sys.exit(f"not in {seconds} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - begun


def phases(bench):
    first = ENGINES[0]

    def kill():
        bench.engines[0].kill()
        bench.engines[0].wait()

    def revive():
        bench.engines[0] = bench.engine(first)

    def tell(what):
        return lambda: get(f"http://127.0.0.1:{first}/cost", str(what).encode())

    def front(resets):
        return lambda: setattr(bench.front, "resets", resets)

    def send(what):
        return lambda: bench.engines[0].send_signal(what)

    yield "killed", kill, revive
    yield "stopped", send(signal.SIGSTOP), send(signal.SIGCONT)
    yield "slowed ten times", tell(1000), tell(100)
    yield "resets every third", front(True), front(False)


def run(bench, name, harm, heal, seconds, rate):
    load = bench.load(seconds + 42, rate)
    time.sleep(2)
    harm()
    time.sleep(seconds)
    heal()
    begun = time.monotonic()
    back, most = None, {0: 0, 1: 0, 2: 0}
    while load.poll() is None:
        since = time.monotonic() - begun
        held, up = bench.gauges("window_sequences"), bench.gauges("replica_up")
        if back is None and up.get(0) == 1 and held.get(0, 0) > 0:
            back = since
        if back is not None and since < back + 2:
            most = {at: max(most[at], held.get(at, 0)) for at in most}
        time.sleep(0.05)
    whole = cut = lost = 0
    with open(bench.rows, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["ending"] == "completed":
                whole += 1
            elif row["first_token_us"]:
                cut += 1
            else:
                lost += 1
                print(f"lost: {row['status']} {row['ending']} {row['reason']}", file=sys.stderr)
    shown = "never" if back is None else f"{back:.1f}"
    others = max(most[1], most[2])
    print(f"{name},{whole + cut + lost},{whole},{cut},{lost},{most[0]},{others},{shown}", flush=True)
    return lost == 0 and back is not None


def main():
    tollgate = sys.argv[1]
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    rate = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(tollgate, folder)
        print("what,requests,whole,cut_behind_a_token,lost,most_on_return,most_beside,back_after_s")
        try:
            kept = [run(bench, *phase, seconds, rate) for phase in phases(bench)]
        finally:
            bench.end()
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
