"""What the native runner adds to the contract: its options, its refusals, and no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.checkpoints import checkpoint, prompt, reference_greedy
from engine.driving import generate
from turing_engine.plan.plan import Chunk, Plan, Start
from turing_engine.run.native import NativeRunner
from turing_engine.run.runner import RunnerSpec
from turing_kernels import native
from turing_protocol.errors import TuringError
from turing_protocol.sampling import Sampling


def make(model: Path, **options: object) -> NativeRunner:
    spec = {"pages": 16, "kv_bytes": 0, "max_running": 4, "max_step_tokens": 256, "context": 1024}
    return NativeRunner(RunnerSpec(model=str(model), **(spec | options)))  # type: ignore[arg-type]


def test_float32_writes_what_transformers_writes() -> None:
    folder, model = checkpoint("qwen3")
    runner = make(folder, dtype="float32")
    assert generate(runner, prompt(60), 24) == reference_greedy(model, prompt(60), 24)
    runner.close()


def test_pages_of_float32_take_twice_the_room() -> None:
    folder, _ = checkpoint("qwen3")
    sizes = []
    for dtype in ("auto", "float32"):
        runner = make(folder, dtype=dtype)
        sizes.append(runner.kv_bytes_per_token)
        runner.close()
    assert sizes[1] == 2 * sizes[0]


def test_quantising_changes_what_is_computed() -> None:
    folder, _ = checkpoint("qwen3")
    texts = []
    for quantize in ("none", "w8", "w4"):
        runner = make(folder, quantize=quantize)
        texts.append(generate(runner, prompt(60), 24))
        runner.close()
    assert texts[0] != texts[2]
    assert texts[1] != texts[2]


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"dtype": "float64"}, "dtype", "dtype 'float64': use auto, int8, float32"),
        ({"quantize": "w2"}, "quantize", "quantize 'w2': use none, w4, w8"),
        ({"pages": 0, "kv_bytes": 100}, "model", "100 bytes hold no page of"),
        ({"threads": 2000}, "model", "threads must be from 0 to 1024"),
    ],
)
def test_what_cannot_be_had_is_named(options: dict[str, object], param: str, words: str) -> None:
    folder, _ = checkpoint("qwen3")
    with pytest.raises(TuringError, match=words) as caught:
        make(folder, **options)
    assert caught.value.param == param


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(TuringError, match="nowhere: No such file"):
        make(tmp_path / "nowhere")


def test_a_step_beyond_its_limits_is_refused() -> None:
    folder, _ = checkpoint("qwen3")
    runner = make(folder)
    start = Start(0, Sampling(temperature=0), [], [], [])
    with pytest.raises(ValueError, match="a step of 257 rows is larger than 256"):
        runner.run(Plan(1, [Chunk(0, 0, [5] * 257, list(range(5)), True)], [start], []))
    runner.close()


def test_closing_twice_is_harmless() -> None:
    folder, _ = checkpoint("qwen3")
    runner = make(folder)
    runner.close()
    runner.close()


def test_serving_needs_no_torch() -> None:
    folder, _ = checkpoint("qwen3")
    code = f"""
import sys
from turing_engine.plan.plan import Chunk, Plan, Start
from turing_engine.run.native import NativeRunner
from turing_engine.run.runner import RunnerSpec
from turing_protocol.sampling import Sampling
runner = NativeRunner(RunnerSpec(model={str(folder)!r}, pages=4, kv_bytes=0, max_running=2,
                                 max_step_tokens=64, context=128))
start = Start(0, Sampling(seed=1), [5], [], [])
runner.run(Plan(1, [Chunk(0, 0, [5], [0], True)], [start], []))
print({{"torch", "transformers"}} & set(sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_the_library_says_what_it_can_run(tmp_path: Path) -> None:
    folder, _ = checkpoint("qwen3")
    odd, _ = checkpoint("llama-biased")
    assert native.unsupported(str(folder)) is None
    assert "head size of 24" in str(native.unsupported(str(odd)))
    assert "was not built" in str(native.unsupported(str(folder), str(tmp_path / "lib.so")))


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "lib.so"
    broken.write_bytes(b"not a library" * 100)
    assert "invalid ELF header" in str(native.unavailable(str(broken)))
