"""Models of transformers over weights of the daemon, beside what transformers loads itself."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
import torch
import transformers
from conftest import ROOT, Daemon, vramctl

import vramd
import vramd.torch
from vramd.integrations.transformers import from_pretrained, weights_of

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def saved(folder: pathlib.Path, *, tied: bool = False, dtype: torch.dtype = torch.float32) -> pathlib.Path:
    """A folder of a small model with random weights, in several files."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=64,
        max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    model.generation_config.max_new_tokens = 5
    model.generation_config.do_sample = False
    model.save_pretrained(folder, max_shard_size="20KB")
    return folder


def plain(folder: pathlib.Path, **more: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **more)


@pytest.fixture(autouse=True)
def shared(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that all calls share finds the daemon by the environment."""
    for name, text in daemon.environment.items():
        monkeypatch.setenv(name, text)


def names(daemon: Daemon) -> str:
    return vramctl(daemon, "ls")


def same(model: Any, expected: Any) -> bool:
    with torch.no_grad():
        return bool(torch.equal(model(TOKENS).logits, expected(TOKENS).logits))


@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_those_of_transformers(tmp_path: pathlib.Path, tied: bool) -> None:
    folder = saved(tmp_path, tied=tied)
    model = from_pretrained(folder, name="tiny")
    assert same(model, plain(folder)) and not model.training
    memory = weights_of(model).memory
    for name, parameter in model.named_parameters():
        assert 0 <= parameter.data_ptr() - memory.device_ptr < memory.size, f"{name} lies in vramd"
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_generation_follows_the_folder(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path)
    model = from_pretrained(folder, name="tiny")
    # The argument spares a module of PyTorch that old versions cannot import.
    written = [each.generate(TOKENS, pad_token_id=0, synced_gpus=False) for each in (model, plain(folder))]
    assert torch.equal(*written) and written[0].shape[1] <= TOKENS.shape[1] + 5


def test_second_process_attaches(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path)
    model = from_pretrained(folder, name="tiny")
    printed = daemon.run(
        "import sys, torch\n"
        "from vramd.integrations.transformers import from_pretrained\n"
        "model = from_pretrained(sys.argv[1], name='tiny')\n"
        f"print(model(torch.tensor({TOKENS.tolist()})).logits.double().sum().item(), model.vramd_weights.memory.id)\n",
        folder,
    )
    total, identifier = printed.split()
    assert float(total) == model(TOKENS).logits.double().sum().item()
    assert int(identifier) == weights_of(model).memory.id


def test_weights_may_leave_between_uses(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path)
    model = from_pretrained(folder, name="tiny", hold=False, unpinned=True)
    with weights_of(model).pin():
        assert same(model, plain(folder))
    with vramd.torch.debug(), pytest.raises(vramd.NotResident):
        model(TOKENS)


def test_class_of_a_base_model_takes_names_by_rename(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path)
    with pytest.raises(ValueError, match=r"does not fit LlamaModel: it lacks embed_tokens\.weight"):
        from_pretrained(folder, model_class=transformers.AutoModel)
    model = from_pretrained(
        folder, model_class=transformers.AutoModel, rename=lambda name: f"model.{name}", strict=False
    )
    expected = transformers.AutoModel.from_pretrained(folder)
    assert torch.equal(model(TOKENS).last_hidden_state, expected(TOKENS).last_hidden_state)


def test_type_of_the_checkpoint_is_named_or_refused(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path, dtype=torch.bfloat16)
    config = transformers.AutoConfig.from_pretrained(folder)
    assert from_pretrained(folder).dtype == torch.bfloat16, "as the configuration says"
    with pytest.raises(ValueError, match=r"in torch\.bfloat16, and the model in torch\.float32"):
        from_pretrained(folder, name="tiny", config=config, dtype=torch.float32)
    assert "tiny" not in names(daemon), "it is refused before anything is loaded"


def test_other_formats_are_refused_by_name(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(vramd.InvalidCheckpoint, match=r"has pytorch_model\.bin, and only safetensors"):
        from_pretrained(folder, name="tiny")
    with pytest.raises(ValueError, match=r"'org/model' is no folder"):
        from_pretrained("org/model")
    assert "tiny" not in names(daemon)


def test_quantized_checkpoint_is_refused(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.quantization_config = {"quant_method": "fp8"}
    with pytest.raises(ValueError, match="quantized weights"):
        from_pretrained(folder, config=config)


def test_checkpoint_of_another_model_is_refused(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.num_hidden_layers = 1
    with pytest.raises(ValueError, match=r"does not fit LlamaForCausalLM: it lacks nothing, and the model lacks"):
        from_pretrained(folder, name="tiny", config=config)
    assert "tiny" not in names(daemon)


def test_block_of_the_page_runs(tmp_path: pathlib.Path) -> None:
    page = (ROOT / "docs/guides/engines.md").read_text()
    [block] = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    folder = saved(tmp_path)
    exec(block, {"torch": torch, "folder": folder, "tokens": TOKENS, "plain": plain(folder)})
