"""The thread that calls a program's own function with what is told of pressure."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

from vramd._native import Pressure, _Told


def start(told: _Told, on_pressure: Callable[[Pressure], object]) -> None:
    # An interpreter that ends waits for no daemon thread.
    Thread(target=_call, args=(told, on_pressure), name="vramd-pressure", daemon=True).start()


def _call(told: _Told, on_pressure: Callable[[Pressure], object]) -> None:
    while (pressure := told.next()) is not None:
        try:
            on_pressure(pressure)
        except BaseException as raised:
            told.report(raised, on_pressure)
