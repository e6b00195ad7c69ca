"""Two models take turns under a quota that holds one of them: one sleeps in host memory while the other one answers."""

import numpy

import vramd

MODEL_BYTES = 24 << 20


class Model:
    """A model whose weights keep their address and their content while it sleeps."""

    def __init__(self, client: vramd.Client, number: int) -> None:
        self.number = number
        self.weights = client.allocate(MODEL_BYTES, wait=10)
        numpy.frombuffer(self.weights, dtype=numpy.uint8)[:] = number

    def answer(self) -> int:
        return int(numpy.frombuffer(self.weights, dtype=numpy.uint8).max())

    def sleep(self) -> None:
        """Has its bytes leave. The daemon returns their room as soon as they have left."""
        self.weights.unpin()
        self.weights.evict()

    def wake(self) -> None:
        """Has its bytes come back, and waits until they are there."""
        self.weights.repin()


def main() -> None:
    with vramd.connect("server") as client:
        first = Model(client, 1)
        address = first.weights.device_ptr
        first.sleep()
        second = Model(client, 2)
        print("model 2 answers", second.answer())
        try:
            first.wake()
        except vramd.PinStalled:
            print("both do not fit: the other one has to sleep first")
        second.sleep()
        first.wake()
        assert first.weights.device_ptr == address
        print("model 1 answers", first.answer())


if __name__ == "__main__":
    main()
