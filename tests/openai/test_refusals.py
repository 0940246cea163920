"""What an `openai` client gets when it asks wrongly: its own exceptions, with a reason to act on."""

import json
import re

import openai
import pytest

from answers import messages, whole
from conftest import KEYS, MAX_BODY, MODEL, eventually

CHAT = "/v1/chat/completions"
WRONG_KEY = "sk-wrong-7d41c09e55b2a8f3"
TOO_LONG = "word " * 20_000
HELLO = {"model": MODEL, "messages": messages("Say hi."), "max_tokens": 1}


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_not_found(client, stream):
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(
            model="nonesuch", messages=messages("Say hi."), stream=stream
        )
    assert refused.value.code == "model_not_found"
    assert "nonesuch" in refused.value.message


def test_an_unknown_model_cannot_be_retrieved(client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("nonesuch")
    assert refused.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("param", "wrong"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("max_tokens", -5),
        ("max_tokens", "many"),
        ("top_p", 3),
        ("stop", 7),
        ("messages", []),
        ("messages", "hello"),
        ("messages", [{"role": "nobody", "content": "hi"}]),
        ("stream", "yes"),
    ],
)
def test_a_bad_parameter_is_named(client, param, wrong):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=MODEL, messages=messages("Say hi."), extra_body={param: wrong}
        )
    assert refused.value.param is not None
    assert refused.value.param.startswith(param)
    assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize("key", [WRONG_KEY, "x" * 10_000, f"{KEYS['quiet']}x"])
def test_a_wrong_key_is_refused_and_not_repeated(gateway, key):
    with pytest.raises(openai.AuthenticationError) as refused:
        gateway.client(key=key).chat.completions.create(**HELLO)
    answer = refused.value.response
    assert refused.value.code == "invalid_api_key"
    assert key[3:] not in answer.text + str(answer.headers)


def test_a_prompt_over_the_context_is_refused_with_both_numbers(client):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model=MODEL, messages=messages(TOO_LONG), stream=stream
            )
        assert refused.value.code == "context_length_exceeded"
        numbers = [int(found) for found in re.findall(r"\d+", refused.value.message)]
        prompt_tokens = max(numbers)
        assert prompt_tokens >= 20_000
        assert any(0 < context < prompt_tokens for context in numbers)


def test_a_body_over_the_bound_is_refused_as_json(client):
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(
            model=MODEL, messages=messages("x" * (MAX_BODY + MAX_BODY // 2))
        )
    assert refused.value.status_code == 413
    assert refused.value.body["message"]
    # A body just under the bound is read, and fails for what is in it instead.
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=MODEL, messages=messages("word " * ((MAX_BODY - 4096) // 5))
        )
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("status", "method", "path", "body", "key"),
    [
        (400, "POST", CHAT, "{not json", KEYS["quiet"]),
        (400, "POST", CHAT, "[]", KEYS["quiet"]),
        (400, "POST", CHAT, {"model": MODEL}, KEYS["quiet"]),
        (400, "POST", CHAT, HELLO | {"temperature": "hot"}, KEYS["quiet"]),
        (400, "POST", CHAT, HELLO | {"messages": messages(TOO_LONG)}, KEYS["quiet"]),
        (400, "POST", "/v1/completions", {"model": MODEL, "prompt": 7}, KEYS["quiet"]),
        (401, "POST", CHAT, HELLO, None),
        (401, "POST", CHAT, HELLO, WRONG_KEY),
        (401, "GET", "/v1/models", None, WRONG_KEY),
        (404, "POST", CHAT, HELLO | {"model": "nonesuch"}, KEYS["quiet"]),
        (404, "GET", "/v1/models/nonesuch", None, KEYS["quiet"]),
        (404, "GET", "/v1/nonesuch", None, KEYS["quiet"]),
        (405, "GET", CHAT, None, KEYS["quiet"]),
        (405, "POST", "/v1/models", {}, KEYS["quiet"]),
        (413, "POST", CHAT, " " * (MAX_BODY + 1), KEYS["quiet"]),
    ],
)
def test_every_refusal_has_the_shape_that_clients_parse(
    gateway, status, method, path, body, key
):
    found, headers, text = gateway.request(
        method, path, body, key, {"Content-Type": "application/json"}
    )
    assert found == status, text
    assert headers["Content-Type"].startswith("application/json")
    assert headers["x-request-id"]
    [(name, error)] = json.loads(text).items()
    assert name == "error"
    assert {"message", "type", "param", "code"} <= error.keys()
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str) and error["type"]
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)


def test_refusals_leave_nothing_in_flight(gateway, client):
    for wrong in ({"temperature": "hot"}, {"model": "nonesuch"}, {"messages": []}):
        assert gateway.request("POST", CHAT, HELLO | wrong)[0] in {400, 404}
    assert eventually(lambda: gateway.in_flight() == 0, seconds=1)
    assert whole(client, "Say hi.", max_tokens=1)


def test_the_log_holds_neither_keys_nor_prompts(gateway, client):
    secret = "the password is marmalade"
    assert whole(client, secret, max_tokens=1)
    with pytest.raises(openai.AuthenticationError):
        gateway.client(key=WRONG_KEY).models.list()
    log = gateway.log()
    assert secret not in log
    for key in [WRONG_KEY, *KEYS.values()]:
        assert key not in log
