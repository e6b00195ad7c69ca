"""The thread that calls a program's own function with each pressure report."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from vramd._native import Pressure, _PressureStream


def start(stream: _PressureStream, on_pressure: Callable[[Pressure], object]) -> None:
    # An interpreter that ends waits for no daemon thread.
    threading.Thread(target=_run, args=(stream, on_pressure), name="vramd-pressure", daemon=True).start()


def _run(stream: _PressureStream, on_pressure: Callable[[Pressure], object]) -> None:
    while (pressure := stream.next()) is not None:
        try:
            on_pressure(pressure)
        except BaseException:
            # Reported like the exception of any thread, but the thread goes on.
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
