"""The GGUF reader: agreement with the reference writer, and one clean error per broken file."""

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turing_engine.models.gguf import GgufFile
from turing_protocol.errors import Code, TuringError


def write_sample(path: Path) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("a.u32", 7)
    writer.add_int64("a.i64", -9)
    writer.add_float32("a.f32", 0.5)
    writer.add_bool("a.flag", True)
    writer.add_string("a.text", "naïve 🫠")
    writer.add_array("a.words", ["", "x", "🥹"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.flags", [True, False])
    writer.add_tensor("f32", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor(
        "q8", np.zeros((4, 68), np.uint8), raw_dtype=GGMLQuantizationType.Q8_0
    )  # 4 rows of 2 blocks
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_sample(tmp_path_factory.mktemp("gguf") / "sample.gguf").read_bytes()


def test_reads_what_the_reference_writer_wrote(tmp_path: Path) -> None:
    file = GgufFile(write_sample(tmp_path / "m.gguf"))
    facts = {key: value for key, value in file.metadata.items() if key.startswith("a.")}
    assert facts == {
        "a.u32": 7,
        "a.i64": -9,
        "a.f32": 0.5,
        "a.flag": True,
        "a.text": "naïve 🫠",
        "a.words": ["", "x", "🥹"],
        "a.ints": [1, -2, 3],
        "a.flags": [True, False],
    }
    assert facts["a.flag"] is True
    assert file.metadata["general.architecture"] == "llama"
    assert file.tensors["f32"].shape == (2, 3)
    assert file.tensors["q8"].kind == "Q8_0"
    assert file.tensors["q8"].shape == (4, 64)
    assert file.tensors["q8"].nbytes == 4 * 68
    values = file.data("f32").view(np.float32)
    assert values.tolist() == [0, 1, 2, 3, 4, 5]
    assert not values.flags.writeable


def test_unknown_tensor_is_a_key_error(tmp_path: Path) -> None:
    file = GgufFile(write_sample(tmp_path / "m.gguf"))
    with pytest.raises(KeyError):
        file.data("nope")


def header(tensors: int, keys: int, *, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(name: str, dims: list[int], kind: int, offset: int) -> bytes:
    packed = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    return text(name) + packed


def padded(head: bytes, data: int) -> bytes:
    return head + bytes(-len(head) % 32) + bytes(data)


HUGE = 2**63
BROKEN = {
    "empty": (b"", "too short"),
    "magic": (header(0, 0, magic=b"GGML"), "no GGUF magic"),
    "big-endian": (header(0, 0, version=3 << 24), "little-endian"),
    "tensor count": (header(HUGE, 0), "declares 9223372036854775808 tensors"),
    "key count": (header(0, HUGE), "declares 9223372036854775808 keys"),
    "key length": (header(0, 1) + struct.pack("<Q", HUGE), "metadata key 0"),
    "key twice": (header(0, 2) + (text("k") + struct.pack("<II", 4, 1)) * 2, "twice"),
    "value type": (header(0, 1) + text("k") + struct.pack("<I", 99), "'k' has type 99"),
    "nested array": (header(0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "'k' has type 9"),
    "array length": (
        header(0, 1) + text("k") + struct.pack("<IIQ", 9, 4, HUGE),
        "9223372036854775808 items of 'k'",
    ),
    "string count": (
        header(0, 1) + text("k") + struct.pack("<IIQ", 9, 8, HUGE),
        "9223372036854775808 strings of 'k'",
    ),
    "string length": (
        header(0, 1) + text("k") + struct.pack("<IIQQ", 9, 8, 1, HUGE),
        "string 0 of 'k'",
    ),
    "not utf-8": (
        header(0, 1) + text("k") + struct.pack("<IQ", 8, 2) + b"\xff\xfe",
        "not UTF-8",
    ),
    "alignment": (
        header(0, 1) + text("general.alignment") + struct.pack("<II", 4, 24),
        "general.alignment is 24",
    ),
    "no dimensions": (header(1, 0) + tensor("t", [], 0, 0), "0 dimensions"),
    "five dimensions": (header(1, 0) + tensor("t", [1] * 5, 0, 0), "5 dimensions"),
    "tensor type": (header(1, 0) + tensor("t", [4], 16, 0), "'t' has GGML type 16"),
    "zero dimension": (header(1, 0) + tensor("t", [0], 0, 0), "'t' has shape"),
    "broken block": (header(1, 0) + tensor("t", [33], 8, 0), "not whole Q8_0 blocks"),
    "huge tensor": (header(1, 0) + tensor("t", [2**62, 2**62], 0, 0), "truncated"),
    "huge offset": (header(1, 0) + tensor("t", [4], 0, HUGE), "truncated"),
    "misaligned": (padded(header(1, 0) + tensor("t", [4], 0, 8), 64), "not aligned"),
    "tensor twice": (padded(header(2, 0) + tensor("t", [4], 0, 0) * 2, 64), "twice"),
    "overlap": (
        padded(header(2, 0) + tensor("a", [16], 0, 0) + tensor("b", [4], 0, 32), 64),
        "'a' and 'b' overlap",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_names_what_is_wrong(case: str, tmp_path: Path) -> None:
    data, words = BROKEN[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(TuringError, match=words) as caught:
        GgufFile(path)
    assert caught.value.code is Code.INVALID
    assert caught.value.param == "model"
    assert caught.value.message.startswith("bad.gguf: ")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GgufFile(tmp_path / "none.gguf")


def test_every_truncation_is_refused(sample: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    needed = len(sample) - 16  # the writer pads the last tensor's 272 bytes to the alignment
    for length in range(needed):
        path.write_bytes(sample[:length])
        with pytest.raises(TuringError):
            GgufFile(path)
    path.write_bytes(sample[:needed])
    assert set(GgufFile(path).tensors) == {"f32", "q8"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(position=st.integers(0, 2**16), value=st.integers(0, 255))
def test_a_flipped_byte_reads_or_is_refused(
    sample: bytes, tmp_path: Path, position: int, value: int
) -> None:
    data = bytearray(sample)
    data[position % len(data)] = value
    path = tmp_path / "flip.gguf"
    path.write_bytes(data)
    try:
        file = GgufFile(path)
    except TuringError:
        return
    for name in file.tensors:
        assert file.data(name).nbytes == file.tensors[name].nbytes
