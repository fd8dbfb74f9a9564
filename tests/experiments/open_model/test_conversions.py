"""How each kind of variant begins: what is zero, what is drawn, what is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope.hf as chf
from contentrope.errors import InputError
from contentrope.training import Stepper
from experiments.conversions import parse_conversion
from experiments.open_model import models
from experiments.open_model.config import OpenModelConfig
from tests.experiments.open_model.tiny import TINY, TOKENIZER, FewBooks, prose, tiny

TEXT = torch.tensor(TOKENIZER(prose(5))["input_ids"])[:96]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model") / "plain"


@pytest.fixture(autouse=True)
def few_books(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "long_context", FewBooks)


def begun(variant: str, folder: Path, **changes: Any) -> Any:
    return models.converted(tiny(folder, **changes), variant, TOKENIZER, TEXT, "cpu")


def trained(variant: str, folder: Path) -> Any:
    config = tiny(folder)
    reader = begun(variant, folder)
    stepper = Stepper(reader, config.training)
    rows = models.batches(config, TOKENIZER, models.read_books(config, TOKENIZER), "cpu")
    reader.train()
    for step in range(3):
        stepper.update(rows.at(step, 2, 0), step)
    return reader.eval()


@torch.no_grad()
def logits(reader: Any, ids: Tensor = TEXT) -> Tensor:
    return reader(ids[None])


@pytest.mark.parametrize("variant", ["content:window=16", "content:window=16,address=none", "content:address=none"])
def test_addresses_begin_at_zero(variant: str, folder: Path) -> None:
    assert begun(variant, folder).model.contentrope.are_zero()


def test_no_address_stays_zero_through_training_and_content_does_not(folder: Path) -> None:
    without, with_content = (trained(f"content:window=16{more}", folder) for more in (",address=none", ""))
    assert without.model.contentrope.are_zero()
    assert not with_content.model.contentrope.are_zero()
    before = begun("content:window=16,address=none", folder)
    assert not torch.allclose(logits(without), logits(before.eval()), atol=1e-3), "the rest of it was trained"


def test_the_exponents_of_no_address_are_learned(folder: Path) -> None:
    reader = begun("content:window=16,address=none,competition=learned", folder)
    names = {name for name, weight in reader.model.contentrope.named_parameters() if weight.requires_grad}
    assert names == {"exponents"}


def by_slot(reader: Any, ids: Tensor) -> Tensor:
    """The addresses that a model gives the units of a text."""
    adapter = chf.adapter_of(reader.model)
    units, _ = adapter.segmenter.advance(adapter.segmenter.initial(len(ids)), ids)
    return adapter.addresses(adapter.embed(ids), units, units.unit, None)[0][:, : int(units.unit.max()) + 1]


def test_random_addresses_differ_between_units_and_are_the_same_at_every_call(folder: Path) -> None:
    variant = "content:window=16,address=random"
    reader = begun(variant, folder).eval()
    found = by_slot(reader, TEXT[None])[0]
    assert len(found) > 3
    apart = (found[:, None] - found[None]).abs().amax((2, 3)) + torch.eye(len(found))
    assert apart.min() > 0.1
    assert torch.equal(found, by_slot(reader, TEXT[None])[0])
    assert torch.equal(found, by_slot(begun(variant, folder).eval(), TEXT[None])[0])
    assert torch.equal(logits(reader), logits(reader))
    assert not torch.allclose(logits(reader), logits(begun("content:window=16", folder).eval()), atol=1e-3)


def test_random_addresses_are_drawn_anew_in_training(folder: Path) -> None:
    reader = begun("content:window=16,address=random", folder).train()
    assert not torch.equal(by_slot(reader, TEXT[None]), by_slot(reader, TEXT[None]))


@pytest.mark.parametrize("window", [0, 16])
@torch.no_grad()
def test_random_addresses_are_the_same_token_by_token(window: int, folder: Path) -> None:
    model = begun(f"content:window={window},address=random", folder).model.eval().double()
    whole = model(TEXT[None], use_cache=False).logits
    cache, steps = None, []
    for token in TEXT:
        out = model(token.view(1, 1), past_key_values=cache, use_cache=True)
        cache, steps = out.past_key_values, [*steps, out.logits]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-6, rtol=1e-6)


def test_a_variant_may_have_units_of_its_own(folder: Path) -> None:
    reader = begun("content:window=16,units=5", folder)
    units, _ = reader.segmenter.advance(reader.segmenter.initial(1), TEXT[None, :12])
    assert units.unit[0].tolist() == [0] * 5 + [1] * 5 + [2] * 2
    lines = begun("content:window=16", folder)
    units, _ = lines.segmenter.advance(lines.segmenter.initial(1), TEXT[None, :12])
    assert units.unit[0].tolist() != [0] * 5 + [1] * 5 + [2] * 2


def test_frequencies_are_rescaled_against_the_models_own_limit(folder: Path) -> None:
    plain, yarn = (begun(name, folder).model for name in ("rope", "yarn:factor=8"))
    assert yarn.config.rope_parameters["original_max_position_embeddings"] == plain.config.max_position_embeddings
    assert not torch.equal(plain.base_model.rotary_emb.inv_freq, yarn.base_model.rotary_emb.inv_freq)


def test_every_variant_of_the_presets_is_trained_on_the_same_rows(folder: Path) -> None:
    config = tiny(folder)
    books = models.read_books(config, TOKENIZER)
    one, two = (models.batches(config, TOKENIZER, books, "cpu").at(3, 2, 1) for _ in range(2))
    assert torch.equal(one.targets, two.targets)
    assert one.targets.shape == (2, config.length)
    assert not torch.equal(one.targets, models.batches(config, TOKENIZER, books, "cpu").at(4, 2, 1).targets)


def test_a_share_of_the_rows_asks_for_what_was_hidden(folder: Path) -> None:
    config = tiny(folder, length=1500, retrieval=0.5)
    books = models.read_books(config, TOKENIZER)
    batch = models.batches(config, TOKENIZER, books, "cpu").at(0, 2, 0)
    weights = batch.weights
    assert weights is not None
    assert [bool((row != 1).any()) for row in weights] == [False, True]
    plain = models.batches(replace(config, retrieval=0.0), TOKENIZER, books, "cpu").at(0, 2, 0)
    assert plain.weights is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("content:address=near", "address must be one of content, random, none; got 'near'"),
        ("content:address=none,start=back", "address=none is not trained; leave out start= and train=lora"),
        ("content:address=random,train=lora", "address=random is not trained"),
        ("content:competition=much", "option 'competition' of scheme 'content' must be a finite number"),
        ("rope:address=none", "has no option address"),
        ("content:window=32", "would meet no far unit in rows of 32 tokens"),
    ],
)
def test_what_is_no_variant_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        replace(TINY, variants=(name,))
    assert message in str(error.value)


def test_the_presets_hold_every_part_to_compare() -> None:
    options = [parse_conversion(name) for name in OpenModelConfig().variants if name.startswith("content")]
    assert {o.address for o in options} == {"content", "random", "none"}  # type: ignore[union-attr]
    assert {o.window for o in options} == {0, 256, 1024, 4096}  # type: ignore[union-attr]
    assert {o.units for o in options} == {"", "sentence", "64"}  # type: ignore[union-attr]
    assert {(o.competition, o.learn_competition) for o in options} == {(0, False), (1, False), (1, True)}  # type: ignore[union-attr]
    training = OpenModelConfig().training
    assert training.steps * training.batch_size * OpenModelConfig().length <= 50_000_000
