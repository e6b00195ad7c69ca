"""The client for asyncio: many calls at once, cancelled calls, Ctrl-C, and the end of the client."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import pathlib
import pickle
import pydoc
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import numpy
import pytest
from conftest import MIB, Daemon, eventually, stop, vramctl

import vramd
import vramd.aio

# The calls of these tests would wait for 60 s or longer, so one that ends within this time was ended. A busy machine may
# take some of it.
SOON = 20.0


@contextlib.asynccontextmanager
async def connected(daemon: Daemon, **options: Any) -> AsyncIterator[vramd.aio.Client]:
    async with vramd.aio.connect("aio", socket_dir=daemon.sockets, **options) as client:
        yield client


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("vramd-aio")]


def waits(daemon: Daemon) -> list[Any]:
    listed: list[Any] = json.loads(vramctl(daemon, "wait", "list", "--json"))["waits"]
    return listed


async def until(what: str, seen: Callable[[], bool]) -> None:
    """As `eventually`, while the loop goes on."""
    await asyncio.to_thread(eventually, what, seen)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancels a task, which must end soon."""
    task.cancel()
    begun = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - begun < SOON


@pytest.fixture
def full(start: Callable[..., Daemon]) -> Daemon:
    return start(memory="16MiB", more='[memory]\nhost_size = "64MiB"\n')


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    yield
    eventually("the threads of all clients have ended", lambda: threads() == [])


