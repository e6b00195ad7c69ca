"""Memory that the daemon keeps ahead of its use, in an order that programs declare."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from conftest import MIB, Daemon, layer

import vramd


def test_layers_stream_through_a_device_that_holds_a_fraction(streaming: Daemon) -> None:
    with streaming.connect() as client:
        layers = [layer(client, 10 * number) for number in range(12)]
        with client.sequence(layers, passes=3) as sequence:
            assert sequence.state == "running"
            assert sequence.window_steps >= 1
            assert sequence.window_bytes == sequence.window_steps * 2 * MIB
            assert "running" in repr(sequence)
            for step in range(3 * len(layers)):
                assert sequence.begin() == step
                number = step % len(layers)
                with layers[number].pin() as pin:
                    assert bytes(memoryview(pin)[:1]) == bytes([10 * number])
            with pytest.raises(TypeError):
                pickle.dumps(sequence)
        assert (sequence.state, sequence.begin(), sequence.window_steps) == ("ended", None, 0)
        sequence.end()


def test_steps_have_ranges_and_groups(streaming: Daemon) -> None:
    with streaming.connect() as client:
        large, other = layer(client, 1, parts=4), layer(client, 9)
        with client.sequence([(large, range(0, 2)), [(large, range(2, 4)), other]], passes=2) as sequence:
            sequence.begin()
            # A step may be left out.
            assert sequence.begin(3) == 3
            with pytest.raises(vramd.InvalidArgument):
                sequence.begin(3)
        other.free()


def test_a_sequence_ends_with_its_memory(streaming: Daemon) -> None:
    with streaming.connect() as client:
        one, other = layer(client, 1), layer(client, 2)
        sequence = client.sequence([one, other])
        other.free()
        with pytest.raises(vramd.NotFound):
            for _ in range(1000):
                client.flush()
                _ = sequence.state
        with one.pin() as pin:
            assert bytes(memoryview(pin)[:1]) == bytes([1])


def test_bad_sequences_are_refused(streaming: Daemon) -> None:
    with streaming.connect() as client:
        one, large = layer(client, 1), client.allocate("20MiB", part_size="2MiB", unpinned=True)
        requests: list[Callable[[], vramd.Sequence]] = [
            lambda: client.sequence([]),
            lambda: client.sequence([[]]),
            lambda: client.sequence([[one, one]]),
            lambda: client.sequence([(one, range(0, 2))]),
            lambda: client.sequence([one], passes=-1),
        ]
        for request in requests:
            with pytest.raises(vramd.InvalidArgument):
                request()
        with pytest.raises(vramd.ResourceExhausted):
            client.sequence([one, large])
