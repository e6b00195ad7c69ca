"""Streams a model that is larger than its quota: the program declares the order of its layers, and the daemon fetches
each layer ahead of its use.

The model lies in the host tier. The device has only the layers in use and the next ones.
"""

import numpy

import vramd

LAYERS = 16
SHAPE = (512, 512)
LAYER_BYTES = 8 * SHAPE[0] * SHAPE[1]  # A layer is one part of 2 MiB. Parts come and go as a whole.
PASSES = 3


def load(client: vramd.Client) -> vramd.Sealed:
    """Writes the model layer by layer. Each layer moves its inputs by one position."""
    memory = client.allocate(LAYERS * LAYER_BYTES, part_size=LAYER_BYTES, unpinned=True, wait=60)
    for layer in range(LAYERS):
        memory.copy_from(numpy.roll(numpy.eye(SHAPE[0]), 1, axis=1), offset=layer * LAYER_BYTES)
    return memory.seal()


def main() -> None:
    with vramd.connect("streamer") as client:
        [place] = [place for place in client.quota() if place.tier == "device"]
        model = load(client)
        print(f"a model of {model.size} bytes under a quota of {place.limit}")
        layers = [range(layer, layer + 1) for layer in range(LAYERS)]
        with client.sequence([(model, parts) for parts in layers], passes=PASSES) as sequence:
            print("the daemon works", sequence.window_steps, "layers ahead")
            for _ in range(PASSES):
                signal = numpy.eye(1, SHAPE[0])
                for parts in layers:
                    sequence.begin()  # The step before is over. This waits for nothing.
                    with model.pin(parts=parts) as pin:  # This waits only if the layer is not there yet.
                        numpy.matmul(signal.copy(), numpy.frombuffer(pin).reshape(SHAPE), out=signal)
                print("the signal is at position", signal.argmax())


if __name__ == "__main__":
    main()
