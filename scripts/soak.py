#!/usr/bin/env python3
"""Clients of every kind, engines that die and a gateway that is killed; then the books against what clients saw.

    scripts/soak.py TOLLGATE [SECONDS [SEED [CLIENTS]]]

For SECONDS (300) each of CLIENTS (60) asks again and again: for whole answers and streams, read to their end,
slowly or not to their end; pipelined, twice with one idempotency key, too large, broken off, senseless. Three
emulated engines are killed, stopped and slowed meanwhile, the configuration is read anew, and the gateway itself
is killed. Then each answer that a client saw is looked up in the ledger: it is there once, with the tokens that
the client was told. What was refused is not charged, what was left is charged what was made, nothing ends without
[DONE], an error or a refusal, and `ledger verify` finds journal and store of one mind.

Prints what came of what, and each thing that is not so; exits 1 where there is one. Everything listens on
127.0.0.1, ports 18500 to 18504, and is ended when it is done. One SEED (1) makes the same choices, but not the
same run: when things happen is the machine's to say.
"""

import asyncio
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

GATEWAY, ADMIN, ENGINES = 18500, 18501, (18502, 18503, 18504)
KEYS = {"calm": "sk-calm", "busy": "sk-busy", "bounded": "sk-bounded"}
CONFIG = """listen: 127.0.0.1:{gateway}
data_dir: {folder}/data
server: {{ drain: 10s, read_timeout: 5s }}
admin: {{ listen: "127.0.0.1:{admin}", keys: [{{ name: soak, env: SOAK_ADMIN }}] }}
models:
  - name: stub
    aliases: [other]
    engine: vllm
    max_stream: 60s
    queue: {{ max_requests: 200, max_wait: 8s }}
    health: {{ interval: 500ms, timeout: 1s }}
    upstream: {{ first_byte: 6s }}
    stream: {{ idle: 2s }}
    replicas: [{replicas}]
prices:
  - {{ model: stub, prompt: "1", cached: "0.1", output: "3" }}
tenants:
  - {{ name: calm, keys: [{{ env: SOAK_CALM }}] }}
  - {{ name: busy, weight: {weight}, keys: [{{ env: SOAK_BUSY }}] }}
  - {{ name: bounded, keys: [{{ env: SOAK_BOUNDED }}], limits: {{ rpm: 600, burst: 60, concurrency: 6 }} }}
"""
# How often each kind of client is drawn.
KINDS = {
    "whole": 25, "stream": 30, "leaves": 10, "leaves early": 6, "reads slowly": 3, "pipelines": 4, "keeps on": 7,
    "asks twice": 5, "large": 2, "senseless": 2, "garbage": 3, "half": 3,
}  # fmt: skip
STREAMS = ("stream", "leaves", "reads slowly", "pipelines")
GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\nhello",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
    bytes(range(128, 256)),
)
SENSELESS = ({"model": "nope", "messages": []}, {"messages": "x"}, {"model": "stub", "max_tokens": -1}, [])
# Longer than any answer may take here.
PATIENCE = 75


class World:
    """The engines and the gateway."""

    def __init__(self, tollgate, folder):
        self.tollgate, self.folder = tollgate, folder
        self.env = dict(os.environ, TOLLGATE_LOG="warn", SOAK_ADMIN="sk-admin")
        self.env.update({f"SOAK_{name.upper()}": key for name, key in KEYS.items()})
        self.file = os.path.join(folder, "tollgate.yaml")
        # When the gateway was killed.
        self.kills = []
        self.engines = [self.engine(port) for port in ENGINES]
        self.configure(3)
        self.gateway = self.start_gateway()

    def run(self, *args, log):
        out = open(os.path.join(self.folder, log), "a", encoding="utf-8")
        return subprocess.Popen([self.tollgate, *args], env=self.env, stdout=subprocess.DEVNULL, stderr=out)

    def engine(self, port):
        size = "--slots 12 --step 4ms --per-sequence 50us --kv-tokens 30000 --context 4096 --waiting-max 24".split()
        return self.run("bench", "engine", "--listen", f"127.0.0.1:{port}", *size, "--prefix-cache", log="engines.log")

    def configure(self, weight):
        replicas = ", ".join(f'{{ url: "http://127.0.0.1:{port}" }}' for port in ENGINES)
        text = CONFIG.format(gateway=GATEWAY, admin=ADMIN, folder=self.folder, replicas=replicas, weight=weight)
        with open(self.file + ".new", "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(self.file + ".new", self.file)

    def start_gateway(self):
        gateway = self.run("serve", "--config", self.file, log="gateway.log")
        for _ in range(600):
            if gateway.poll() is not None:
                raise SystemExit("the gateway did not start: " + self.last_words())
            try:
                get(GATEWAY, "/ready")
                return gateway
            except OSError:
                time.sleep(0.1)
        raise SystemExit("the gateway is not ready: " + self.last_words())

    def last_words(self):
        with open(os.path.join(self.folder, "gateway.log"), encoding="utf-8") as log:
            return log.read()[-2000:]

    def kill_gateway(self):
        self.kills.append(time.time())
        self.gateway.kill()
        self.gateway.wait()
        self.gateway = self.start_gateway()

    def ledger(self, verb, *args):
        ran = subprocess.run([self.tollgate, "ledger", verb, *args], env=self.env, capture_output=True, text=True)
        return ran.returncode, ran.stdout + ran.stderr

    def size(self):
        with open(f"/proc/{self.gateway.pid}/status", encoding="utf-8") as status:
            memory = next(line.split()[1] for line in status if line.startswith("VmRSS"))
        return int(memory) // 1024, len(os.listdir(f"/proc/{self.gateway.pid}/fd"))

    def end(self):
        for process in (self.gateway, *self.engines):
            process.send_signal(signal.SIGCONT)
            process.kill()


def get(port, path, data=None):
    head = {"authorization": "Bearer sk-admin"}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, headers=head)
    return urllib.request.urlopen(asked, timeout=3).read()


