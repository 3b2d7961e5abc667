"""How the torch runner is made, and how its failures are told apart."""

from typing import Any

import msgspec
import pytest
import torch

from engine.checkpoints import checkpoint, prompt
from engine.driving import GREEDY, generate
from turing_engine.models.decoder import Decoder
from turing_engine.plan.plan import Chunk, Plan, Start
from turing_engine.run.runner import RUNNERS, DeviceError, RunnerSpec
from turing_engine.run.torch_runner import TorchRunner
from turing_protocol.errors import Code, TuringError

SPEC = RunnerSpec(
    model="",
    pages=4,
    kv_bytes=0,
    max_running=2,
    max_step_tokens=256,
    context=256,
    threads=1,
)


def spec(**changes: Any) -> RunnerSpec:
    changes.setdefault("model", str(checkpoint("llama")[0]))
    return msgspec.structs.replace(SPEC, **changes)


def test_is_registered() -> None:
    runner = RUNNERS.make("torch", spec())
    assert isinstance(runner, TorchRunner)


@pytest.mark.parametrize(
    ("changes", "code", "param", "words"),
    [
        ({"device": "warp"}, Code.INVALID, "device", "device 'warp'"),
        ({"device": "meta:x"}, Code.INVALID, "device", "device 'meta:x'"),
        ({"dtype": "int8"}, Code.INVALID, "dtype", "dtype 'int8'"),
        ({"model": "/nowhere/model"}, Code.NOT_FOUND, "model", "no model at"),
        ({"pages": 0, "kv_bytes": 1000}, Code.INVALID, "kv_bytes", "1000 bytes hold no page"),
    ],
)
def test_says_what_cannot_be_had(
    changes: dict[str, Any], code: Code, param: str, words: str
) -> None:
    with pytest.raises(TuringError, match=words) as caught:
        TorchRunner(spec(**changes))
    assert caught.value.code is code
    assert caught.value.param == param


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(TuringError, match="device 'cuda'"):
        TorchRunner(spec(device="cuda"))


def test_threads_and_types() -> None:
    runner = TorchRunner(spec())
    assert torch.get_num_threads() == 1
    assert runner.kv_bytes_per_token == 2 * 3 * 2 * 16 * 4
    half = TorchRunner(spec(dtype="bfloat16"))
    assert half.kv_bytes_per_token == 2 * 3 * 2 * 16 * 2
    assert len(generate(half, prompt(100), 5)) == 5


def test_a_broken_device_is_told_apart_from_a_broken_step(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = TorchRunner(spec())
    plan = Plan(1, [Chunk(0, 0, [5], [0], True)], [Start(0, GREEDY, [5], [], [])], [])
    for error, seen in (
        (torch.AcceleratorError("CUDA error: an illegal access\nmore"), DeviceError),
        (RuntimeError("out of memory"), RuntimeError),
    ):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "forward", fail)
            with pytest.raises(seen, match=r"illegal access$|out of memory") as caught:
                runner.run(plan)
        assert isinstance(caught.value, DeviceError) is (seen is DeviceError)
    assert len(runner.run(plan).rows[0].ids) == 1
