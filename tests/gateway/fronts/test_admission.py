"""The dry run of admission over HTTP."""

from fakes.generator import Gateway
from turing_protocol.lanes import Lane

PATH = "/v1/admission/check"
MESSAGES = [{"role": "user", "content": "hi"}]


def test_a_chat_body_is_judged_under_its_controls() -> None:
    gateway = Gateway()
    body = {"model": "fake", "messages": MESSAGES, "n": 2, "turing": {"lane": "batch"}}
    reply = gateway.post(PATH, body)
    assert reply.status_code == 200
    found = reply.json()
    assert (found["verdict"], found["prompt_tokens"]) == ("admit", len("user:hi\n"))
    assert found.keys() >= {"reason", "retry_after_ms", "pages", "queue_ahead", "expected_ttft_ms"}
    (call,) = gateway.generator.calls
    assert (call.lane, call.choices) == (Lane.BATCH, 2)


def test_a_bad_body_is_refused_by_its_field() -> None:
    reply = Gateway().post(PATH, {"model": "fake", "messages": MESSAGES, "n": 0})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n")
