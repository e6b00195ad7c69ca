"""A server that follows pressure: it sizes its batches by the daemon's reports, and on a full device drops old results.

A real server runs for ever; this one ends once it has followed the pressure up and down again.
"""

import queue

import vramd

BATCH = 64
INPUT_BYTES = 64 << 10
FULL = ("high", "critical")


def shed(results: list[vramd.Allocation], reports: "queue.Queue[vramd.Pressure]") -> None:
    """Drops the oldest quarter of the results, again and again until the daemon reports that the device is not full."""
    level = "high"
    while level in FULL and results:
        count = len(results) // 4 + 1
        for memory in results[:count]:
            memory.free()
        del results[:count]
        level = reports.get(timeout=60).level
        print(f"dropped {count} results: {level}")


def main() -> None:
    reports: queue.Queue[vramd.Pressure] = queue.Queue()
    results: list[vramd.Allocation] = []

    def report(pressure: vramd.Pressure) -> None:
        """Runs on a thread of its own, and hands reports on the device to the server's thread."""
        if pressure.tier == "device":
            reports.put(pressure)

    with vramd.connect("server", on_pressure=report) as client:
        level = reports.get(timeout=60).level
        while level not in FULL:
            inputs = int(BATCH * client.pressure().batch_factor)
            try:
                results.append(client.allocate(inputs * INPUT_BYTES))
                level = reports.get_nowait().level
            except queue.Empty:
                continue  # Nothing has changed.
            except MemoryError:  # `DeviceFull` or `QuotaExceeded`: the report is on its way.
                level = reports.get(timeout=60).level
            print(f"{len(results)} results, the last of {inputs} inputs: {level}")
        shed(results, reports)
        print("kept", len(results), "results")


if __name__ == "__main__":
    main()