def test_whole_client_works(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        async with connected(daemon, timeout=30) as client:
            assert isinstance(client.blocking, vramd.Client)
            assert (client.session_id, client.tenant) == (client.blocking.session_id, client.blocking.tenant)
            assert client.is_connected and not client.is_draining
            assert [device.index for device in client.devices] == [0]
            assert client.daemon_version == vramd.__version__
            weights = await client.allocate("9MiB", name="llama", lifetime="persistent", part_size="2MiB")
            assert (weights.size, weights.part_count, weights.name) == (9 * MIB, 5, f"{client.tenant}/llama")
            assert weights.device_ptr == weights.blocking.device_ptr and not weights.is_device_memory
            content = bytes(range(256)) * (9 * MIB // 256)
            await weights.copy_from(content)
            await weights.copy_from(numpy.array([1.5], dtype=numpy.float32), offset=4)
            assert numpy.frombuffer(weights.blocking, dtype=numpy.float32)[1] == 1.5
            await weights.copy_from(content[4:8], offset=4)
            model = await weights.seal()
            assert model.digest.startswith("blake3:") and model.id == weights.id
            target = bytearray(9 * MIB - 3)
            await model.copy_into(target, 3)
            assert target == content[3:] and await model.copy_to(2, 3) == content[2:5]
            with pytest.raises(vramd.HandleClosed):
                await weights.free()
            attached = await client.attach("llama")
            assert attached.blocking.has_handle_pin and attached.blocking.is_mapped
            await attached.unpin()
            assert not attached.blocking.has_handle_pin
            await attached.repin()
            assert attached.blocking.has_handle_pin
            with pytest.raises(vramd.Unsupported, match="no usable disk tier"):
                await attached.evict("disk")
            assert (await attached.tensor((2, 2), "uint8", offset=1)).shape == (2, 2)
            await attached.detach()
            assert [info.id for info in await client.list("lla")] == [model.id]
            assert (await client.describe("llama")).digest == model.digest
            assert {place.tier for place in await client.quota()} >= {"device"}
            await model.advise("set_class", memory_class="weights")
            assert (await client.describe(model.id)).advised_parts[0].memory_class == "weights"
            async with model.pin(parts=range(1, 3)) as pin:
                assert isinstance(pin, vramd.Pin) and pin.size == 4 * MIB
                assert bytes(memoryview(pin)[:4]) == content[:4]
            assert pin.is_released
            other = await client.allocate(MIB)
            async with client.pin_set([model], write=[other.blocking]) as pins:
                assert [pin.write for pin in pins.pins] == [False, True]
            assert all(pin.is_released for pin in pins.pins)
            (tmp_path / "file").write_bytes(b"weights")
            loaded = await client.load(tmp_path / "file", offset=2)
            assert await loaded.copy_to() == b"ights"
            for memory in (loaded, other, model):
                await memory.free()
            await client.flush()
            assert await client.list() == []

    asyncio.run(main())


def test_prefetch_and_sequence_stream_layers(streaming: Daemon) -> None:
    async def main() -> None:
        async with connected(streaming) as client:
            layers = [await client.allocate("4MiB", part_size="2MiB", unpinned=True) for _ in range(4)]
            for number, memory in enumerate(layers):
                await memory.copy_from(bytes([number]) * 4 * MIB)
            prefetch = await client.prefetch(layers[0], (layers[1], range(0, 1)), within=30, priority=3)
            assert await prefetch in {"ready", "late"}
            assert await prefetch.wait(5) == prefetch.state
            assert (prefetch.parts_left_out, prefetch.number) == (0, prefetch.blocking.number)
            steps: list[Any] = [[layer] for layer in layers]
            async with client.sequence(steps, passes=2) as sequence:
                assert isinstance(sequence, vramd.Sequence)
                for step in range(8):
                    assert sequence.begin() == step
                    async with layers[step % 4].pin() as pin:
                        assert bytes(memoryview(pin)[:1]) == bytes([step % 4])
            assert sequence.state == "ended"

    asyncio.run(main())


def test_many_tasks_share_a_client(daemon: Daemon) -> None:
    async def work(client: vramd.aio.Client, number: int) -> None:
        for _ in range(4):
            memory = await client.allocate(MIB, wait=60)
            async with memory.pin(write=True):
                await memory.copy_from(bytes([number]) * MIB)
            sealed = await memory.seal()
            assert await sealed.copy_to(MIB - 2) == bytes([number]) * 2
            await sealed.free()

    async def main() -> None:
        async with connected(daemon) as client:
            async with asyncio.TaskGroup() as group:
                for number in range(100):
                    group.create_task(work(client, number))
            assert await client.list() == []
            assert len(threads()) <= vramd.aio.WAITS_MAX + 2 * 16

    asyncio.run(main())


def test_waits_block_neither_the_loop_nor_other_calls(full: Daemon) -> None:
    async def main() -> None:
        async with connected(full) as holder, connected(full, waits_max=2) as client:
            held = await holder.allocate("16MiB")
            tasks = [asyncio.create_task(client.allocate("4MiB", wait=60)) for _ in range(5)]
            await until("two calls wait", lambda: len(waits(full)) == 2)
            begun = time.monotonic()
            for _ in range(20):
                await client.list()
            await client.describe(held.id)
            assert time.monotonic() - begun < SOON
            assert threads().count("vramd-aio-wait") == 3, "two wait, one of the holder is idle"
            # One that stands in the queue leaves it.
            await cancelled(tasks.pop())
            await cancelled(tasks.pop())
            assert len(client._calls.waits._queue) == 1
            await held.free()
            for task in tasks:
                await (await task).free()
            assert await client.list() == []

    asyncio.run(main())


def calls_that_wait(
    client: vramd.aio.Client, mine: vramd.aio.Sealed, path: pathlib.Path
) -> dict[str, Callable[[], Coroutine[Any, Any, Any]]]:
    return {
        "allocate": lambda: client.allocate("8MiB", wait=60),
        "allocate by name": lambda: client.allocate("8MiB", name="taken", lifetime="persistent", wait=60),
        "load": lambda: client.load(path, name="loaded", lifetime="persistent", wait=60),
        "attach": lambda: client.attach("model"),
        "pin": lambda: mine.pin(wait=60),
        "pin_set": lambda: client.pin_set([mine], wait=60),
        "repin": mine.repin,
        "tensor": mine.tensor,
        "copy": mine.copy_to,
    }


def test_cancelled_waits_leave_nothing(full: Daemon, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8 * MIB))

    async def main() -> None:
        async with connected(full) as holder, connected(full, timeout=60) as client:
            model = await (await holder.allocate("8MiB", name="model", lifetime="persistent")).seal()
            await model.detach()
            mine = await client.attach("model", unpinned=True)
            held = await holder.allocate("16MiB", wait=20)
            for name, call in calls_that_wait(client, mine, path).items():
                # The wait has begun.
                before = {wait["wait_id"] for wait in waits(full)}
                task = asyncio.create_task(call())
                if name not in {"pin_set", "repin", "tensor", "copy"}:
                    await until(f"{name} waits", lambda: bool({wait["wait_id"] for wait in waits(full)} - before))
                await cancelled(task)
                # Nothing has begun yet.
                task = asyncio.create_task(call())
                await cancelled(task)
                # The task has begun, and perhaps its thread.
                task = asyncio.create_task(call())
                await asyncio.sleep(0)
                await cancelled(task)
                begun = time.monotonic()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await call()
                assert time.monotonic() - begun < SOON, name
            await held.free()
            await until("the line is empty", lambda: waits(full) == [])
            await until("only the model is left", lambda: [info.name for info in model_list(client)] == [model.name])
            # Nothing pins it either: it leaves, and all the room is free.
            await (await holder.allocate("16MiB", wait=20)).free()
            await mine.detach()
            await until("it is not mapped", lambda: client.blocking.describe("model").mapper_count == 0)

    def model_list(client: vramd.aio.Client) -> list[vramd.AllocationInfo]:
        return client.blocking.list()

    asyncio.run(main())


def test_cancelled_wait_leaves_the_line(full: Daemon) -> None:
    async def main() -> None:
        async with connected(full) as holder, connected(full) as client:
            held = await holder.allocate("16MiB")
            task = asyncio.create_task(client.allocate("8MiB", wait=200))
            await until("it waits", lambda: len(waits(full)) == 1)
            await cancelled(task)
            begun = time.monotonic()
            await until("it has left", lambda: waits(full) == [])
            assert time.monotonic() - begun < SOON, "not after 200 s"
            assert [info.id for info in await client.list()] == [held.id]

    asyncio.run(main())


def test_result_that_meets_the_cancellation_is_undone(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"weights")

    async def main() -> None:
        async with connected(daemon) as client:
            kept = await (await client.allocate("2MiB", name="kept", lifetime="persistent")).seal()

            def names() -> set[str | None]:
                return {info.name for info in client.blocking.list()}

            calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
                lambda: client.allocate("2MiB", name="made", lifetime="persistent"),
                lambda: client.load(tmp_path / "file", name="made", lifetime="persistent"),
            ]
            for call in calls:
                task = asyncio.create_task(call())
                await asyncio.sleep(0)
                # The loop stands still, so the result arrives and the task does not get it.
                eventually("it is there", lambda: f"{client.tenant}/made" in names())
                eventually("the thread is idle", lambda: client._calls.waits._idle_count == 1)
                await cancelled(task)
                await until("it is freed", lambda: names() == {kept.name})
            task = asyncio.create_task(kept.pin())
            await asyncio.sleep(0)
            eventually("the pin has arrived", lambda: len(next(iter(client._calls._running))._arrived) == 1)
            await cancelled(task)
            # `free` is refused while a pin is left.
            await until("it is not pinned", lambda: freed(kept))
            assert await client.list() == []

    def freed(memory: vramd.aio.Sealed) -> bool:
        try:
            memory.blocking.free()
        except vramd.Pinned:
            return False
        return True

    asyncio.run(main())


