"""Parameters that one process has prepared, and other processes adopt: what the load formats of engines rest on."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from conftest import MIB, Daemon, eventually

import vramd
from vramd.integrations import modules
from vramd.integrations.modules import SharedModule, find, publish

WIDTH = 32


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return x @ self.weight


class Model(torch.nn.Module):
    """Tied, with a buffer that it writes, and a placeholder that is dropped while it is prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer()
        self.head = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.first.weight
        self.register_buffer("table", torch.arange(8.0), persistent=False)
        self.raw = torch.nn.Parameter(torch.randn(4))
        self.zeros = torch.nn.Parameter(torch.empty(0))

    def prepare(self) -> None:
        """As engines do after they have loaded: a transposed weight, a new scale, and one name less."""
        self.second.weight = torch.nn.Parameter(self.second.weight.detach().t().contiguous().t())
        self.second.scale = torch.nn.Parameter(torch.full((1,), 0.5))
        self.raw = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x)) * self.second.scale) + self.table[0]


X = torch.ones(2, WIDTH)


@pytest.fixture(autouse=True)
def no_leftovers() -> Any:
    with torch.no_grad():
        yield
    modules._shared.clear()


def prepared() -> Model:
    torch.manual_seed(3)
    model = Model()
    model.prepare()
    return model


def on_meta() -> Model:
    with vramd.torch.on_meta():
        return Model()


def lies_in(shared: SharedModule, tensor: torch.Tensor) -> bool:
    memory = shared.weights.memory
    return bool(0 <= tensor.data_ptr() - memory.device_ptr < memory.size)


def test_adopted_module_computes_what_the_published_one_does(client: vramd.Client) -> None:
    model = prepared()
    expected = model(X)
    shared = publish(model, "model", "key", client=client)
    assert torch.equal(model(X), expected), "the published module computes with shared parameters"
    again = find("model", "key", client=client)
    assert again is not None
    adopted = on_meta()
    again.adopt(adopted)
    modules.drop_meta(adopted)
    assert torch.equal(adopted(X), expected)
    for each, of in ((model, shared), (adopted, again)):
        for name, parameter in each.named_parameters():
            assert lies_in(of, parameter) or not parameter.numel(), name
            assert not parameter.requires_grad, name
    assert adopted.head.weight is adopted.first.weight and adopted.second.weight.stride() == (1, WIDTH)
    assert adopted.raw is None and adopted.zeros.shape == (0,)


def test_buffers_are_private(client: vramd.Client) -> None:
    model = prepared()
    publish(model, "model", "key", client=client)
    shared = find("model", "key", client=client)
    assert shared is not None
    first, second = on_meta(), on_meta()
    shared.adopt(first)
    shared.adopt(second)
    first(X)
    first(X)
    assert first.first.steps.item() == 2 and second.first.steps.item() == 0
    assert not lies_in(shared, first.first.steps) and "table" not in first.state_dict()


def test_own_memory_of_the_published_module_is_freed(client: vramd.Client) -> None:
    model = prepared()
    before = model.second.weight
    shared = publish(model, "model", "key", client=client)
    assert model.second.weight is before, "the object stays, with what the engine has noted on it"
    assert lies_in(shared, before)


def test_other_process_adopts_the_same_bytes(daemon: Daemon, client: vramd.Client) -> None:
    model = prepared()
    publish(model, "model", "key", client=client, attributes={"has_own_head": True})
    printed = daemon.run(
        "import torch\n"
        "from vramd.integrations.modules import find\n"
        "shared = find('model', 'key')\n"
        "tensors = {name: tensor for name, _, tensor in shared.tensors()}\n"
        "print(shared.attributes, tensors['second.weight'].double().sum().item())\n"
    )
    assert printed.split("}")[0] == "{'has_own_head': True"
    assert float(printed.split()[-1]) == model.second.weight.double().sum().item()


