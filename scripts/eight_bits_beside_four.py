#!/usr/bin/env python3
"""Compares a model file with its copy of eight-bit weights: what they say, and how fast.

    scripts/eight_bits_beside_four.py --tollgate BIN --llama-server BIN --four A.gguf --eight B.gguf

Each is served by a Tollgate of its own, asked in turns. Texts are greedy, of one request at a time;
how many part by rounding alone is told by asking the first once more, eight at a time. Of a fixed
text each says how likely its every token is: it is asked for one token after each beginning, and
made to say the one that comes (`logit_bias`), whose likelihood is told as if it had been free.
llama.cpp's server only tells which tokens the text has.
"""

import argparse
import asyncio
import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import urllib.request

from engine_beside_llama_server import CONTEXT, SEQUENCES, decode, free_port, prefill, start

STORY = (
    "The keeper of the gate had counted carts for thirty years, and he did not need to look up to "
    "know what a cart carried. Hay is quiet. Stones make the axle complain, and wine makes the "
    "driver careful. On market days he opened both halves of the gate before the sun was up, "
    "because a line that has once begun to grow does not stop growing by itself. A cart that waits "
    "blocks the one behind it, and that one blocks the road. So he let the small carts pass first "
    "when there was room beside a large one, and never so many that the large one waited for ever. "
    "In winter the river froze, and people walked across it without paying. He did not mind. The "
    "toll was for the bridge, and nobody had used the bridge. When the old lord died, his son asked "
    "how much the gate earned in a year, and the keeper told him to the penny, and then told him "
    "how much it would earn if the price were doubled, which was less."
)
ABOUT = ["a bridge", "the sea", "bread", "a clock", "winter", "the moon", "a river", "music"]
ASKED = ["Explain in a few words what {} is for.", "Tell a short story about {}.",
         "List three facts about {}.", "Once upon a time there was {}, and"]


def post(port, path, body):
    data = json.dumps(body).encode()
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, head)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def say(port, prompt):
    body = {"model": "m", "prompt": prompt, "max_tokens": 48, "temperature": 0}
    body |= {"ignore_eos": True}
    return post(port, "/v1/completions", body)["choices"][0]["text"]


async def say_all(port, prompts, at_once):
    gate = asyncio.Semaphore(at_once)

    async def one(prompt):
        async with gate:
            return await asyncio.to_thread(say, port, prompt)

    return await asyncio.gather(*(one(prompt) for prompt in prompts))


def likelihoods(port, tokens):
    """Of each token after the first, by natural logarithm."""
    told = []
    for end in range(1, len(tokens)):
        body = {"model": "m", "prompt": tokens[:end], "max_tokens": 1, "temperature": 0}
        body |= {"logprobs": 1, "logit_bias": {str(tokens[end]): 100}}
        choice = post(port, "/v1/completions", body)["choices"][0]
        told.append(choice["logprobs"]["token_logprobs"][0])
    return told


def compare(name, some, others):
    pairs = list(zip(some, others))
    same = sum(one == other for one, other in pairs)
    alike = sum(len(os.path.commonprefix(pair)) for pair in pairs) / sum(map(len, some))
    print(f"{name}: {same} of {len(pairs)} texts are the same, {alike:.0%} of all letters come "
          "before they part")


def quality(ports, tokenizer):
    prompts = [ask.format(what) for ask in ASKED for what in ABOUT]
    four, eight = (asyncio.run(say_all(port, prompts, 1)) for port in ports)
    compare("four bits beside eight", four, eight)
    compare("four bits, eight at a time", four, asyncio.run(say_all(ports[0], prompts, 8)))
    tokens = post(tokenizer, "/tokenize", {"content": STORY})["tokens"]
    sides = [likelihoods(port, tokens) for port in ports]
    apart = [abs(one - other) for one, other in zip(*sides)]
    for name, side in zip(["four", "eight"], sides):
        print(f"{name} bits: perplexity {math.exp(-statistics.mean(side)):.3f} of {len(side)} tokens")
    print(f"a token's likelihood: {statistics.mean(apart):.4f} apart in the mean, {max(apart):.3f} "
          "at most (natural logarithms)")


def speed(ports, rounds, seed):
    told = [{}, {}]
    for round in range(seed, seed + rounds):
        for run in [prefill, decode(1), decode(8), decode(32)]:
            for side, port in zip(told, ports):
                for name, value in run(random.Random(round), port).items():
                    side.setdefault(name, []).append(value)
    print(f"{f'medians of {rounds} rounds':34}{'four':>10}{'eight':>10}{'ratio':>8}")
    for name, four in told[0].items():
        four, eight = statistics.median(four), statistics.median(told[1][name])
        print(f"{name:34}{four:10.3g}{eight:10.3g}{eight / four:8.2f}")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ["tollgate", "llama-server", "four", "eight"]:
        options.add_argument(f"--{name}", required=True)
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    ports = [free_port() for _ in range(3)]
    children = []
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "w") as log:
        try:
            for port, model in zip(ports, [given.four, given.eight]):
                config = f"{folder}/{port}.yaml"
                with open(config, "w") as file:
                    file.write(
                        f"listen: 127.0.0.1:{port}\ndata_dir: {folder}/{port}\n"
                        "identity: { anonymous: allow }\n"
                        f"models: [{{ name: m, path: {os.path.abspath(model)},"
                        f" threads: {given.threads}, max_sequences: {SEQUENCES},"
                        f" context: {CONTEXT}, kv_tokens: {SEQUENCES * CONTEXT},"
                        " prefix_cache: on }]\n"
                    )
                command = [given.tollgate, "serve", "--config", config]
                children.append(start(command, port, "/ready", log))
            command = [given.llama_server, "-m", given.four, "--host", "127.0.0.1", "--threads", "1"]
            command += ["--port", str(ports[2]), "--ctx-size", "256", "--parallel", "1"]
            children.append(start(command, ports[2], "/health", log))
            quality(ports[:2], ports[2])
            os.killpg(children.pop().pid, signal.SIGTERM)
            if given.rounds > 0:
                speed(ports[:2], given.rounds, given.seed)
        finally:
            for child in children:
                os.killpg(child.pid, signal.SIGTERM)


if __name__ == "__main__":
    main()