class Trouble:
    """What happens to engines and gateway."""

    def __init__(self, world, rng):
        self.world, self.rng, self.count = world, rng, collections.Counter()

    async def go_on(self, over):
        ways = [self.kill] * 4 + [self.stop] * 4 + [self.slow] * 2 + [self.configure] * 2 + [self.kill_gateway]
        while not over.is_set():
            await asyncio.sleep(2 + 4 * self.rng.random())
            way = self.rng.choice(ways)
            self.count[way.__name__] += 1
            await way(self.rng.randrange(len(ENGINES)))

    async def kill(self, at):
        self.world.engines[at].kill()
        self.world.engines[at].wait()
        await asyncio.sleep(0.5 + 3 * self.rng.random())
        self.world.engines[at] = self.world.engine(ENGINES[at])

    async def stop(self, at):
        self.world.engines[at].send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.5 + 4 * self.rng.random())
        self.world.engines[at].send_signal(signal.SIGCONT)

    async def slow(self, at):
        for cost in (b"1000", b"100"):
            await asyncio.to_thread(get, ENGINES[at], "/cost", cost)
            await asyncio.sleep(3)

    async def configure(self, _):
        self.world.configure(self.rng.randrange(1, 9))
        self.world.gateway.send_signal(signal.SIGHUP)
        await asyncio.to_thread(get, ADMIN, "/admin/v1/queue")

    async def kill_gateway(self, _):
        await asyncio.to_thread(self.world.kill_gateway)


class Seen:
    """What a client saw of one request."""

    def __init__(self, kind, tenant):
        self.kind, self.tenant, self.since, self.until = kind, tenant, time.time(), None
        self.id = self.status = self.usage = self.finish = self.reason = self.words = self.key = None
        self.replayed, self.pieces = False, 0
        # nothing, whole, done, error, refused, left, cut
        self.end = "nothing"

    def __str__(self):
        what = f"{self.end} {self.status} {self.reason} {self.usage} {self.pieces}"
        return f"{self.kind}, {self.tenant}, {self.id}: {what}"


