"""Runs a daemon for `vramd.testing`. It ends the daemon when the test process ends, even if that is killed.

`vramd.testing` starts this file as a program of its own: `_testing_supervisor.py PIDFD FOLDER PROGRAM ARGUMENT…`. PIDFD
is a pidfd of the test process, so a forked child that outlives the test process does not count. The program prints the
daemon's process id at once, and waits for one byte on standard input. `Daemon.end` sends the byte once the daemon has
ended and its folder is gone; the answer is the daemon's exit status. The process id stays valid until then.

The test process itself cannot set PR_SET_PDEATHSIG for the daemon: it may have threads, between whose fork and exec
Python must not run, and the signal comes when the thread that forked ends. This program has one thread.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def main(test_process: int, folder: str, command: list[str]) -> None:
    libc = ctypes.CDLL(None)
    daemon = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )  # fmt: skip
    released = False
    try:
        print(daemon.pid, flush=True)
        released = wait_for_release(test_process)
    finally:
        if not released:
            daemon.kill()
            daemon.wait()
            shutil.rmtree(folder, ignore_errors=True)
    print(daemon.wait(), flush=True)


def wait_for_release(test_process: int) -> bool:
    """Returns whether a byte came. If not, the test process has ended, or has dropped its `Daemon` without an end."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN)
    poll.register(test_process, select.POLLIN)
    ready = [descriptor for descriptor, _ in poll.poll()]
    return sys.stdin.fileno() in ready and os.read(sys.stdin.fileno(), 1) != b""


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
