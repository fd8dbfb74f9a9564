"""An attached model in lm-evaluation-harness, unchanged: what it finds is what the model says when asked directly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import contentrope.hf as chf
from contentrope.hf.characters import character_tokenizer
from tests.hf.models import enliven

pytest.importorskip("lm_eval", reason="needs lm_eval")

TOKENIZER = character_tokenizer("abcdefghij .\n")
TOKENIZER.eos_token = TOKENIZER.pad_token = "\n"
# White space at the end of a context would be counted as part of the choice.
DOCUMENTS = [
    {"context": "abc def.\nghi jab.\ncde fgh.\nabc", "choices": ["def.", "ghi.", "jj"], "answer": 0},
    {"context": "jig.\nhag bad.\n" * 5 + "bed", "choices": ["head.", "fade.", "bad."], "answer": 2},
    {"context": "a", "choices": ["bc", "cab fed.", "i"], "answer": 1},
    {"context": "feed\nhe bee.\n" * 3 + "a", "choices": ["he", "fab.", "cage"], "answer": 1},
    {"context": "ab.\ncd.\nef.\n" * 8 + "g", "choices": ["gh.", "i.", "ab."], "answer": 0},
]
NEW = 6


def model(attached: bool) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    torch.manual_seed(0)
    made = LlamaForCausalLM(LlamaConfig(vocab_size=len(TOKENIZER), **sizes, **ends)).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    if attached:
        enliven(chf.attach(made, TOKENIZER, units="line", window=12, max_length=16, competition=1.0))
    return made


def task(folder: Path, **settings: Any) -> dict[str, Any]:
    """A task over a file here; no network is asked."""
    file = folder / "documents.jsonl"
    file.write_text("".join(f"{json.dumps(document)}\n" for document in DOCUMENTS))
    files = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}}, "test_split": "test"}
    return {**files, "doc_to_text": "{{context}}", "target_delimiter": "", **settings}


CHOICES = {"task": "choices", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}",
           "doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc"}]}  # fmt: skip
WRITING = {"task": "writing", "output_type": "generate_until", "doc_to_target": "{{choices[0]}}",
           "generation_kwargs": {"until": ["~"], "max_gen_toks": NEW, "do_sample": False},
           "metric_list": [{"metric": "exact_match"}]}  # fmt: skip


Heard = dict[str, list[Any]]


@pytest.fixture(scope="module", params=[1, 4], ids=lambda rows: f"{rows} a batch")
def heard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Heard:
    """What the harness hears of every document, by task: log probabilities of the choices, or a text."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    folder = tmp_path_factory.mktemp("documents")
    reader = HFLM(pretrained=model(attached=True), tokenizer=TOKENIZER, batch_size=request.param, max_length=256)
    tasks = [task(folder, **CHOICES), task(folder, **WRITING)]
    found = simple_evaluate(model=reader, tasks=tasks, log_samples=True, bootstrap_iters=0)
    samples = {name: sorted(of_it, key=lambda one: one["doc_id"]) for name, of_it in found["samples"].items()}
    return {name: [[said[0] for said in one["resps"]] for one in of_it] for name, of_it in samples.items()}


@torch.no_grad()
def log_probability(made: Any, context: str, choice: str) -> float:
    ids = torch.tensor(TOKENIZER(context + choice)["input_ids"])
    begin = len(TOKENIZER(context)["input_ids"])
    said = made(ids[None, :-1], use_cache=False).logits[0].log_softmax(-1)
    return said.gather(1, ids[1:, None])[begin - 1 :].sum().item()


@torch.no_grad()
def written(made: Any, context: str) -> str:
    """Greedily, reading the whole text anew for every token."""
    ids = TOKENIZER(context)["input_ids"]
    new: list[int] = []
    while len(new) < NEW and 0 not in new:
        new.append(int(made(torch.tensor([ids + new]), use_cache=False).logits[0, -1].argmax()))
    return TOKENIZER.decode(new, skip_special_tokens=True)


def test_choices_have_the_models_own_log_probabilities(heard: Heard) -> None:
    """Rows of a batch are padded on the right."""
    made, plain, found = model(attached=True), model(attached=False), heard["choices"]
    for document, said in zip(DOCUMENTS, found, strict=True):
        for choice, (value, _) in zip(document["choices"], said, strict=True):
            assert float(value) == pytest.approx(log_probability(made, document["context"], choice), abs=1e-4)
    far = DOCUMENTS[1]
    others = [log_probability(plain, far["context"], choice) for choice in far["choices"]]
    assert max(abs(float(value) - other) for (value, _), other in zip(found[1], others, strict=True)) > 1e-2


def test_answers_are_what_the_model_writes_alone(heard: Heard) -> None:
    """Rows of a batch are padded on the left, and go on from a cache."""
    made, plain, found = model(attached=True), model(attached=False), [said[0] for said in heard["writing"]]
    assert found == [written(made, document["context"]) for document in DOCUMENTS]
    assert found != [written(plain, document["context"]) for document in DOCUMENTS]
