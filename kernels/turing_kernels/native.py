"""The native library ``turing_native``, loaded with ctypes: one call computes a whole step.

The library is looked for in the package folder, where a wheel puts it. In development it is found
in ``build/native`` of the checkout (``cmake -S . -B build/native && cmake --build build/native``).
"""

import ctypes
import sys
from collections.abc import Sequence
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_void_p,
)
from functools import lru_cache
from pathlib import Path
from typing import Final

ABI_VERSION: Final = 2
ERROR_SIZE: Final = 1024
NAME: Final = "libturing_native.dylib" if sys.platform == "darwin" else "libturing_native.so"
QUANTIZE: Final = {"none": 0, "w4": 4, "w8": 8}


class NativeError(ValueError):
    """What the native library says when it cannot do what it is asked."""


class Options(Structure):
    """``turing_options``."""

    _fields_ = (
        ("path", c_char_p),
        ("isa", c_char_p),
        ("threads", c_int32),
        ("quantize", c_int32),
        ("exact", c_int32),
        ("slots", c_int32),
        ("max_rows", c_int32),
        ("pages", c_int64),
        ("kv_bytes", c_int64),
    )


class Info(Structure):
    """``turing_info``."""

    _fields_ = (
        ("pages", c_int64),
        ("kv_bytes_per_token", c_int64),
        ("vocab_size", c_int32),
        ("context", c_int32),
        ("threads", c_int32),
        ("isa", c_char_p),
    )


class Sampling(Structure):
    """``turing_sampling``."""

    _fields_ = (
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("repetition_penalty", c_float),
        ("frequency_penalty", c_float),
        ("presence_penalty", c_float),
        ("top_k", c_int32),
        ("min_tokens", c_int32),
        ("logprobs", c_int32),
        ("greedy", c_int32),
        ("seed", c_int64),
    )


class Ids(Structure):
    """``turing_ids``: ``count`` int32 numbers at ``data``, which the caller keeps alive."""

    _fields_ = (("data", c_void_p), ("count", c_int64))


class Step(Structure):
    """``turing_step``: addresses of int32 arrays, which the caller keeps alive.

    ``masks`` is 0 or the address of one pointer per chunk, 0 for chunks that may sample every id.
    """

    _fields_ = (
        ("chunks", c_int32),
        ("slots", c_void_p),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("page_counts", c_void_p),
        ("samples", c_void_p),
        ("ids", c_void_p),
        ("pages", c_void_p),
        ("masks", c_void_p),
    )


class Result(Structure):
    """``turing_result``: addresses of the arrays that receive the results."""

    _fields_ = (
        ("ids", c_void_p),
        ("logprobs", c_void_p),
        ("top_ids", c_void_p),
        ("top", c_void_p),
        ("top_stride", c_int32),
        ("logits", c_void_p),
    )


def find_library(path: str | None = None) -> Path | None:
    """Return the library's file: ``path`` if given, else where a wheel or a build puts it."""
    if path is not None:
        return Path(path) if Path(path).is_file() else None
    package = Path(__file__).resolve().parent
    places = (package / NAME, package.parents[1] / "build/native/kernels" / NAME)
    return next((place for place in places if place.is_file()), None)


def unavailable(path: str | None = None) -> str | None:
    """Say why the library cannot be used here, or return None when it can."""
    try:
        load(path)
    except NativeError as error:
        return str(error)
    return None


def unsupported(model: str, path: str | None = None) -> str | None:
    """Say why the library cannot run ``model`` (a file or folder), or return None when it can."""
    try:
        library = load(path)
    except NativeError as error:
        return str(error)
    message = ctypes.create_string_buffer(ERROR_SIZE)
    if library.turing_check(model.encode(), message, ERROR_SIZE) == 0:
        return None
    return message.value.decode(errors="replace")


