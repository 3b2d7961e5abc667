"""The page format that keeps the model's own type."""

import torch

from turing_engine.kv.codec import KVSpec
from turing_engine.kv.plain import PlainPages
from turing_protocol.prefix import PAGE

CPU = torch.device("cpu")


def spec(dtype: torch.dtype = torch.float32) -> KVSpec:
    return KVSpec(layers=3, kv_heads=2, head_dim=4, dtype=dtype)


def test_page_bytes_count_keys_and_values_of_all_layers() -> None:
    assert PlainPages.page_bytes(spec()) == 2 * 3 * 2 * PAGE * 4 * 4
    assert PlainPages.page_bytes(spec(torch.bfloat16)) == 2 * 3 * 2 * PAGE * 4 * 2


def test_reads_back_what_was_written_where_it_was_written() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        pages = PlainPages(4, spec(dtype), CPU)
        keys, values = torch.randn(2, 2, 2, 4).to(dtype)
        # tokens 5 and 6 of page 3, both heads of each
        lines = torch.tensor([(3 * 2 + head) * PAGE + at for at in (5, 6) for head in (0, 1)])
        pages.write(1, lines, keys, values)
        read = pages.read(1, torch.tensor([6, 7, 0]))
        for stored, given in zip(read, (keys, values), strict=True):
            heads = stored.view(3, PAGE, 4)
            assert torch.equal(heads[:2, 5:7].transpose(0, 1), given)
            assert heads[2].count_nonzero() == 0
            assert heads.count_nonzero() == given.count_nonzero()
        assert pages.read(0, torch.tensor([6, 7]))[0].count_nonzero() == 0


def test_unwritten_pages_read_as_zeros() -> None:
    torch.full((1 << 16,), float("nan"))  # memory that the allocator may hand out again
    keys, values = PlainPages(40, spec(), CPU).read(2, torch.arange(80))
    assert keys.count_nonzero() == values.count_nonzero() == 0
