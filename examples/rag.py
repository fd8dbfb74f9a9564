"""Questions over documents that are read once: in any order, edited in place, with the same bits.

python examples/rag.py
"""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import contentrope.hf as chf
from contentrope.hf.characters import character_tokenizer
from contentrope.store import UnitStore

DOCUMENTS = ["the cat sat on the mat.\n", "a dog ran in the fog.\n", "rain fell on the roof.\n"]


def main() -> None:
    # A small untrained model stands in for one of `contentrope finetune --reader`: chf.from_pretrained("runs/reader")
    torch.manual_seed(0)
    tokenizer = character_tokenizer("abcdefghijklmnopqrstuvwxyz ?.\n")
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, eos_token_id=None)).eval()
    chf.attach(model, tokenizer, units="document", marker="\n", competition=1.0)

    def answer(cache: object) -> str:
        asked = store.ask("who sat?", cache)
        written = model.generate(**asked, max_new_tokens=12, do_sample=False)
        return str(tokenizer.decode(written[0, asked["input_ids"].shape[1] :]))

    with tempfile.TemporaryDirectory() as folder:
        store = UnitStore(folder, model, tokenizer)
        keys = store.add(DOCUMENTS)
        first = answer(keys)
        assert answer(keys[::-1]) == first  # to the last bit, in any order
        cache = store.cache(keys)
        cache.replace(keys[0], store.add(["the cat sat on the roof.\n"])[0])  # one unit is computed
        print(f"{first!r}, and after an edit {answer(cache)!r}; {store.stats()}")


if __name__ == "__main__":
    main()