def test_cancelled_wait_cancels_its_prefetch(streaming: Daemon) -> None:
    async def main() -> None:
        async with connected(streaming) as client, connected(streaming) as other:
            wanted = await client.allocate("4MiB", part_size="2MiB", unpinned=True)
            await wanted.copy_from(bytes(4 * MIB))
            held = await other.allocate("8MiB", part_size="2MiB", wait=30)
            prefetch = await client.prefetch(wanted)
            with pytest.raises(vramd.Deadline):
                await prefetch.wait(0.4)
            assert prefetch.state == "deferred", "the request goes on"

            async def wait() -> str:
                return await prefetch

            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            await cancelled(task)
            await until("it is cancelled", lambda: prefetch.state == "cancelled")
            assert prefetch.by_operator is False
            # A request whose task goes before the answer is cancelled too.
            asking = asyncio.create_task(client.prefetch(wanted))
            await asyncio.sleep(0)
            await cancelled(asking)
            await until("no request is left", lambda: json_of(streaming)["prefetches"] == [])
            await held.free()

    def json_of(daemon: Daemon) -> Any:
        return json.loads(vramctl(daemon, "prefetch", "list", "--json"))

    asyncio.run(main())


def test_cancelled_copy_touches_its_buffer_no_more(full: Daemon) -> None:
    async def main() -> None:
        async with connected(full) as holder, connected(full) as client:
            mine = await client.allocate("12MiB", part_size="2MiB", unpinned=True)
            await mine.copy_from(b"x" * 12 * MIB)
            held = await holder.allocate("16MiB", wait=20)
            target = bytearray(12 * MIB)
            task = asyncio.create_task(mine.copy_into(target))
            await until("the copy waits", lambda: waits(full) != [])
            await cancelled(task)
            await held.free()
            await until("the copy is over", lambda: waits(full) == [] and client._calls.copies._idle_count > 0)
            assert target == bytes(12 * MIB)
            await mine.copy_into(target)
            assert target == b"x" * 12 * MIB
            with pytest.raises(vramd.CopyFailed):
                await mine.copy_into(target, 1)
            with pytest.raises(BufferError):
                await mine.copy_from(memoryview(target)[::2])
            await mine.copy_from(b"")

    asyncio.run(main())


