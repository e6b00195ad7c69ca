"""The thread that calls a program's own function with what is told of pressure."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from vramd._native import Pressure, _Told


def start(told: _Told, on_pressure: Callable[[Pressure], object]) -> None:
    # An interpreter that ends waits for no daemon thread.
    threading.Thread(target=_call, args=(told, on_pressure), name="vramd-pressure", daemon=True).start()


def _call(told: _Told, on_pressure: Callable[[Pressure], object]) -> None:
    while (pressure := told.next()) is not None:
        try:
            on_pressure(pressure)
        except BaseException:
            # As of any thread, but that it goes on.
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