def test_another_key_is_refused_and_the_module_stays(client: vramd.Client) -> None:
    publish(prepared(), "model", "key", client=client)
    model = prepared()
    before = model.first.weight.data_ptr()
    with pytest.raises(vramd.OtherContent, match="'key', and 'other' is meant"):
        publish(model, "model", "other", client=client)
    assert model.first.weight.data_ptr() == before
    vramd.save({"a": torch.ones(1)}, "plain", client=client)
    with pytest.raises(vramd.OtherContent, match="has the key None"):
        find("plain", "key", client=client)
    assert find("nothing", "key", client=client) is None


def test_two_that_publish_at_once_share_one(daemon: Daemon, client: vramd.Client) -> None:
    models = [prepared(), prepared()]
    gate = threading.Barrier(2)
    made: list[SharedModule] = []

    def run(model: Model, own: vramd.Client) -> None:
        with torch.no_grad():
            gate.wait()
            made.append(publish(model, "model", "key", client=own))

    with daemon.connect("other") as other:
        threads = [threading.Thread(target=run, args=each) for each in zip(models, (client, other), strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [shared.weights.memory.id for shared in made] == [made[0].weights.memory.id] * 2
        assert torch.equal(models[0](X), models[1](X))
        for shared in made:
            shared.close()


def test_asleep_parameters_leave_and_come_back_at_their_address(streaming: Daemon) -> None:
    with streaming.connect() as client:
        model = prepared()
        expected = model(X)
        shared = publish(model, "model", "key", client=client)
        address = model.first.weight.data_ptr()
        # Another tenant's memory fits only where nothing else is pinned.
        with pytest.raises(vramd.Error):
            client.allocate(8 * MIB, wait=0.2)
        modules.sleep_all()
        other = client.allocate(8 * MIB, wait=5)
        assert modules.resident_bytes(shared.weights) == 0
        other.free()
        modules.wake_up_all()
        assert model.first.weight.data_ptr() == address and torch.equal(model(X), expected)
        shared.close()


def test_publishing_needs_room_for_one_copy(streaming: Daemon) -> None:
    """Memory of the module itself is in the device's way until it is freed, as here another allocation is."""
    with streaming.connect() as client:
        layers = torch.nn.ModuleList(torch.nn.Linear(512, 512, bias=False) for _ in range(6))
        expected = [layer.weight.clone() for layer in layers]
        own = client.allocate(4 * MIB)
        done: list[SharedModule] = []
        options: Any = {"client": client, "part_size": "2MiB"}
        thread = threading.Thread(target=lambda: done.append(publish(layers, "model", "key", **options)))
        thread.start()
        # All six need more than is left, and wait for it once the module has let go of its own.
        eventually("the module has been pointed at it", lambda: not layers[5].weight.requires_grad)
        own.free()
        thread.join()
        assert all(map(torch.equal, (layer.weight for layer in layers), expected))
        done[0].close()


def test_parameters_on_the_device_before_are_counted(client: vramd.Client) -> None:
    published = publish(prepared(), "model", "key", client=client)
    found = find("model", "key", client=client)
    assert found is not None and found.resident_before == modules.resident_bytes(published.weights) > 0


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (torch.ones(4, 8)[:, :3], "'odd' has gaps between its elements"),
        (torch.ones(2, 2, device="meta"), "'odd' has no bytes of its own"),
    ],
)
def test_parameter_that_cannot_be_shared_is_named(client: vramd.Client, tensor: torch.Tensor, told: str) -> None:
    model = torch.nn.Module()
    model.odd = torch.nn.Parameter(tensor)
    with pytest.raises(ValueError, match=told):
        publish(model, "model", "key", client=client)
    assert find("model", "key", client=client) is None


def test_closed_module_lets_its_memory_go(client: vramd.Client) -> None:
    shared = publish(prepared(), "model", "key", client=client)
    shared.close()
    modules.wake_up_all()
    gc.collect()
    eventually("it has no pin", lambda: shared._pin is None)
    shared.weights.free()


def test_module_of_another_architecture_is_refused(client: vramd.Client) -> None:
    shared = publish(prepared(), "model", "key", client=client)
    with pytest.raises(ValueError, match="Linear has no module 'first'"):
        shared.adopt(torch.nn.Linear(2, 2))
