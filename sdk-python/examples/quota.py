"""Works under a quota: a cache of results that grows to the limit of its tenant, and then drops the oldest results."""

from collections import OrderedDict

import numpy

import vramd

RESULT_BYTES = 4 << 20
REQUESTS = [0, 1, 2, 3, 4, 5, 6, 7, 0, 7]


class Cache:
    """Results in device memory, the oldest first."""

    def __init__(self, client: vramd.Client) -> None:
        self.client = client
        self.results: OrderedDict[int, vramd.Allocation] = OrderedDict()

    def result(self, request: int) -> vramd.Allocation:
        if request not in self.results:
            self.results[request] = self.room()
            numpy.frombuffer(self.results[request], dtype=numpy.uint8)[:] = request
        return self.results[request]

    def room(self) -> vramd.Allocation:
        """Allocates memory for a result. At the limit, one of its own results makes room for it."""
        while True:
            try:
                return self.client.allocate(RESULT_BYTES)
            except vramd.QuotaExceeded as refused:
                if not self.results:
                    raise  # Nothing is left to drop: the limit is too low for one result.
                oldest, memory = self.results.popitem(last=False)
                memory.free()
                print(f"{refused.held} of {refused.limit} bytes are in use: dropped result {oldest}")


def main() -> None:
    with vramd.connect("cache") as client:
        [place] = [place for place in client.quota() if place.tier == "device"]
        print(f"tenant {client.tenant} may have {place.limit} bytes, and can get {place.free} now")
        cache = Cache(client)
        for request in REQUESTS:
            assert cache.result(request).copy_to(0, 1) == bytes([request])
        print("kept:", *cache.results)


if __name__ == "__main__":
    main()
