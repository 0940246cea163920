"""How requests and the process end: clients that leave, the start, and the drain."""

from concurrent.futures import ThreadPoolExecutor

from answers import messages, open_stream, read_stream, whole
from conftest import MODEL, eventually

LONG = "Write a very long story about a journey around the world."
CHAT = "/v1/chat/completions"


def test_a_client_that_leaves_mid_stream_frees_its_place_within_a_second(gateway, client):
    for _ in range(4):
        stream = open_stream(client, LONG, max_tokens=2000)
        assert next(iter(stream)).id
        assert gateway.in_flight() >= 1
        stream.close()
        assert eventually(lambda: gateway.in_flight() == 0, seconds=1)
    assert whole(client, "Say hi.", max_tokens=1)


def test_it_is_ready_within_five_seconds(own_gateway):
    _, seconds = own_gateway
    assert seconds < 5


def test_a_drain_lets_eight_streams_finish_and_refuses_a_late_request(own_gateway):
    gateway, _ = own_gateway
    client = gateway.client()
    streams = [open_stream(client, LONG, max_tokens=100) for _ in range(8)]
    readers = [iter(stream) for stream in streams]
    for reader in readers:
        assert next(reader).id  # All of them run before the signal comes.
    gateway.terminate()

    with ThreadPoolExecutor(len(readers)) as pool:
        endings = [pool.submit(read_stream, reader) for reader in readers]
        assert eventually(lambda: gateway.request("GET", "/ready", key=None)[0] == 503, 2)
        late = {"model": MODEL, "messages": messages("Say hi."), "max_tokens": 1}
        status, headers, text = gateway.request("POST", CHAT, late)
        assert status == 503, text
        assert int(headers["Retry-After"]) >= 1
        assert gateway.request("GET", "/health", key=None)[0] == 200
        for ending in endings:
            text, reasons = ending.result(timeout=120)
            assert text
            assert reasons in (["stop"], ["length"])
    assert gateway.process.wait(timeout=30) == 0