class Client:
    """One that asks again and again, each time as another kind."""

    def __init__(self, rng, all_seen):
        self.rng, self.all_seen = rng, all_seen

    async def go_on(self, over):
        while not over.is_set():
            kind = self.rng.choices(list(KINDS), KINDS.values())[0]
            tenant = self.rng.choices(list(KEYS), (2, 3, 1))[0]
            await self.ask(kind, tenant)
            await asyncio.sleep(self.rng.random() * 0.3)

    def note(self, kind, tenant):
        seen = Seen(kind, tenant)
        self.all_seen.append(seen)
        return seen

    async def ask(self, kind, tenant):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", GATEWAY, limit=1 << 20)
        except OSError:
            return
        try:
            await asyncio.wait_for(self.talk(kind, tenant, reader, writer), PATIENCE)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            if kind == "leaves early" and self.rng.random() < 0.5:
                writer.transport.abort()
            writer.close()

    async def talk(self, kind, tenant, reader, writer):
        if kind in ("garbage", "half"):
            whole = self.request(tenant, self.body(False))
            writer.write(self.rng.choice(GARBAGE) if kind == "garbage" else whole[: self.rng.randrange(10, len(whole))])
            await asyncio.wait_for(reader.read(2000), 7)
        elif kind == "asks twice":
            await self.ask_twice(tenant, reader, writer)
        elif kind == "leaves early":
            writer.write(self.request(tenant, self.body(self.rng.random() < 0.5)))
            await asyncio.sleep(self.rng.random() * 0.1)
        else:
            await self.ask_in_turn(kind, tenant, reader, writer)

    async def ask_in_turn(self, kind, tenant, reader, writer):
        body = self.rng.choice(SENSELESS) if kind == "senseless" else self.body(kind in STREAMS)
        if kind == "large":
            body["messages"][1]["content"] = "x" * self.rng.choice([3_000, 100_000, 400_000])
        seen = self.note(kind, tenant)
        writer.write(self.request(tenant, body))
        if kind == "pipelines":
            writer.write(self.request(tenant, self.body(False)))
        more = {"pipelines": 1, "keeps on": self.rng.randrange(1, 5)}.get(kind, 0)
        while await self.read(seen, reader) and more > 0:
            more -= 1
            seen = self.note(kind, tenant)
            if kind == "keeps on":
                writer.write(self.request(tenant, self.body(False)))

    async def ask_twice(self, tenant, reader, writer):
        key = f"soak-{self.rng.getrandbits(60):x}"
        request = self.request(tenant, self.body(False), f"idempotency-key: {key}\r\n")
        both = [self.note("asks twice", tenant), self.note("asks twice", tenant)]
        for seen in both:
            seen.key = key
        others, other = await asyncio.open_connection("127.0.0.1", GATEWAY)
        try:
            for one in (writer, other):
                one.write(request)
            reads = [self.read(seen, one) for seen, one in zip(both, (reader, others))]
            await asyncio.gather(*reads, return_exceptions=True)
        finally:
            other.close()

    def body(self, stream):
        words = self.rng.choices(["river", "stone", "bread", "über", "日本"], k=self.rng.choice([3, 20, 200, 600]))
        system = "You are a helpful assistant. " * self.rng.choice([0, 0, 5, 30])
        messages = [{"role": "system", "content": system}, {"role": "user", "content": " ".join(words)}]
        tokens = self.rng.choice([1, 5, 30, 120, 400])
        body = {"model": self.rng.choice(["stub", "other"]), "messages": messages, "max_tokens": tokens}
        return body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})

    def request(self, tenant, body, extra=""):
        data = json.dumps(body).encode()
        head = f"host: x\r\nauthorization: Bearer {KEYS[tenant]}\r\ncontent-type: application/json\r\n{extra}"
        return f"POST /v1/chat/completions HTTP/1.1\r\n{head}content-length: {len(data)}\r\n\r\n".encode() + data

    async def read(self, seen, reader):
        """Reads one answer; whether another can come on the connection."""
        try:
            seen.status, fields = await head_of(reader)
            seen.id, seen.reason = fields.get("x-request-id"), fields.get("x-tollgate-reason")
            seen.replayed = "x-tollgate-idempotency" in fields
            if "event-stream" in fields.get("content-type", ""):
                return await self.read_stream(seen, reader)
            said = json.loads(await reader.readexactly(int(fields["content-length"])))
            if seen.status == 200:
                seen.end, seen.usage = "whole", said["usage"]
            else:
                seen.end, seen.words = "refused", said["error"].get("message")
            return fields.get("connection") != "close"
        finally:
            seen.until = time.time()

    async def read_stream(self, seen, reader):
        seen.end = "cut"
        leaves = self.rng.randrange(1, 40) if seen.kind == "leaves" else None
        async for event in events_of(reader, 0.05 if seen.kind == "reads slowly" else 0):
            if seen.end == "done":
                seen.end = "something behind [DONE]"
            elif event == b"[DONE]":
                seen.end = "done"
            else:
                note_event(seen, json.loads(event))
            if leaves and seen.pieces >= leaves:
                seen.end = "left"
                return False
        return True


def note_event(seen, event):
    if "error" in event:
        seen.end, seen.reason = "error", event["error"].get("code") or event["error"].get("type")
        return
    seen.usage = event.get("usage") or seen.usage
    for choice in event.get("choices", []):
        seen.pieces += bool(choice["delta"].get("content"))
        seen.finish = choice.get("finish_reason") or seen.finish


async def head_of(reader):
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
    fields = (line.split(":", 1) for line in lines[1:] if ":" in line)
    return int(lines[0].split()[1]), {name.strip().lower(): value.strip() for name, value in fields}


async def events_of(reader, pause):
    """The data of each event of a body in chunks, to its terminator."""
    text = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        text += (await reader.readexactly(size + 2))[:-2]
        await asyncio.sleep(pause)
        *whole, text = text.split(b"\n\n")
        for event in whole:
            for line in event.split(b"\n"):
                if line.startswith(b"data: "):
                    yield line[6:]
    await reader.readexactly(2)