@lru_cache
def load(path: str | None = None) -> ctypes.CDLL:
    """Load the library and declare its functions; raises ``NativeError`` when it cannot be used."""
    file = find_library(path)
    if file is None:
        raise NativeError(f"{path or NAME} was not built")
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise NativeError(str(error)) from None
    _declare(library)
    version = library.turing_abi_version()
    if version != ABI_VERSION:
        raise NativeError(f"{file} has interface version {version}, not {ABI_VERSION}")
    return library


def _declare(library: ctypes.CDLL) -> None:
    error = (c_char_p, c_size_t)
    engine = c_void_p
    signatures: dict[str, tuple[type, tuple[object, ...]]] = {
        "turing_abi_version": (c_int32, ()),
        "turing_check": (c_int, (c_char_p, *error)),
        "turing_open": (c_void_p, (POINTER(Options), *error)),
        "turing_close": (c_int, (engine,)),
        "turing_describe": (Info, (engine,)),
        "turing_start": (
            c_int,
            (engine, c_int32, POINTER(Sampling), Ids, Ids, Ids, Ids, c_void_p, *error),
        ),
        "turing_stop": (c_int, (engine, c_int32, *error)),
        "turing_run": (c_int, (engine, POINTER(Step), POINTER(Result), *error)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    library.turing_close.restype = None


class NativeEngine:
    """A model in the native library. Not thread-safe; the GIL is released while it computes.

    Every method raises ``NativeError`` with the library's message when it fails.
    """

    def __init__(
        self,
        model: str,
        *,
        slots: int,
        max_rows: int,
        pages: int = 0,
        kv_bytes: int = 0,
        threads: int = 0,
        quantize: str = "none",
        exact: bool = False,
        isa: str = "",
        library: str | None = None,
    ) -> None:
        self._library = load(library)
        self._message = ctypes.create_string_buffer(ERROR_SIZE)
        options = Options(
            path=model.encode(),
            isa=isa.encode(),
            threads=threads,
            quantize=QUANTIZE[quantize],
            exact=exact,
            slots=slots,
            max_rows=max_rows,
            pages=pages,
            kv_bytes=kv_bytes,
        )
        handle = self._library.turing_open(byref(options), self._message, ERROR_SIZE)
        if not handle:
            raise self._error()
        self._handle: c_void_p | None = c_void_p(handle)
        info = self._library.turing_describe(self._handle)
        self.pages: int = info.pages
        self.kv_bytes_per_token: int = info.kv_bytes_per_token
        self.vocab_size: int = info.vocab_size
        self.context: int = info.context
        self.threads: int = info.threads
        self.isa: str = info.isa.decode()

    def start(
        self,
        slot: int,
        sampling: Sampling,
        *,
        prompt: Sequence[int] = (),
        output: Sequence[int] = (),
        banned: Sequence[int] = (),
        bias: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Begin to sample for ``slot``; ``prompt`` and ``output`` are what penalties count."""
        arrays = [(c_int32 * len(ids))(*ids) for ids in (prompt, output, banned)]
        arrays.append((c_int32 * len(bias))(*(token for token, _ in bias)))
        biases = (c_float * len(bias))(*(value for _, value in bias))
        ids = [Ids(ctypes.addressof(array), len(array)) for array in arrays]
        self._check(
            self._library.turing_start(
                self._handle, slot, byref(sampling), *ids, biases, self._message, ERROR_SIZE
            )
        )

    def stop(self, slot: int) -> None:
        """Forget what ``slot`` asked for."""
        self._check(self._library.turing_stop(self._handle, slot, self._message, ERROR_SIZE))

    def run(self, step: Step, result: Result) -> None:
        """Compute ``step`` into ``result``."""
        self._check(
            self._library.turing_run(
                self._handle, byref(step), byref(result), self._message, ERROR_SIZE
            )
        )

    def close(self) -> None:
        """Free the model; nothing may be called afterwards."""
        if self._handle is not None:
            self._library.turing_close(self._handle)
            self._handle = None

    def _check(self, status: int) -> None:
        if status != 0:
            raise self._error()

    def _error(self) -> NativeError:
        return NativeError(self._message.value.decode(errors="replace"))