def test_cancelled_connect_leaves_no_session(daemon: Daemon, client: vramd.Client) -> None:
    async def main() -> None:
        stop(daemon.pid)
        try:
            task = asyncio.create_task(connect())
            await until("a thread connects", lambda: "vramd-aio-call" in threads())
            await cancelled(task)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        await until("the thread has ended", lambda: threads() == [])
        await until("one session is left", lambda: sessions() == [f"s-{client.session_id}"])

    async def connect() -> vramd.aio.Client:
        return await vramd.aio.connect("cancelled", socket_dir=daemon.sockets)

    def sessions() -> list[str]:
        return [session["session_id"] for session in json.loads(vramctl(daemon, "session", "list", "--json"))["sessions"]]

    asyncio.run(main())


def test_close_ends_calls_that_wait(full: Daemon) -> None:
    async def main() -> None:
        async with connected(full) as holder:
            held = await holder.allocate("16MiB")
            client = await vramd.aio.connect(socket_dir=full.sockets)
            tasks = [asyncio.create_task(client.allocate("8MiB", wait=60)) for _ in range(3)]
            await until("they wait", lambda: len(waits(full)) == 3)
            begun = time.monotonic()
            await client.close()
            assert all(task.done() for task in tasks)
            for task in tasks:
                with pytest.raises(vramd.HandleClosed):
                    await task
            assert time.monotonic() - begun < SOON
            assert not client.is_connected and "closed" in repr(client)
            await client.close()
            with pytest.raises(vramd.HandleClosed):
                await client.list()
            with pytest.raises(vramd.HandleClosed):
                client.pressure_reports()
            await until("the line is empty", lambda: waits(full) == [])
            assert [info.id for info in await holder.list()] == [held.id]

    asyncio.run(main())


def test_foreign_loop_and_bad_arguments_are_refused(daemon: Daemon) -> None:
    async def connect() -> tuple[vramd.aio.Client, vramd.aio.Allocation]:
        client = await vramd.aio.connect(socket_dir=daemon.sockets)
        return client, await client.allocate(MIB)

    async def foreign(client: vramd.aio.Client, memory: vramd.aio.Allocation) -> None:
        calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [client.list, memory.free, memory.pin, client.close]
        for call in calls:
            with pytest.raises(RuntimeError, match="another event loop"):
                await call()
        with pytest.raises(RuntimeError, match="another event loop"):
            client.pressure_reports()

    async def bad() -> None:
        with pytest.raises(ValueError, match="waits_max"):
            vramd.aio.connect(waits_max=0)
        with pytest.raises(vramd.BrokerGone):
            await vramd.aio.connect(socket_dir="/nowhere")
        async with connected(daemon) as client:
            memory = await client.allocate(MIB)
            for wait in (-1, float("nan")):
                with pytest.raises(ValueError):
                    await memory.pin(wait=wait)
            with pytest.raises(TypeError):
                await memory.pin(wait="long")  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                await client.prefetch("weights")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="belongs to its process"):
                pickle.dumps(memory)
            with pytest.raises(AttributeError):
                memory.size = 3  # type: ignore[assignment]

    client, memory = asyncio.run(connect())
    asyncio.run(foreign(client, memory))
    memory.blocking.free()
    client.blocking.close()
    del client, memory
    asyncio.run(bad())


