"""The functions that RMM calls. RMM itself needs a GPU: `tests/gpu/array_libraries.py` has it."""

from __future__ import annotations

import ctypes

import pytest
from conftest import MIB, Daemon

import vramd
import vramd.rmm


class Stream:
    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


def test_blocks_are_memory_of_the_daemon_until_they_are_freed(client: vramd.Client) -> None:
    blocks, stream = vramd.rmm.Blocks(client), Stream()
    one, other = blocks.allocate(1000, stream), blocks.allocate(3 * MIB, stream)
    ctypes.memset(other, 7, 3 * MIB)
    assert bytes((ctypes.c_char * 1000).from_address(one)) == bytes(1000)
    assert [info.size for info in client.list()] == [1000, 3 * MIB] and stream.waits == 0
    blocks.deallocate(one, 1000, stream)
    assert [info.size for info in client.list()] == [3 * MIB] and stream.waits == 1
    blocks.deallocate(other, 3 * MIB, stream)
    assert client.list() == []


def test_no_bytes_have_an_address(client: vramd.Client) -> None:
    blocks, stream = vramd.rmm.Blocks(client), Stream()
    address = blocks.allocate(0, stream)
    assert address != 0
    blocks.deallocate(address, 0, stream)
    with pytest.raises(KeyError):
        blocks.deallocate(address, 0, stream)


def test_a_full_quota_is_a_memory_error_with_its_reason(daemon: Daemon) -> None:
    with daemon.connect("full") as client:
        blocks = vramd.rmm.Blocks(client)
        with pytest.raises(MemoryError, match="MiB"):
            blocks.allocate(1 << 40, Stream())
        assert client.list() == []


def test_without_rmm_the_import_says_so(client: vramd.Client) -> None:
    with pytest.raises(ModuleNotFoundError, match="rmm"):
        vramd.rmm.resource(client)