class Books:
    """The ledger beside what clients saw."""

    def __init__(self, rows, kills):
        self.rows, self.kills, self.wrong = {}, kills, []
        for row in rows:
            if row["request"] in self.rows:
                self.say("it is in the ledger twice", row)
            self.rows[row["request"]] = row

    def say(self, what, *about):
        self.wrong.append(" ".join([what + ":", *map(str, about)]))

    def compare(self, all_seen):
        keys = collections.defaultdict(list)
        for seen in all_seen:
            # Of what was in flight when the gateway was killed, nobody was promised more than its marks.
            if any(seen.since - 0.5 <= kill <= (seen.until or seen.since + PATIENCE) + 0.5 for kill in self.kills):
                continue
            self.look(seen, self.rows.get(seen.id))
            if seen.key and seen.end == "whole":
                keys[seen.key].append(seen)
        for key, both in keys.items():
            if len([seen for seen in both if not seen.replayed]) > 1:
                self.say("one idempotency key was served more than once", key, *both)
            if any(seen.usage != both[0].usage for seen in both):
                self.say("one idempotency key was answered in two ways", key, *both)

    def look(self, seen, row):
        if seen.end in ("whole", "done"):
            self.look_at_answer(seen, row)
        elif seen.end in ("left", "error"):
            if not row:
                self.say("it is not in the ledger", seen)
            elif row["output_tokens"] < seen.pieces:
                self.say("it is charged less than its client saw", seen, row)
            elif seen.end == "error" and row["outcome"] == "completed":
                self.say("its client was told of an error, and the ledger of none", seen, row)
        elif seen.end == "refused":
            if not seen.words:
                self.say("it was refused without a word", seen)
            if row and (row["output_tokens"] or row["outcome"] == "completed"):
                self.say("it was refused and charged", seen, row)
        elif not (seen.end == "nothing" and seen.kind == "pipelines"):
            # What is pipelined behind an answer that broke off is never looked at.
            self.say("it ended without a word", seen)

    def look_at_answer(self, seen, row):
        if seen.end == "done" and not (seen.finish and seen.usage):
            self.say("[DONE] without a reason or usage", seen)
        if seen.replayed:
            return
        if not row:
            self.say("it was answered, and is not in the ledger", seen)
            return
        told = seen.usage["prompt_tokens"], seen.usage["completion_tokens"]
        cached = (seen.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        if (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"]) != (*told, cached):
            self.say("its usage differs", seen, row)
        if row["outcome"] != "completed":
            self.say("it was answered, and the ledger says otherwise", seen, row)


async def live(world, seconds, seed, clients):
    all_seen, over = [], asyncio.Event()
    trouble = Trouble(world, random.Random(f"{seed} trouble"))
    each = [Client(random.Random(f"{seed} {number}"), all_seen) for number in range(clients)]
    idle = world.size()
    tasks = [asyncio.create_task(one.go_on(over)) for one in (trouble, *each)]
    await asyncio.sleep(seconds)
    over.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 2 * PATIENCE)
    print(f"memory MB and open files: at first {idle}, then {world.size()}; trouble: {dict(trouble.count)}")
    return all_seen


def soak(tollgate, seconds, seed, clients):
    with tempfile.TemporaryDirectory() as folder:
        world = World(tollgate, folder)
        try:
            all_seen = asyncio.run(live(world, seconds, seed, clients))
            world.gateway.send_signal(signal.SIGTERM)
            code = world.gateway.wait(timeout=30)
        finally:
            world.end()
        _, shown = world.ledger("show", "--format", "json", "--data-dir", f"{folder}/data")
        books = Books([json.loads(line) for line in shown.splitlines()], world.kills)
        books.compare(all_seen)
        verified, words = world.ledger("verify", "--config", world.file)
    if code or verified:
        books.say("exit statuses of gateway and `ledger verify`", code, verified, words)
    tell(all_seen, books)
    return not books.wrong


def tell(all_seen, books):
    for (end, reason), count in collections.Counter((seen.end, seen.reason) for seen in all_seen).most_common():
        print(f"{count:7,} {end} {reason or ''}")
    outcomes = collections.Counter(row["outcome"] for row in books.rows.values())
    print(f"{len(books.rows):,} in the ledger: {dict(outcomes.most_common())}")
    print(f"{len(books.wrong)} things that are not so")
    for line in books.wrong[:40]:
        print(" ", line)


if __name__ == "__main__":
    args = sys.argv[1:] + [None] * 4
    if not args[0]:
        raise SystemExit(__doc__)
    sys.exit(not soak(os.path.abspath(args[0]), float(args[1] or 300), int(args[2] or 1), int(args[3] or 60)))
