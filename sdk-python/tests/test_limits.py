"""Limits of the process: what has run out is named, and everything is as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from conftest import MIB, Daemon

import vramd

WITHOUT_MAPPINGS = """
import mmap, threading, vramd

def count():
    with open("/proc/self/maps", "rb") as maps:
        return sum(1 for _ in maps)

with open("/proc/sys/vm/max_map_count") as file:
    limit = int(file.read())
client = vramd.connect("crowded")
kept = client.allocate("4MiB", part_size="2MiB")
kept.copy_from(b"kept")
fillers = []
while count() < limit - 40:
    for number in range(max((limit - 40 - count()) // 2, 1)):
        # Neighbours of different protection stay two mappings.
        fillers.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ))
        fillers.append(mmap.mmap(-1, 4096))
before = count()
for _ in range(3):
    try:
        client.allocate("200MiB", part_size="2MiB")
    except vramd.MapFailed as failed:
        assert "vm.max_map_count" in str(failed) and str(limit) in str(failed), failed
    else:
        raise AssertionError("100 parts do not fit into 40 mappings")
    client.flush()
    # The heap and threads may have grown.
    assert count() <= before + 8, (count(), before)
    ran = threading.Thread(target=lambda: None)
    ran.start()
    ran.join()
    assert client.is_connected and kept.copy_to(0, 4) == b"kept"
    assert [info.id for info in client.list()] == [kept.id]
sealed = kept.seal()
for filler in fillers:
    filler.close()
assert client.allocate("200MiB", part_size="2MiB").is_mapped
"""


def test_allocation_without_mappings_left_changes_nothing(daemon: Daemon) -> None:
    daemon.run(WITHOUT_MAPPINGS)


FORKED = """
import os, sys, numpy, vramd
client = vramd.connect("parent")
sealed = client.allocate("2MiB").seal()
array = numpy.frombuffer(sealed, dtype=numpy.uint8)
pid = os.fork()
if pid == 0:
    if sys.argv[1] == "parent's":
        array.sum()
    elif sys.argv[1] == "killed":
        os.kill(os.getpid(), 11)
    else:
        import ctypes
        ctypes.string_at(8)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
assert not array.any()
"""


def forked(daemon: Daemon, access: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, access], capture_output=True, text=True, timeout=60,
        env={**os.environ, "VRAMD_SOCKET_DIR": str(daemon.sockets)},
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done.stderr


def test_forked_child_says_why_it_dies(daemon: Daemon) -> None:
    status, error = forked(daemon, "parent's")
    assert status == -signal.SIGSEGV
    assert "this process was forked" in error and "Connect a client of its own" in error
    for access in ("nothing's", "killed"):
        status, error = forked(daemon, access)
        assert (status, error) == (-signal.SIGSEGV, ""), access


def test_forked_child_uses_memory_of_its_own(daemon: Daemon, client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with daemon.connect("child") as own:
                theirs = own.allocate(MIB)
                theirs.copy_from(b"own")
                status = 0 if bytes(memoryview(theirs)[:3]) == b"own" else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert memory.is_mapped
