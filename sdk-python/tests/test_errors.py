"""The tree of errors, against the registry and against what a daemon refuses."""

from __future__ import annotations

import pickle

import pytest
from conftest import MIB, Daemon

import vramd
from vramd import _native, errors

REGISTRY = {name: (code, facts, meaning) for name, code, facts, meaning in _native.reasons()}


@pytest.mark.parametrize("reason", sorted(REGISTRY))
def test_every_reason_of_the_registry_has_its_class_and_facts(reason: str) -> None:
    code, facts, meaning = REGISTRY[reason]
    metadata = {key: str(number) for number, key in enumerate(facts, 7)}
    error = errors.of(None, reason, code, meaning, metadata, 1.5)
    assert code in errors.BY_CODE, "a code has its class"
    assert isinstance(error, errors.BY_CODE[code])
    assert (error.reason, error.code, str(error)) == (reason, code, meaning)
    assert error.metadata == metadata and error.retry_after == 1.5
    for key in errors._facts(type(error)):
        assert key in facts, f"{type(error).__name__}.{key} is a fact of {reason}"
        assert str(getattr(error, key)) == metadata[key]
    if reason in errors.BY_REASON:
        assert set(errors._facts(type(error))) == set(facts) - {"field", "session", "pid"} or reason == "SESSION_LOST"
    bare = errors.of(None, reason, code, meaning, {}, None)
    assert type(bare) is type(error), "missing facts lose no class"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, again.__dict__) == (type(error), error.args, error.__dict__)


def test_unknown_reason_keeps_its_message() -> None:
    error = errors.of(None, "NEWER_THAN_THIS", "ABORTED", "later", {"key": "text"}, None)
    assert type(error) is vramd.Aborted and error.reason == "NEWER_THAN_THIS" and error.metadata == {"key": "text"}
    assert type(errors.of(None, None, "OUT_OF_RANGE", "?", {}, None)) is vramd.Error


def test_all_classes_are_exported() -> None:
    classes = {name for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)}
    assert classes <= set(vramd.__all__)
    assert all(hasattr(vramd, name) for name in vramd.__all__)
    assert set(errors.BY_REASON) <= set(REGISTRY)


def test_limit_error_has_its_numbers(start) -> None:  # type: ignore[no-untyped-def]
    daemon = start(memory="64MiB", more='[quota.default]\nlimit = "16MiB"\n')
    with daemon.connect() as client:
        held = client.allocate("10MiB")
        with pytest.raises(vramd.QuotaExceeded) as refused:
            client.allocate("8MiB")
        error = refused.value
        assert (error.tenant, error.device, error.tier) == (client.tenant, held.device, "device")
        assert (error.limit, error.held, error.asked) == (16 * MIB, 10 * MIB, 8 * MIB)
        assert error.metadata["limit"] == str(16 * MIB)
        assert (error.reason, error.code) == ("QUOTA_LIMIT", "RESOURCE_EXHAUSTED")
        assert isinstance(error, MemoryError) and isinstance(error, vramd.ResourceExhausted)


def test_full_device_error_has_its_numbers(start) -> None:  # type: ignore[no-untyped-def]
    daemon = start(memory="64MiB", more='[quota.default]\nlimit = "1GiB"\n')
    with daemon.connect() as client:
        kept = client.allocate("50MiB")
        with pytest.raises(vramd.DeviceFull) as refused:
            client.allocate("20MiB")
        assert refused.value.device == kept.device
        assert (refused.value.free, refused.value.asked) == (14 * MIB, 20 * MIB)
        with pytest.raises(vramd.DeviceFull, match="is too small: 1 GiB requested, 64 MiB in all"):
            client.allocate("1GiB")


def test_failed_seal_loses_nothing(start) -> None:  # type: ignore[no-untyped-def]
    daemon = start(more='[[driver.sim.faults]]\non = "digest"\neffect = "fail"\nmessage = "no hashes today"\n')
    with daemon.connect() as client:
        memory = client.allocate(MIB, name="one", lifetime="persistent")
        memory.copy_from(b"nothing is lost")
        with pytest.raises(vramd.DriverFailed, match="no hashes today") as failed:
            memory.seal()
        assert failed.value.problem is not None and failed.value.device == memory.device
        assert memory.copy_to(0, 15) == b"nothing is lost"
        sealed = memory.seal()
        assert sealed.copy_to(0, 15) == b"nothing is lost"
        sealed.free()
    daemon.errors_expected = True


def test_name_and_state_errors_have_their_classes(client: vramd.Client, daemon: Daemon) -> None:
    with pytest.raises(vramd.NotFound) as missing:
        client.attach("nobody")
    assert missing.value.reason == "ALLOCATION_NOT_FOUND" and isinstance(missing.value, LookupError)
    assert "`tenant/nobody`" in str(missing.value), "a bare name is one of the own tenant"
    with pytest.raises(vramd.NotFound) as missing:
        client.attach("other/nobody")
    assert "`tenant/" not in str(missing.value)
    with pytest.raises(vramd.NotFound):
        client.attach(12345)
    one = client.allocate(MIB, name="one", lifetime="persistent")
    with daemon.connect() as other:
        with pytest.raises(vramd.NotSealed):
            other.attach("one")
        with pytest.raises(vramd.NameTaken) as taken:
            other.allocate(MIB, name="one")
        assert taken.value.name == f"{client.tenant}/one"
    with pytest.raises(vramd.DeviceUnknown) as unknown:
        client.allocate(MIB, device="GPU-none")
    assert unknown.value.device == "GPU-none"
    one.free()


def test_refused_free_keeps_memory_of_another_session(client: vramd.Client, daemon: Daemon) -> None:
    sealed = client.allocate(MIB, name="mine").seal()
    with daemon.connect() as other:
        attached = other.attach("mine")
        with pytest.raises(vramd.NotOwner):
            attached.free()
        assert attached.is_mapped and attached.copy_to(0, 1) == b"\0"
    assert sealed.is_mapped


def test_dead_daemon_raises_broker_gone(daemon: Daemon) -> None:
    client = daemon.connect()
    memory = client.allocate(MIB)
    memory.copy_from(b"mine")
    view = memoryview(memory)
    daemon.kill()
    for call in (client.list, lambda: client.allocate(MIB), lambda: client.attach("x"), memory.seal):
        with pytest.raises((vramd.BrokerGone, vramd.Pinned)):
            call()
    assert not client.is_connected
    assert bytes(view[:4]) == b"mine" and memory.copy_to(0, 4) == b"mine", "what is mapped stays"
    view.release()
    with pytest.raises(vramd.BrokerGone):
        memory.seal()


def test_slow_call_raises_deadline(start) -> None:  # type: ignore[no-untyped-def]
    daemon = start(more='[[driver.sim.faults]]\non = "create"\neffect = "delay"\ndelay_ms = 3000\n')
    with daemon.connect(timeout=0.3) as client:
        with pytest.raises(vramd.Deadline) as late:
            client.allocate(MIB)
        assert isinstance(late.value, TimeoutError) and late.value.reason == "DEADLINE"