def test_forked_child_is_refused(daemon: Daemon) -> None:
    async def main() -> None:
        async with connected(daemon) as client:
            memory = await client.allocate(MIB)
            pid = os.fork()
            if pid == 0:
                refusals = 0
                for call in (client.list, memory.free, memory.pin):
                    try:
                        await call()
                    except vramd.Forked:
                        refusals += 1
                # It belongs to the parent process, and this does nothing.
                await client.close()
                os._exit(0 if refusals == 3 else 1)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            await memory.free()

    asyncio.run(main())


def test_pressure_reports_reach_every_reader(daemon: Daemon) -> None:
    async def main() -> None:
        async with connected(daemon) as client:
            first, second = client.pressure_reports(), client.pressure_reports()
            for reports in (first, second):
                assert (await anext(reports)).level == "normal"
            memory = await client.allocate(248 * MIB)
            while (await anext(first)).level != "critical":
                pass
            await memory.free()
            while (report := await anext(first)).level != "normal":
                pass
            assert report.device == client.devices[0].uuid
            # The second has not read, and finds the newest report alone.
            assert (await anext(second)).level == "normal"
            assert client.pressure().level == "normal" == client.pressures()[0].level

            async def read() -> int:
                count = 0
                async for _report in second:
                    count += 1
                return count

            task = asyncio.create_task(read())
            await asyncio.sleep(0)
            await client.close()
            assert await asyncio.wait_for(task, 5) >= 0

    asyncio.run(main())


def test_reports_end_with_the_daemon(daemon: Daemon) -> None:
    async def main() -> None:
        with contextlib.suppress(vramd.Error):
            async with connected(daemon) as client:
                reports = client.pressure_reports()
                await anext(reports)
                daemon.kill()
                with pytest.raises(vramd.BrokerGone, match="session has ended"):
                    async with asyncio.timeout(10):
                        async for _report in reports:
                            pass
                with pytest.raises(vramd.BrokerGone):
                    await client.list()

    asyncio.run(main())


def test_lost_client_leaves_nothing(daemon: Daemon, client: vramd.Client) -> None:
    """Neither the client nor an error keeps memory."""

    async def main() -> None:
        lost = await vramd.aio.connect(socket_dir=daemon.sockets)
        memory = await lost.allocate("8MiB")
        with pytest.raises(vramd.InvalidArgument):
            async with memory.pin(parts=range(7, 9)):
                pass
        gc.disable()
        try:
            del memory, lost
            await until("the memory is freed", lambda: client.list() == [])
        finally:
            gc.enable()

    asyncio.run(main())


INTERRUPTED = """
import asyncio, signal, sys, threading, time
import vramd, vramd.aio

async def call(client, memory, kind):
    match kind:
        case "pin":
            async with memory.pin():
                print("pinned")
        case "allocate":
            await client.allocate("8MiB", wait=200)
        case "attach":
            await client.attach("model")
        case "prefetch":
            await (await client.prefetch(memory))
        case "hold":
            held = await client.allocate("2MiB", unpinned=True)
            await asyncio.Event().wait()

async def main():
    async with vramd.aio.connect("interrupted") as client:
        memory = await client.attach("model", unpinned=True)
        async with asyncio.TaskGroup() as group:
            for kind in sys.argv[2:]:
                for _ in range(3):
                    group.create_task(call(client, memory, kind))
            print("ready", flush=True)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
    if sys.argv[1] == "stay":
        sys.stdin.readline()
"""


