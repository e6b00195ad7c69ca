"""PyTorch over weights of the daemon, on simulated devices: tensors, modules, and modules whose blocks come and go."""

from __future__ import annotations

import gc
import inspect
import json
import pathlib
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import MIB, Daemon, eventually, vramctl

import vramd
import vramd.torch

WIDTH = 64


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.inner(x)).relu()


class Model(torch.nn.Module):
    """A small model with tied weights, buffers that it writes, and one that no checkpoint has."""

    positions: torch.Tensor

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(100, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.head = torch.nn.Linear(WIDTH, 100, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("positions", torch.arange(8, dtype=torch.float32).reshape(8, 1), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions[: len(tokens)]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


TOKENS = torch.tensor([1, 5, 7, 99])


@pytest.fixture
def trained() -> Model:
    torch.manual_seed(7)
    model = Model()
    model.eval()
    return model


@pytest.fixture
def saved(trained: Model, client: vramd.Client) -> vramd.Weights:
    return vramd.save(trained.state_dict(), "model", client=client)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def on_meta() -> Model:
    with vramd.torch.on_meta():
        model = Model()
    model.eval()
    return model


def test_saved_tensors_are_shared_without_a_copy(trained: Model, saved: vramd.Weights, client: vramd.Client) -> None:
    tensors = saved.tensors()
    for name, tensor in trained.state_dict().items():
        assert torch.equal(tensors[name], tensor) and tensors[name].dtype == tensor.dtype, name
    again = vramd.Weights.attach("model", client=client).tensors()
    assert again["head.weight"].data_ptr() == tensors["head.weight"].data_ptr()
    assert tensors["head.weight"].data_ptr() == tensors["embed.weight"].data_ptr(), "one tensor stays one"
    base = saved.memory.device_ptr
    assert all(base <= tensor.data_ptr() < base + saved.memory.size for tensor in tensors.values())


def test_tensor_that_holds_keeps_the_memory(saved: vramd.Weights) -> None:
    part = saved.tensors()["blocks.0.inner.weight"][3:5]
    with pytest.raises(vramd.Pinned):
        saved.free()
    del part
    gc.collect()
    saved.free()


def test_memory_is_a_tensor_by_dlpack(client: vramd.Client) -> None:
    memory = client.allocate(64)
    tensor = torch.from_dlpack(memory.tensor((4, 4), "float32"))
    assert (tensor.shape, tensor.dtype, tensor.data_ptr()) == ((4, 4), torch.float32, memory.device_ptr)
    tensor.fill_(3)
    assert memory.copy_to() == struct.pack("<16f", *[3] * 16)
    with pytest.raises(vramd.Pinned):
        memory.seal()
    del tensor
    gc.collect()
    sealed = memory.seal()
    # DLPack says what is read-only from 1.0 on, which PyTorch 1.13 does not have.
    with pytest.raises(BufferError, match="sealed"):
        torch.from_dlpack(sealed.tensor((4, 4), "float32"))


class Squares(torch.utils.data.Dataset[int]):
    """Data of its own, which no worker needs a client for."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, at: int) -> int:
        return at * at


class Rows(Squares):
    """Data of an allocation, which each worker attaches by its name."""

    weights: vramd.Weights | None = None

    def __getitem__(self, at: int) -> Any:
        if self.weights is None:
            self.weights = vramd.Weights.attach("model")
        return self.weights.tensors()["embed.weight"][at].clone()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_load_data_beside_a_client(
    trained: Model, saved: vramd.Weights, client: vramd.Client, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    for name, value in daemon.environment.items():
        monkeypatch.setenv(name, value)
    model, tensors = on_meta(), saved.tensors()
    saved.bind(model)
    squares, rows = (
        torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=method)
        for data in (Squares(), Rows())
    )
    # A spawned worker imports PyTorch, which takes seconds.
    for _ in range(2 if method == "fork" else 1):
        assert torch.cat(list(squares)).tolist() == [at * at for at in range(16)]
        assert torch.equal(model(TOKENS), trained(TOKENS)), "the parent's memory stands"
    assert torch.equal(torch.cat(list(rows)), trained.embed.weight[:16])
    eventually("the workers' sessions have ended", lambda: client.describe("model").mapper_count <= 1)
    assert client.is_connected and torch.equal(tensors["embed.weight"], trained.embed.weight)


TEARDOWN = """
import gc, sys
sys.path.insert(0, sys.argv[1])
import torch
import vramd, vramd.torch
from test_torch import TOKENS, on_meta
alive = {"client": vramd.connect("ends")}
alive["weights"] = vramd.Weights.attach("model", client=alive["client"])
alive["module"] = on_meta()
alive["weights"].bind(alive["module"])
with torch.no_grad():
    expected = alive["module"](TOKENS)
    for name in sys.argv[2:]:
        gone = alive.pop(name)
        if name == "client":
            gone.close()
        del gone
        gc.collect()
        if "module" in alive:
            assert torch.equal(alive["module"](TOKENS), expected)
print("done", flush=True)
"""


@pytest.mark.parametrize("order", ["", "weights", "client", "client weights", "weights client module", "module client"])
def test_module_may_outlive_weights_client_and_interpreter(
    saved: vramd.Weights, daemon: Daemon, order: str
) -> None:
    assert daemon.run(TEARDOWN, pathlib.Path(__file__).parent, *order.split()) == "done\n"
    eventually("its session has ended", lambda: saved.client.describe("model").mapper_count <= 1)


def test_module_on_meta_computes_the_same_once_bound(trained: Model, saved: vramd.Weights) -> None:
    model = on_meta()
    assert model.embed.weight.is_meta and not model.positions.is_meta
    saved.bind(model)
    assert torch.equal(model(TOKENS), trained(TOKENS))
    assert model.head.weight is model.embed.weight and not model.embed.weight.requires_grad
    base, size = saved.memory.device_ptr, saved.memory.size
    for name, parameter in model.named_parameters():
        assert 0 <= parameter.data_ptr() - base < size, name
    for name, buffer in model.named_buffers():
        assert not 0 <= buffer.data_ptr() - base < size, f"{name} is private"


def test_module_that_trains_its_buffers_writes_private_ones(saved: vramd.Weights) -> None:
    model = on_meta()
    saved.bind(model)
    digest = saved.digest_of("blocks.0.norm.running_mean")
    before = model.blocks[0].norm.running_mean.clone()
    model.train()
    model(TOKENS)
    assert not torch.equal(model.blocks[0].norm.running_mean, before)
    assert saved.digest_of("blocks.0.norm.running_mean") == digest


def test_tied_parameter_may_have_one_name_in_the_checkpoint(trained: Model, client: vramd.Client) -> None:
    state = {name: tensor for name, tensor in trained.state_dict().items() if name != "head.weight"}
    state["embed.weight"] = state["embed.weight"].reshape(-1)
    weights = vramd.save(state, "once", client=client)
    model = on_meta()
    model.head.weight = model.embed.weight
    weights.bind(model)
    assert model.head.weight is model.embed.weight and model.embed.weight.shape == (100, WIDTH), "reshaped"
    assert torch.equal(model(TOKENS), trained(TOKENS))


def test_names_that_do_not_fit_leave_the_module_as_it_was(trained: Model, client: vramd.Client) -> None:
    state = dict(trained.state_dict())
    state["extra"] = torch.ones(1)
    del state["blocks.1.inner.bias"]
    weights = vramd.save(state, "other", client=client)
    model = on_meta()
    with pytest.raises(ValueError, match=r"lacks blocks.1.inner.bias, and the module lacks extra"):
        weights.bind(model)
    assert all(parameter.is_meta for parameter in model.parameters())
    weights.bind(model, strict=False)
    assert model.blocks[1].inner.bias.is_meta
    prefixed = vramd.save({f"model.{name}": tensor for name, tensor in trained.state_dict().items()}, "p", client=client)
    model = on_meta()
    prefixed.bind(model, rename=lambda name: f"model.{name}")
    assert torch.equal(model(TOKENS), trained(TOKENS))
    small = vramd.save(trained.state_dict() | {"embed.weight": torch.ones(3)}, "small", client=client)
    with pytest.raises(ValueError, match=r"embed.weight has the shape \(100, 64\)"):
        small.bind(on_meta())


def checkpoint_with_f6(path: pathlib.Path) -> pathlib.Path:
    """A float32 tensor `a` of ones, and a tensor `scales` of a type that no PyTorch has."""
    header = {
        "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "scales": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [16, 19]},
    }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<4f", 1, 1, 1, 1) + b"abc")
    return path


@pytest.mark.parametrize("hold", [True, False])
def test_tensor_of_a_type_that_pytorch_lacks_is_left_out(
    client: vramd.Client, tmp_path: pathlib.Path, hold: bool
) -> None:
    weights = vramd.load(checkpoint_with_f6(tmp_path / "f6.safetensors"), client=client)
    with pytest.warns(UserWarning, match="'scales' has the type F6_E2M3, which PyTorch .* does not have"):
        tensors = weights.tensors(hold=hold)
    assert list(tensors) == ["a"]
    entry = weights.entry("scales")
    with pytest.raises(TypeError, match="neither NumPy nor PyTorch.*memory_of.*entry"):
        weights["scales"]
    view = weights.memory_of("scales").tensor(entry.nbytes, "uint8", entry.start)
    assert bytes(memoryview(view)) == b"abc"

    class Scaled(torch.nn.Module):
        def __init__(self, **names: int) -> None:
            super().__init__()
            for name, count in names.items():
                self.register_parameter(name, torch.nn.Parameter(torch.zeros(count)))

    other, whole, empty = Scaled(a=4), Scaled(a=4, scales=4), Scaled()
    with pytest.raises(ValueError, match="the module lacks scales"):
        weights.bind(other, hold=hold)
    weights.bind(other, hold=hold, strict=False)
    with weights.pin():
        assert other.a.tolist() == [1, 1, 1, 1]
    for strict in (True, False):
        with pytest.raises(TypeError, match="'scales' has the type F6_E2M3"):
            weights.bind(whole, hold=hold, strict=strict)
        assert whole.a.tolist() == [0, 0, 0, 0], "the module is as it was"
    weights.bind(empty, hold=hold, strict=False)


def test_bound_module_takes_the_types_of_the_checkpoint(client: vramd.Client) -> None:
    """As by `load_state_dict(assign=True)`, of which only the requirement of gradients is another."""
    plain = torch.nn.BatchNorm1d(3).double()
    model, assigned = torch.nn.BatchNorm1d(3).half(), torch.nn.BatchNorm1d(3).half()
    vramd.save(plain.state_dict(), "double", client=client).bind(model)
    for name, tensor in plain.state_dict().items():
        assert model.state_dict()[name].dtype == tensor.dtype, name
    if "assign" in inspect.signature(assigned.load_state_dict).parameters:
        assigned.load_state_dict(plain.state_dict(), assign=True)
        assert {name: tensor.dtype for name, tensor in assigned.state_dict().items()} == {
            name: tensor.dtype for name, tensor in model.state_dict().items()
        }


def test_unheld_tensors_are_stable_and_leave(streaming: Daemon, tmp_path: pathlib.Path) -> None:
    client = streaming.connect()
    state = {f"t{at}": torch.full((2 * MIB,), at, dtype=torch.uint8) for at in range(3)}
    weights = vramd.save(state, "m", client=client)
    tensors = weights.tensors(hold=False)
    weights.unpin()
    other = client.allocate("8MiB", wait=20)
    assert client.describe("m").resident == 0
    other.free()
    with weights.pin():
        assert all(torch.equal(tensors[name], tensor) for name, tensor in state.items())


def test_pin_may_end_in_another_thread(streaming: Daemon) -> None:
    client = streaming.connect()
    state = {f"t{at}": torch.full((2 * MIB,), at, dtype=torch.uint8) for at in range(3)}
    weights = vramd.save(state, "m", client=client)
    weights.unpin()
    pin = weights.pin()
    pin.__enter__()
    assert client.describe("m").resident >= 6 * MIB
    ending = threading.Thread(target=pin.__exit__, args=(None, None, None))
    ending.start()
    ending.join()
    # It fits only once nothing is pinned.
    client.allocate("8MiB", wait=20).free()


def test_debug_mode_names_a_tensor_used_outside_of_a_pin(saved: vramd.Weights) -> None:
    tensors = saved.tensors(hold=False)
    weight = tensors["blocks.2.inner.weight"]
    with vramd.torch.debug():
        with pytest.raises(vramd.NotResident, match=r"'blocks.2.inner.weight' of <vramd.Weights"):
            weight[1:3] + 1
        with pytest.raises(vramd.NotResident, match="blocks.2.inner.weight"):
            torch.stack([torch.ones(WIDTH, WIDTH), weight])
        with saved.pin():
            assert (weight + 1).shape == (WIDTH, WIDTH)
        with pytest.raises(vramd.NotResident):
            weight.sum()
        assert (torch.ones(3) + 1).sum() == 6
        held = saved.tensors()["blocks.2.inner.weight"]
        assert torch.equal(held[1:3].t(), held.t()[:, 1:3]), "what holds is not watched"
    del tensors, weight
    gc.collect()
    assert not vramd.torch._unheld, "nothing is watched any longer"


@pytest.fixture
def large(streaming: Daemon) -> tuple[vramd.Weights, torch.nn.Module, torch.nn.Module]:
    """A model of eight layers of 2 MiB on a device of 8, with one on the CPU that computes the same."""
    torch.manual_seed(3)
    plain = torch.nn.Sequential(*(torch.nn.Linear(724, 724, bias=False) for _ in range(8)))
    client = streaming.connect()
    with vramd.torch.on_meta():
        model = torch.nn.Sequential(*(torch.nn.Linear(724, 724, bias=False) for _ in range(8)))
    state = plain.state_dict()
    memory = vramd.save(state, "large", client=client, part_size="2MiB", unpinned=True)
    memory.bind(model, hold=False)
    return memory, model, plain


def test_model_larger_than_the_device_computes_by_blocks(
    large: tuple[vramd.Weights, torch.nn.Module, torch.nn.Module],
) -> None:
    weights, model, plain = large
    x = torch.randn(2, 724)
    with vramd.torch.movable(model, weights) as moving, vramd.torch.debug():
        for _ in range(3):
            assert torch.equal(model(x), plain(x))
        assert "8 blocks" in repr(moving)
    with vramd.torch.debug(), pytest.raises(vramd.NotResident):
        model(x)


@pytest.mark.parametrize("passes", [0, None], ids=["declared", "undeclared"])
def test_declared_block_arrives_before_its_hook_pins_it(
    streaming: Daemon, large: tuple[vramd.Weights, torch.nn.Module, torch.nn.Module], passes: int | None
) -> None:
    weights, model, plain = large
    x = torch.randn(2, 724)
    weights.unpin()
    weights.client.allocate("8MiB", wait=20).free()
    assert weights.client.describe("large").resident == 0
    with vramd.torch.movable(model, weights, passes=passes) as moving:
        looks: list[bool] = []

        def look(*_call: object) -> None:
            """While block 2 computes."""
            if passes is None:
                time.sleep(0.5)
            else:
                eventually("block 3 has arrived", lambda: is_on_device(streaming, weights, moving._ranges[3]))
            looks.append(is_on_device(streaming, weights, moving._ranges[3]))

        model[2].register_forward_pre_hook(look)
        assert torch.equal(model(x), plain(x))
        assert looks == [passes is not None]


def is_on_device(daemon: Daemon, weights: vramd.Weights, ranges: list[range]) -> bool:
    assert weights.name is not None
    parts = json.loads(vramctl(daemon, "alloc", "show", weights.name, "--json"))["allocation"]["parts"]
    return all(parts[part]["tier"] == "device" for each in ranges for part in each)


def test_call_that_fails_keeps_no_pin(large: tuple[vramd.Weights, torch.nn.Module, torch.nn.Module]) -> None:
    weights, model, plain = large
    moving = vramd.torch.movable(model, weights)
    for _ in range(20):
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 3))
        # Before 2.0 PyTorch says nothing of the failure, and the next call ends the pins.
        assert len(weights.pinned_parts()) == (0 if vramd.torch.ALWAYS_CALL else 1)
    x = torch.ones(2, 724)
    assert torch.equal(model(x), plain(x))
    assert not weights.pinned_parts()
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 3))
    moving.remove()
    assert not weights.pinned_parts()
    eventually("all may leave", lambda: try_allocate(weights.client))


def test_module_computes_on_after_its_declared_passes(
    large: tuple[vramd.Weights, torch.nn.Module, torch.nn.Module],
) -> None:
    weights, model, plain = large
    x = torch.randn(2, 724)
    with vramd.torch.movable(model, weights, passes=2) as moving:
        for number in range(4):
            assert torch.equal(model(x), plain(x))
            assert (moving._sequence is None) == (number >= 2)


def test_threads_keep_pins_of_their_own(large: tuple[vramd.Weights, torch.nn.Module, torch.nn.Module]) -> None:
    weights, model, plain = large
    inside, goes_on = threading.Event(), threading.Event()
    x = torch.randn(2, 724)

    def stop(*_call: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert goes_on.wait(30)

    with vramd.torch.movable(model, weights, passes=None):
        model[0].register_forward_pre_hook(stop)
        found: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: found.append(no_gradients(model, x)))
        thread.start()
        assert inside.wait(30)
        assert torch.equal(model(x), plain(x))
        assert weights.pinned_parts(), "the other thread's block is still there"
        goes_on.set()
        thread.join(30)
        assert torch.equal(found[0], plain(x))
    assert not weights.pinned_parts()


def no_gradients(model: torch.nn.Module, x: torch.Tensor) -> Any:
    with torch.no_grad():
        return model(x)


def test_tied_and_empty_blocks_have_what_they_use(streaming: Daemon) -> None:
    torch.manual_seed(5)

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(
                [torch.nn.Linear(512, 512, bias=False), torch.nn.ReLU(), torch.nn.Linear(512, 512, bias=False)]
            )
            self.head = torch.nn.Linear(512, 512, bias=False)
            self.layers[2].weight = self.layers[0].weight
            self.head.weight = self.layers[0].weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    plain, x = Tied(), torch.randn(2, 512)
    weights = vramd.save(plain.state_dict(), "tied", client=streaming.connect(), unpinned=True)
    with vramd.torch.on_meta():
        model = Tied()
    weights.bind(model, hold=False)
    with vramd.torch.movable(model, weights), vramd.torch.debug():
        for _ in range(3):
            assert torch.equal(model(x), plain(x))


def test_recurrent_and_doubled_modules_are_bound(client: vramd.Client) -> None:
    torch.manual_seed(6)
    plain, x = torch.nn.LSTM(4, 4), torch.randn(3, 2, 4)
    with vramd.torch.on_meta():
        model = torch.nn.LSTM(4, 4)
    vramd.save(plain.state_dict(), "lstm", client=client).bind(model)
    assert torch.equal(model(x)[0], plain(x)[0])

    class Doubled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(4, 4)
            self.b = self.a
            self.p = torch.nn.Parameter(torch.ones(4))
            self.q = self.p

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)) * self.p + self.q

    doubled = Doubled()
    for number, state in enumerate((doubled.state_dict(), {"b.weight": doubled.a.weight, "b.bias": doubled.a.bias, "q": doubled.q})):
        with vramd.torch.on_meta():
            again = Doubled()
        assert again.p is again.q
        vramd.save(state, f"doubled-{number}", client=client).bind(again)
        assert torch.equal(again(x), doubled(x))


def test_only_the_building_thread_builds_on_meta() -> None:
    with vramd.torch.on_meta():
        with vramd.torch.on_meta():
            pass
        assert torch.nn.Linear(2, 2).weight.is_meta
        built: list[torch.nn.Module] = []
        thread = threading.Thread(target=lambda: built.append(torch.nn.Linear(2, 2)))
        thread.start()
        thread.join()
        assert not built[0].weight.is_meta
    assert not torch.nn.Linear(2, 2).weight.is_meta


def test_unheld_tensors_keep_their_weights_attached(client: vramd.Client, saved: vramd.Weights) -> None:
    tensor = vramd.Weights.attach("model", client=client, unpinned=True).tensors(hold=False)["embed.weight"]
    gc.collect()
    with vramd.torch.debug(), pytest.raises(vramd.NotResident):
        tensor.sum()


def try_allocate(client: vramd.Client) -> bool:
    try:
        client.allocate("8MiB", wait=5).free()
    except vramd.Error:
        return False
    return True


def test_tensors_that_cannot_be_saved_are_refused(client: vramd.Client) -> None:
    for state, error, words in [
        ({}, ValueError, "no tensors"),
        ({"a": torch.ones(0)}, ValueError, "'a' has no elements"),
        ({"a": torch.ones(2, device="meta")}, TypeError, "'a' has no bytes"),
        ({"a": torch.ones(2, dtype=torch.complex128)}, TypeError, "torch.complex128"),
    ]:
        with pytest.raises(error, match=words):
            vramd.save(state, "a", client=client)
    assert not client.list()
    strided = torch.arange(12.0).reshape(3, 4).t()
    assert torch.equal(vramd.save({"t": strided}, "t", client=client).tensors()["t"], strided)
    with pytest.raises(vramd.NameTaken):
        vramd.save({"t": strided}, "t", client=client)
    again = vramd.save({"t": strided + 1}, "t", client=client, replace=True)
    assert torch.equal(again.tensors()["t"], strided + 1)


def test_types_of_pytorch_round_trip(client: vramd.Client) -> None:
    kinds = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
             torch.float32, torch.float64, torch.complex64)  # fmt: skip
    state = {str(kind): torch.tensor([[1, 0, 1]]).to(kind) for kind in kinds}
    tensors = vramd.save(state, "kinds", client=client).tensors()
    for name, tensor in state.items():
        assert tensors[name].dtype == tensor.dtype and torch.equal(tensors[name], tensor), name
