"""Converted checkpoints: one way loads them and gives the model that was saved, every other is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, pipeline

import contentrope.hf as chf
from contentrope.errors import CheckpointError, InputError
from contentrope.hf.layout import is_checkpoint, is_converted
from contentrope.hf.loading import load_any
from contentrope.hf.plain import config_of, load_model, load_tokenizer
from contentrope.units import FixedLength
from tests.experiments.retrofit.tiny import LINES, TOKENIZER, addressed_reader, lively_reader, saved_original

CONVERSIONS = ("all", "lora", "merged")


def converted(kind: str, at: Path, **options: Any) -> Any:
    """A model as if converted: all weights trained, LoRA, or LoRA merged; its original lies beside ``at``."""
    reader = addressed_reader(train="all" if kind == "all" else "lora", **options)
    if kind == "all":
        return reader.model
    base = saved_original(at.parent / "original")
    reader.model.peft_config["default"].base_model_name_or_path = str(base)
    return reader.model.merge_and_unload() if kind == "merged" else reader.model


@torch.no_grad()
def logits(model: Any) -> Tensor:
    return model(LINES).logits


def saved(kind: str, folder: Path, **options: Any) -> Tensor:
    """What the model that is now in ``folder`` says."""
    model = converted(kind, folder, **options)
    expected = logits(model)
    chf.save_pretrained(model, folder, TOKENIZER)
    return expected


# --- the one way -----------------------------------------------------------------------------------------------


def test_the_original_is_an_ordinary_checkpoint(tmp_path: Path) -> None:
    folder = saved_original(tmp_path / "original")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "abc\n\n  gh zz\n"
    assert tokenizer(text)["input_ids"] == TOKENIZER(text)["input_ids"]
    assert tokenizer.decode(tokenizer("abc\n\n  gh\n")["input_ids"]) == "abc\n\n  gh\n"
    with torch.no_grad():
        again = AutoModelForCausalLM.from_pretrained(folder)(LINES).logits
        torch.testing.assert_close(again, lively_reader()(LINES))


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("kind", CONVERSIONS)
def test_a_converted_model_comes_back(kind: str, window: int, tmp_path: Path) -> None:
    expected = saved(kind, tmp_path / "saved", competition=0.5, window=window)
    model = chf.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(model), expected)
    assert not model.training
    adapter = chf.adapter_of(model)
    assert (adapter.gate, adapter.competition, adapter.segmenter.max_length) == (0.0, 0.5, 16)
    assert adapter.window == window
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert tokenizer.decode(LINES[0].tolist()) == "abc\nab cdefgh\nab\nfa"
    again, tokenizer = load_any(str(tmp_path / "saved"))
    assert torch.equal(logits(again), expected)
    assert len(tokenizer) == len(TOKENIZER)


def test_other_settings_come_back(tmp_path: Path) -> None:
    model: Any = chf.attach(
        lively_reader().model, units=5, max_length=8, reader={3}, positions=0.25, learn_competition=True
    )
    chf.save_pretrained(model, tmp_path / "saved")
    again = chf.from_pretrained(str(tmp_path / "saved"))
    assert torch.equal(logits(again), logits(model))
    assert chf.adapter_of(again).gate == 0.25


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_what_comes_back_is_saved_again(kind: str, tmp_path: Path) -> None:
    expected = saved(kind, tmp_path / "saved")
    again = chf.from_pretrained(tmp_path / "saved")
    chf.save_pretrained(again, tmp_path / "twice", TOKENIZER)
    assert torch.equal(logits(chf.from_pretrained(tmp_path / "twice")), expected)


def test_a_converted_model_takes_the_place_of_an_earlier_one_and_of_nothing_else(tmp_path: Path) -> None:
    first = saved("all", tmp_path)
    other = converted("all", tmp_path)
    with torch.no_grad():
        other.lm_head.weight.mul_(2)
    chf.save_pretrained(other, tmp_path, TOKENIZER)
    expected = logits(other)
    assert not torch.equal(expected, first)
    assert torch.equal(logits(chf.from_pretrained(tmp_path)), expected)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        saved("all", tmp_path)
    assert torch.equal(logits(chf.from_pretrained(tmp_path)), expected)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "contentrope.json").unlink()
    (tmp_path / "contentrope.safetensors").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        saved("all", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_lora_on_a_converted_model(tmp_path: Path) -> None:
    saved("all", tmp_path / "whole")
    base = chf.from_pretrained(tmp_path / "whole")
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["contentrope"], init_lora_weights=False)
    model = peft.get_peft_model(base, settings, adapter_name="mine").eval()
    with torch.no_grad():
        for weight in chf.adapter_of(model).trained.parameters():
            weight.add_(0.1)
    chf.save_pretrained(model, tmp_path / "changes", TOKENIZER)
    assert torch.equal(logits(chf.from_pretrained(tmp_path / "changes")), logits(model))


def test_the_model_that_lora_changes_may_have_moved(tmp_path: Path) -> None:
    expected = saved("lora", tmp_path / "saved")
    shutil.move(tmp_path / "original", tmp_path / "elsewhere")
    with pytest.raises(InputError, match="base="):
        chf.from_pretrained(tmp_path / "saved")
    model = chf.from_pretrained(tmp_path / "saved", base=tmp_path / "elsewhere")
    assert torch.equal(logits(model), expected)
    chf.save_pretrained(model, tmp_path / "again", TOKENIZER)
    assert torch.equal(logits(chf.from_pretrained(tmp_path / "again")), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["all", "lora"])
def test_dtype_and_device_are_as_asked(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    saved(kind, tmp_path / "saved")
    model = chf.from_pretrained(tmp_path / "saved", dtype=dtype, device=torch.device("cpu"))
    assert model.get_input_embeddings().weight.dtype == dtype
    assert chf.from_pretrained(tmp_path / "saved").get_input_embeddings().weight.dtype == torch.float32


def test_the_tokenizer_may_be_given(tmp_path: Path) -> None:
    model = converted("all", tmp_path / "saved")
    chf.save_pretrained(model, tmp_path / "saved")
    with pytest.raises(CheckpointError, match="tokenizer="):
        chf.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(chf.from_pretrained(tmp_path / "saved", tokenizer=TOKENIZER)), logits(model))


def test_another_tokenizer_of_the_same_size_is_refused(tmp_path: Path) -> None:
    saved("all", tmp_path / "saved")
    text = (tmp_path / "saved" / "tokenizer.json").read_text()
    newline, letter = (TOKENIZER.convert_tokens_to_ids(symbol) for symbol in "\na")
    swapped = json.loads(text)
    swapped["model"]["vocab"] |= {"\n": letter, "a": newline}
    (tmp_path / "saved" / "tokenizer.json").write_text(json.dumps(swapped))
    with pytest.raises(CheckpointError, match=r"units\.parameters\.fingerprint"):
        chf.from_pretrained(tmp_path / "saved")


def test_weights_are_saved_once(tmp_path: Path) -> None:
    saved("all", tmp_path / "saved")
    from safetensors import safe_open

    with safe_open(tmp_path / "saved" / "model.contentrope.safetensors", framework="pt") as file:
        assert not [name for name in file.keys() if name.startswith("contentrope")]  # noqa: SIM118


def test_weights_may_lie_in_several_files(tmp_path: Path) -> None:
    expected = saved("all", tmp_path / "saved")
    model = chf.detach(converted("all", tmp_path / "again"))
    (tmp_path / "saved" / "model.contentrope.safetensors").unlink()
    config = (tmp_path / "saved" / "config.json").read_bytes()
    model.save_pretrained(tmp_path / "saved", variant="contentrope", max_shard_size="4KB")
    (tmp_path / "saved" / "config.json").write_bytes(config)
    assert len(list((tmp_path / "saved").glob("model.contentrope-*"))) > 1
    assert torch.equal(logits(chf.from_pretrained(tmp_path / "saved")), expected)
    with pytest.raises(OSError, match="saved"):
        LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    next((tmp_path / "saved").glob("model.contentrope-*")).unlink()
    with pytest.raises(CheckpointError, match="saved"):
        chf.from_pretrained(tmp_path / "saved")


def test_a_configuration_may_hold_what_json_has_no_number_for(tmp_path: Path) -> None:
    model = converted("all", tmp_path / "saved")
    model.config.limit = [0.0, float("inf")]
    chf.save_pretrained(model, tmp_path / "saved", TOKENIZER)
    assert chf.from_pretrained(tmp_path / "saved").config.limit == [0.0, float("inf")]


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_the_card_says_how_to_load_it(kind: str, tmp_path: Path) -> None:
    saved(kind, tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert 'chf.from_pretrained("saved")' in card
    assert ("base=" in card) == (kind == "lora")
    assert len(list((tmp_path / "saved").rglob("README.md"))) == 1


# --- every other way -------------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[Path], Any]] = {
    "AutoModelForCausalLM": AutoModelForCausalLM.from_pretrained,
    "AutoConfig": AutoConfig.from_pretrained,
    "the class itself": LlamaForCausalLM.from_pretrained,
    "pipeline": lambda folder: pipeline("text-generation", model=str(folder)),
    "AutoPeftModelForCausalLM": peft.AutoPeftModelForCausalLM.from_pretrained,
    "PeftModel": lambda folder: peft.PeftModel.from_pretrained(lively_reader().model, folder),
    "load_adapter": lambda folder: lively_reader().model.load_adapter(str(folder)),
    "finetune": lambda folder: load_model(str(folder)),
    "reproduce": lambda folder: config_of(str(folder)),
}


@pytest.mark.parametrize("kind", CONVERSIONS)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_else_loads_it(way: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    saved(kind, tmp_path / "saved")
    with pytest.raises((ValueError, OSError, InputError)):
        WAYS[way](tmp_path / "saved")


@pytest.mark.parametrize("way", ["AutoModelForCausalLM", "AutoConfig", "pipeline"])
def test_the_refusal_names_what_to_call(way: str, tmp_path: Path) -> None:
    saved("lora", tmp_path / "saved")
    with pytest.raises(ValueError, match=r"contentrope\.hf\.from_pretrained"):
        WAYS[way](tmp_path / "saved")


# --- what earlier versions wrote, and transformers by itself ---------------------------------------------------


def as_before(model: Any, folder: Path) -> None:
    """The folder that the version before this one left."""
    weights = {name: t for name, t in model.state_dict().items() if not name.startswith("contentrope.")}
    model.save_pretrained(folder, **({} if hasattr(model, "get_base_model") else {"state_dict": weights}))
    TOKENIZER.save_pretrained(folder)
    adapter = chf.adapter_of(model)
    rule = adapter.segmenter.rule
    units = {"kind": rule.kind, "marker": rule.marker, "vocabulary": len(rule.ends)}
    settings = json.dumps({"format": 1, **adapter.settings(), "units": units}, indent=2)
    from safetensors.torch import save_file

    tensors = {name: t.contiguous() for name, t in adapter.trained.state_dict().items()}
    save_file(tensors, folder / "contentrope.safetensors", metadata={"contentrope": settings})
    (folder / "contentrope.json").write_text(settings + "\n")


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_earlier_folders_still_open(kind: str, tmp_path: Path) -> None:
    model = converted(kind, tmp_path / "saved", competition=0.5)
    as_before(model, tmp_path / "saved")
    again = chf.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))
    for refused in (load_model, config_of):
        with pytest.raises(InputError, match="from_pretrained"):
            refused(str(tmp_path / "saved"))


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_settings_are_found_where_only_the_addresses_are(kind: str, tmp_path: Path) -> None:
    """Without its JSON such a folder was once loaded as a plain model."""
    model = converted(kind, tmp_path / "saved")
    as_before(model, tmp_path / "saved")
    chf.save_pretrained(model, tmp_path / "new", TOKENIZER)
    for folder in (tmp_path / "saved", tmp_path / "new"):
        (folder / "contentrope.json").unlink()
        assert is_checkpoint(folder)
        assert torch.equal(logits(load_any(str(folder))[0]), logits(model))
        (folder / "contentrope.safetensors").unlink()
        assert is_converted(folder)
        with pytest.raises(CheckpointError, match="no addresses"):
            load_any(str(folder))


def test_a_model_that_transformers_saved_whole_opens(tmp_path: Path) -> None:
    model = converted("all", tmp_path / "saved", competition=0.5)
    model.save_pretrained(tmp_path / "saved")
    TOKENIZER.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(chf.from_pretrained(tmp_path / "saved")), logits(model))


def test_an_adapter_that_peft_saved_without_settings_is_refused(tmp_path: Path) -> None:
    converted("lora", tmp_path / "saved").save_pretrained(tmp_path / "saved")
    TOKENIZER.save_pretrained(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="no addresses"):
        load_any(str(tmp_path / "saved"))


def test_a_plain_checkpoint_is_loaded_as_it_is(tmp_path: Path) -> None:
    folder = saved_original(tmp_path / "original")
    model, _ = load_any(str(folder))
    with pytest.raises(InputError, match="has no addresses"):
        chf.adapter_of(model)
    with pytest.raises(InputError, match="attach"):
        chf.from_pretrained(folder)


# --- rules of one's own ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Every:
    """Cannot be saved."""

    step: int

    def initial(self, batch_size: int, device: torch.device | str) -> Tensor:
        return FixedLength(self.step).initial(batch_size, device)

    def scan(self, ids: Tensor, valid: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return FixedLength(self.step).scan(ids, valid, state)


class Saved(Every):
    def describe(self) -> dict[str, Any]:
        return {"step": self.step}


def test_a_rule_of_ones_own_is_given_again_and_compared(tmp_path: Path) -> None:
    model: Any = chf.attach(lively_reader().model, units=Saved(3))
    chf.save_pretrained(model, tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"Saved.*units="):
        chf.from_pretrained(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"units\.parameters\.step: 4 here, 3"):
        chf.from_pretrained(tmp_path / "saved", units=Saved(4))
    assert torch.equal(logits(chf.from_pretrained(tmp_path / "saved", units=Saved(3))), logits(model))


def test_a_rule_that_says_nothing_of_itself_is_refused_when_saved(tmp_path: Path) -> None:
    model: Any = chf.attach(lively_reader().model, units=Every(3))
    logits(model)
    for save in (chf.save_pretrained, chf.save):
        with pytest.raises(InputError, match=r"Every.*describe\(\)"):
            save(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_rule_saved_by_its_name_alone_is_warned_of(tmp_path: Path) -> None:
    """Files of earlier versions, and what transformers saves by itself."""
    model: Any = chf.attach(lively_reader().model, units=Every(3))
    model.save_pretrained(tmp_path / "saved")
    with pytest.warns(UserWarning, match="Every"):
        again = chf.from_pretrained(tmp_path / "saved", units=Every(3))
    assert torch.equal(logits(again), logits(model))
    with pytest.raises(CheckpointError, match="units"):
        chf.from_pretrained(tmp_path / "saved", units=Saved(3))


# --- what cannot be saved --------------------------------------------------------------------------------------


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    model = converted("lora", tmp_path / "saved")
    with pytest.raises(InputError, match="get_peft_model"):
        chf.save_pretrained(model.get_base_model(), tmp_path / "saved")
    for folder in (tmp_path, tmp_path / "original"):
        with pytest.raises(InputError, match="another folder"):
            chf.save_pretrained(model, folder)
    model.peft_config["default"].base_model_name_or_path = None
    with pytest.raises(InputError, match="merge_and_unload"):
        chf.save_pretrained(model, tmp_path / "saved")
    with pytest.raises(InputError, match="no addresses"):
        chf.save_pretrained(lively_reader().model, tmp_path / "saved")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["original"]
    assert (tmp_path / "original" / "model.safetensors").exists()


# --- what is not there -----------------------------------------------------------------------------------------


def test_without_a_connection_a_hub_name_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for load in (load_tokenizer, load_model):
        with pytest.raises(InputError) as error:
            load("nobody/nothing")
        message = str(error.value)
        assert "model 'nobody/nothing' is no folder here, and the hub did not give it" in message
        assert "hf download nobody/nothing --local-dir DIR" in message


def test_a_path_is_no_hub_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder '/nowhere/at/all'; check the path"):
        load_tokenizer("/nowhere/at/all")
    with pytest.raises(InputError, match="there is no folder '/nowhere/at/all'"):
        chf.from_pretrained("/nowhere/at/all")
    with pytest.raises(CheckpointError, match="holds no model that transformers can load"):
        load_model(str(tmp_path))
    assert not is_checkpoint(tmp_path)