def ready(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None and child.stdout.readline() == "ready\n"


def interrupt(child: subprocess.Popen[str]) -> float:
    """Sends Ctrl-C, and returns after how long the program has told that it got it."""
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.stdout is not None and child.stdout.readline() == "interrupted\n"
    return time.monotonic() - begun


@pytest.fixture
def crowded(full: Daemon) -> Any:
    """A session holds the whole device, and the model that others want lies below it."""
    with full.connect("holder") as holder:
        model = holder.allocate("8MiB", name="model", lifetime="persistent").seal()
        model.detach()
        held = holder.allocate("16MiB", wait=20)
        yield full, holder, held


@pytest.mark.parametrize("kinds", [["pin"], ["allocate"], ["attach"], ["prefetch"], ["pin", "allocate", "prefetch"]])
def test_interrupt_ends_program_and_leaves_nothing(crowded: Any, kinds: list[str]) -> None:
    daemon, holder, held = crowded
    with daemon.child(INTERRUPTED, "end", *kinds) as child:
        ready(child)
        if kinds != ["prefetch"]:
            eventually("its calls wait", lambda: waits(daemon) != [])
        assert interrupt(child) < SOON
        begun = time.monotonic()
        assert child.wait(20) == 0
        assert time.monotonic() - begun < SOON
    eventually("no wait is left", lambda: waits(daemon) == [])
    eventually("no mapping is left", lambda: holder.describe("model").mapper_count == 0)
    assert len(holder.list()) == 2


def test_interrupted_program_that_goes_on_holds_nothing(crowded: Any) -> None:
    daemon, holder, held = crowded
    with daemon.child(INTERRUPTED, "stay", "pin", "allocate", "attach", "prefetch") as child:
        ready(child)
        eventually("its calls wait", lambda: len(waits(daemon)) >= 4)
        assert interrupt(child) < SOON
        eventually("its calls have left the line", lambda: waits(daemon) == [])
        held.free()
        holder.allocate("16MiB", wait=20).free()
        eventually("only the model is left", lambda: len(holder.list()) == 1)
        child.communicate("\n", timeout=20)
        assert child.returncode == 0


def test_interrupt_ends_program_whose_daemon_does_not_answer(crowded: Any) -> None:
    daemon, holder, _held = crowded
    with daemon.child(INTERRUPTED, "end", "pin", "allocate", "hold") as child:
        ready(child)
        eventually("its calls wait", lambda: waits(daemon) != [])
        # The end of the client waits until these are freed, but not for ever.
        eventually("it has memory", lambda: len(holder.list()) == 2 + 3)
        stop(daemon.pid)
        try:
            assert interrupt(child) < SOON
            begun = time.monotonic()
            assert child.wait(20) == 0
            assert time.monotonic() - begun < SOON
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
    eventually("no wait is left", lambda: waits(daemon) == [])
    eventually("its memory is freed", lambda: len(holder.list()) == 2)


def test_help_reads_like_a_manual() -> None:
    manual = pydoc.render_doc(vramd.aio, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    for words in ("async with vramd.aio.connect", "The bytes that were asked for.", "**Cancelling.**", "`waits_max`"):
        assert words in manual
    for name in vramd.aio.__all__:
        thing = getattr(vramd.aio, name)
        for attribute, value in vars(thing).items() if isinstance(thing, type) else ():
            if not attribute.startswith("_") and attribute not in {"send", "throw", "close"}:
                assert value.__doc__, f"{name}.{attribute} says what it does"


def test_objects_are_recognizable(daemon: Daemon) -> None:
    async def main() -> None:
        async with connected(daemon) as client:
            memory = await client.allocate(MIB, name="llama", lifetime="persistent")
            assert repr(client).startswith(f"<vramd.aio.Client s-{client.session_id} of ")
            assert repr(memory).startswith(f"<vramd.aio.Allocation a-{memory.id} {client.tenant}/llama: ")
            assert "vramd.aio.Sealed" in repr(await memory.seal())

    asyncio.run(main())
