"""Shares weights between two processes without a copy: one process loads and seals them, the other one attaches them.

The loader starts the worker itself. Any other process of the same user could attach the weights as well.
"""

import multiprocessing

import numpy

import vramd

SHAPE = (512, 1024)


def load() -> vramd.Sealed:
    """Writes the weights into memory of the daemon. Once they are sealed, no process can change them."""
    with vramd.connect("loader") as client:
        memory = client.allocate(4 * SHAPE[0] * SHAPE[1], name="weights", lifetime="persistent")
        weights = numpy.from_dlpack(memory.tensor(SHAPE, "float32"))
        weights[:] = numpy.arange(SHAPE[1])
        del weights  # A view keeps its memory as it is.
        return memory.seal()


def work(digest: str) -> None:
    """Runs in the other process, and uses the same bytes at an address of its own."""
    with vramd.connect("worker") as client:
        memory = client.attach("weights")
        assert memory.digest == digest, "these are other weights"
        weights = numpy.from_dlpack(memory.tensor(SHAPE, "float32"))
        print("worker: the sum of a row is", int(weights[0].sum()))


def main() -> None:
    sealed = load()
    print("loader: sealed", sealed.name, "with", sealed.size, "bytes")
    # A forked process could not use the daemon's memory: "spawn" starts a new interpreter.
    worker = multiprocessing.get_context("spawn").Process(target=work, args=[sealed.digest])
    worker.start()
    worker.join()
    print("loader: the worker ended with status", worker.exitcode)
    sealed.free()


if __name__ == "__main__":
    main()
