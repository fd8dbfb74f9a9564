"""Give a Hugging Face model content addresses by LoRA, save it, load it, write with it.

python examples/lora_conversion.py [--steps 40]

A small Llama with random weights stands in for yours: put AutoModelForCausalLM.from_pretrained(...) in its place.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import contentrope.hf as chf
from contentrope.hf.characters import character_tokenizer

TEXT = "the quick brown fox\njumps over\nthe lazy dog\n" * 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        base, converted = Path(place, "base"), Path(place, "converted")
        tokenizer = character_tokenizer(TEXT)
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(base)

        model = LlamaForCausalLM.from_pretrained(base)
        chf.attach(model, tokenizer, units="line", positions="local", competition=1.0)
        lora = LoraConfig(r=8, target_modules="all-linear", modules_to_save=["contentrope"], task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
        ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for step in range(steps):
            rows = torch.stack([ids[0, i : i + 128] for i in torch.randint(ids.shape[1] - 128, (4,)).tolist()])
            loss = model(input_ids=rows, labels=rows).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0 or step == steps - 1:
                print(f"step {step}: loss {loss.item():.3f}")

        model.eval()
        chf.save_pretrained(model, converted, tokenizer)
        same = chf.from_pretrained(converted)  # the one way: units, positions and LoRA are those it was saved with
        with torch.no_grad():
            assert torch.equal(same(ids[:, :200]).logits, model(ids[:, :200]).logits)
        prompt = tokenizer("the quick", return_tensors="pt")
        written = same.generate(**prompt, max_new_tokens=30, do_sample=False, pad_token_id=0)
        print(tokenizer.decode(written[0]))


if __name__ == "__main__":
    main()
