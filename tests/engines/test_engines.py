"""Real engines behind Tollgate: what they say arrives, and however they end, so does that."""

import json
import os
import signal
import subprocess
import threading

import openai
import pytest

from conftest import BINARY, Gateway, eventually, page, vllm

SAY = [{"role": "user", "content": "Count from one to twenty in words."}]


def stream(client, **more):
    asked = {"model": "m", "messages": SAY, "stream": True, "max_tokens": 400, **more}
    return client.chat.completions.create(**asked)


def begun(client, **more):
    """A long stream, a token of which has come."""
    answer = stream(client, extra_body={"ignore_eos": True}, max_tokens=1500, **more)
    for chunk in answer:
        if chunk.choices and chunk.choices[0].delta.content:
            return answer
    raise AssertionError("a stream without a token")


def test_a_stream_and_a_whole_answer_are_the_engines_own(engine, gateway):
    asked = {"messages": SAY, "temperature": 0, "max_tokens": 24, "seed": 1}
    direct = openai.OpenAI(base_url=f"http://127.0.0.1:{engine.port}/v1", api_key="-", max_retries=0)
    there = direct.chat.completions.create(model="smollm2", **asked)
    here = gateway.client().chat.completions.create(model="m", **asked)
    assert here.choices[0].message.content == there.choices[0].message.content
    assert here.usage.completion_tokens == there.usage.completion_tokens == 24
    chunks = list(stream(gateway.client(), **asked, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == there.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 24 and not chunks[-1].choices


def test_usage_is_charged_whether_or_not_the_client_asks(engine, gateway):
    chunks = list(stream(gateway.client(), max_tokens=12, extra_body={"ignore_eos": True}))
    assert all(chunk.usage is None for chunk in chunks)
    tokens = lambda: gateway.metric("tollgate_tokens_total")
    eventually("it is charged", lambda: (tokens() or 0) > 12)


def test_a_client_that_leaves_stops_the_engine(engine, gateway):
    answer = begun(gateway.client())
    eventually("the engine runs it", lambda: engine.running() == 1)
    answer.response.close()
    eventually("the engine has stopped", lambda: engine.running() == 0, 10)


def test_what_the_engine_says_of_itself_is_read(engine, gateway):
    answer = begun(gateway.client())
    shown = lambda: gateway.metric("tollgate_engine_running_sequences")
    eventually("it is seen to run", lambda: shown() == 1)
    answer.response.close()
    eventually("and to have stopped", lambda: shown() == 0)


def test_an_engine_that_is_killed_ends_its_stream_with_an_error(engine, gateway):
    answer = begun(gateway.client())
    engine.send(signal.SIGKILL)
    with pytest.raises(openai.APIError):
        for _ in answer:
            pass
    with pytest.raises(openai.APIStatusError) as refused:
        gateway.client().chat.completions.create(model="m", messages=SAY)
    assert refused.value.status_code in (502, 503)
    eventually("it is said not to be ready", lambda: page(gateway.port, "/ready") is None)


def test_an_engine_that_stands_still_is_cut_off(engine, gateway):
    answer = begun(gateway.client())
    engine.send(signal.SIGSTOP)
    with pytest.raises(openai.APIError):
        for _ in answer:
            pass
    engine.send(signal.SIGCONT)
    eventually("it is asked again", lambda: page(gateway.port, "/ready") is not None)
    eventually("and serves", lambda: serves(gateway))


def serves(gateway):
    try:
        return gateway.client().chat.completions.create(model="m", messages=SAY, max_tokens=2)
    except openai.APIError:
        return None


def test_a_mistake_of_the_caller_is_told_in_the_engines_words(engine, gateway):
    long = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(openai.BadRequestError) as refused:
        gateway.client().chat.completions.create(model="m", messages=long, max_tokens=5)
    assert refused.value.message
    assert serves(gateway)


def test_a_full_queue_is_a_503_and_not_a_good_stream(tmp_path):
    engine = vllm(tmp_path, ["--max-num-queued-reqs", "1", "--max-num-seqs", "1"])
    gateway = Gateway(engine, tmp_path)
    held = [begun(gateway.client())]
    refused = 0
    for _ in range(6):
        try:
            held.append(stream(gateway.client(), timeout=2))
        except openai.InternalServerError as error:
            refused += error.status_code == 503
        except openai.APITimeoutError:
            pass
    assert refused > 0
    gateway.end()
    engine.end()


def test_one_tenants_prompt_is_not_found_in_anothers_cache(tmp_path):
    engine = vllm(tmp_path)
    gateway = Gateway(engine, tmp_path)
    long = [{"role": "user", "content": "A story of rivers, hills and long roads. " * 60}]

    def cached(tenant):
        asked = {"model": "m", "messages": long, "max_tokens": 1}
        usage = gateway.client(tenant).chat.completions.create(**asked).usage
        return (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0

    assert cached("a") == 0
    assert cached("a") > 0
    assert cached("b") == 0
    gateway.end()
    engine.end()


def test_who_has_had_less_goes_first_inside_the_engine(tmp_path):
    engine = vllm(tmp_path, ["--max-num-seqs", "1"])
    gateway = Gateway(engine, tmp_path, upstream=", priority: on")
    held = begun(gateway.client("a"))
    order = []

    def ask(tenant):
        asked = {"model": "m", "messages": SAY, "max_tokens": 2}
        gateway.client(tenant).chat.completions.create(**asked)
        order.append(tenant)

    asking = []
    for waiting, tenant in enumerate("ab", start=1):
        asking.append(threading.Thread(target=ask, args=tenant))
        asking[-1].start()
        eventually("it waits inside the engine", lambda: engine.waiting() == waiting)
    held.response.close()
    for one in asking:
        one.join(60)
    assert order == ["b", "a"]
    gateway.end()
    engine.end()


def test_a_prompt_is_counted_as_the_engine_counts_it(tmp_path):
    engine = vllm(tmp_path)
    tokenizer = os.path.join(os.environ["VLLM_MODEL"], "tokenizer.json")
    gateway = Gateway(engine, tmp_path, model=f"    tokenizer: {tokenizer}")
    texts = ["Say hello.", "Bonjour, \u00e7a va ? \u4f60\u597d \U0001f642 " * 20, "def f(x):\n    return x ** 2\n" * 50]
    client = gateway.client()
    there = [client.completions.create(model="m", prompt=text, max_tokens=1).usage.prompt_tokens for text in texts]
    # One that is cut off before the engine has counted is charged what was counted here.
    for text in texts:
        cut = client.completions.create(model="m", prompt=text, max_tokens=500, stream=True, extra_body={"ignore_eos": True})
        next(iter(cut))
        cut.response.close()
    eventually("all have ended", lambda: gateway.metric("tollgate_in_flight_requests") == 0)
    gateway.end()
    shown = [BINARY, "ledger", "show", "--data-dir", tmp_path / "data", "--format", "json"]
    rows = [json.loads(line) for line in subprocess.check_output(shown).splitlines()]
    here = [row["prompt_tokens"] for row in rows if row["counted"] == "estimated"]
    assert here == there
    engine.end()
