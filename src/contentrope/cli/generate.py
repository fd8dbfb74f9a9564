"""``contentrope generate``: text from a model of characters, or from a Hugging Face model with addresses or without."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from tyro.conf import Positional, arg

from contentrope.cli.options import ALL, Device, chosen_device, one, require_seed
from contentrope.corpora import text_of
from contentrope.errors import InputError
from contentrope.generation import generate, generate_stream
from contentrope.text_model import load_text_model
from contentrope.training.seeds import seeded
from contentrope.units import Segmenter


@dataclass(frozen=True)
class Generate:
    """Continue a prompt with a saved model, token by token. The prompt may be longer than any training window.

    Example: contentrope generate runs/mine --prompt "ROMEO:" --tokens 400 --temperature 0.8

    A Hugging Face model, with addresses or without: contentrope generate --model runs/smol --prompt "Once"
    """

    folder: Positional[Annotated[Path | None, one(Path, "MODEL_DIR"), arg(help_behavior_hint="(or --model)")]] = None
    """Folder that `contentrope train` or `finetune` wrote, or one with model.safetensors and vocabulary.json."""
    model: Annotated[str | None, one(str, "MODEL"), arg(help_behavior_hint="(default: MODEL_DIR)")] = None
    """The same as an option; also a folder with any Hugging Face model, or its name on the hub."""
    prompt: Annotated[str | None, one(str, "TEXT"), arg(help_behavior_hint="(default: a new line)")] = None
    """Text to continue."""
    prompt_file: Annotated[Path | None, one(Path, "PATH"), arg(help_behavior_hint="(default: none)")] = None
    """File with the text to continue, instead of --prompt."""
    tokens: int = 500
    """Characters, or tokens of a Hugging Face model, to add at most."""
    temperature: float = 1.0
    """Below 1 the likely characters become likelier; 0 always takes the likeliest."""
    top_k: Annotated[int | None, one(int, "INT"), ALL] = None
    """Draw from so many of the likeliest characters only."""
    top_p: Annotated[float | None, one(float, "FLOAT"), ALL] = None
    """Draw from the likeliest characters that together have this probability."""
    seed: int = 0
    """Decides what is drawn: the same seed writes the same text again."""
    stop_at_unit_end: bool = False
    """Stop at the end of the first unit, which is a line unless the model was trained otherwise."""
    samples: int = 1
    """Texts to write; a single one appears as it is drawn."""
    device: Device = None
    """Where to compute."""

    def run(self) -> None:
        if self.samples < 1:
            raise InputError(f"samples must be at least 1, got {self.samples}")
        require_seed(self.seed)
        if (self.folder is None) == (self.model is None):
            raise InputError("name one model: contentrope generate MODEL_DIR, or --model MODEL")
        name = str(self.folder) if self.model is None else self.model
        device, prompt = chosen_device(self.device), self._prompt()
        checkpoint = checkpoint_named(name)
        if checkpoint is not None and (self.model is not None or Path(name).exists()):
            self._write_tokens(checkpoint, prompt, device)
        else:
            self._write_characters(name, prompt, device)

    def _prompt(self) -> str:
        if self.prompt is not None and self.prompt_file is not None:
            raise InputError("give --prompt or --prompt-file, not both")
        if self.prompt_file is not None:
            return text_of(self.prompt_file)
        return "\n" if self.prompt is None else self.prompt

    def _write_characters(self, folder: str, prompt: str, device: str) -> None:
        model, vocabulary = load_text_model(folder, device=device)
        ids = vocabulary.encode_tensor(prompt).to(device).expand(self.samples, -1)
        if unseen := vocabulary.unseen(prompt):
            print(f"note: {unseen} characters of the prompt are unseen in training", file=sys.stderr)
        options: dict[str, Any] = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "stop_at_unit_end": self.stop_at_unit_end,
            "generator": torch.Generator(device).manual_seed(self.seed),
        }
        with seeded(self.seed):  # for schemes that draw at random
            if self.samples > 1:
                found = generate(model, ids, self.tokens, **options)
                new = zip(found.ids[:, len(prompt) :], found.valid[:, len(prompt) :], strict=True)
                _write_samples([prompt + vocabulary.decode(row[valid]) for row, valid in new])
            else:
                columns = generate_stream(model, ids, self.tokens, **options)
                _write(prompt)
                for column in columns:
                    _write(vocabulary.decode(column.ids[0]))
                _write("\n")

    def _write_tokens(self, checkpoint: str, prompt: str, device: str) -> None:
        """With a Hugging Face model."""
        options = self._options_of_transformers()
        from contentrope.hf.plain import quiet, require_embedded, require_transformers

        require_transformers()
        from contentrope.hf.loading import load_any

        model, tokenizer = load_any(checkpoint, device=device)
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"].to(device)
        if not ids.shape[1]:
            raise InputError(f"the prompt {prompt!r} has no tokens; give another")
        require_embedded(ids, model.config, checkpoint)
        # Embeddings are often filled up to a round number; such ids stand for no text, and units are cut in text.
        if textless := list(range(len(tokenizer), model.config.vocab_size)):
            options["suppress_tokens"] = textless
        padding = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        options["pad_token_id"] = next(token for token in padding if token is not None)
        unit_end = UnitEnd(model) if self.stop_at_unit_end else None
        if unit_end is not None:
            options["stopping_criteria"] = [unit_end]
        if self.samples == 1:
            _write(prompt)
            options["streamer"] = Printer(tokenizer)
        rows = ids.expand(self.samples, -1)
        with seeded(self.seed), quiet(), torch.no_grad():
            found = model.generate(input_ids=rows, attention_mask=torch.ones_like(rows), **options)
        if self.samples == 1:
            _write("\n")
        else:
            length = ids.shape[1]
            ends = [len(row) if unit_end is None else unit_end.place(row, length) for row in found]
            texts = [_text_after(tokenizer, row[:end].tolist(), length) for row, end in zip(found, ends, strict=True)]
            _write_samples([prompt + text for text in texts])

    def _options_of_transformers(self) -> dict[str, Any]:
        """What was not asked for is switched off, whatever the checkpoint suggests."""
        if self.tokens < 1:
            raise InputError(f"tokens must be at least 1, got {self.tokens}")
        if not self.temperature >= 0:
            raise InputError(f"temperature {self.temperature} must be 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p must be in (0, 1], got {self.top_p}")
        if not self.temperature:
            return {"max_new_tokens": self.tokens, "do_sample": False}
        drawn = {"temperature": self.temperature, "top_k": self.top_k or 0, "top_p": self.top_p or 1.0}
        return {"max_new_tokens": self.tokens, "do_sample": True, **drawn}


def checkpoint_named(name: str) -> str | None:
    """The Hugging Face checkpoint of that name: the folder, the model in it, or a name for the hub; None if none."""
    from contentrope.hf.layout import is_checkpoint

    for place in (Path(name, "model"), Path(name)):
        if is_checkpoint(place):
            return str(place)
    return None if Path(name).exists() else name


class UnitEnd:
    """Stops a row when its last token ends a unit."""

    def __init__(self, model: Any) -> None:
        import contentrope.hf as chf

        self.segmenter: Segmenter = chf.adapter_of(model).segmenter

    def __call__(self, ids: Int[Tensor, "rows seq"], scores: Any, **options: Any) -> Bool[Tensor, "rows"]:
        return self._closes(ids)[:, -1]

    def place(self, row: Int[Tensor, "seq"], prompt: int) -> int:
        """Where a row stopped: behind the first unit it ended, what follows being padding."""
        ends = self._closes(row[None])[0, prompt:].nonzero()
        return prompt + int(ends[0]) + 1 if len(ends) else len(row)

    def _closes(self, ids: Int[Tensor, "rows seq"]) -> Bool[Tensor, "rows seq"]:
        return self.segmenter.advance(self.segmenter.initial(len(ids), ids.device), ids)[0].closes


class Printer:
    """Writes a text as its tokens come: transformers' streamer waits for whole words."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.prompt = self.written = 0

    def put(self, ids: Tensor) -> None:
        """First the prompt, then token by token."""
        self.ids += ids.flatten().tolist()
        if not self.prompt:
            self.prompt = len(self.ids)
            return
        text = _text_after(self.tokenizer, self.ids, self.prompt)
        if not text.endswith("\ufffd"):  # a character whose other bytes are still to come
            _write(text[self.written :])
            self.written = len(text)

    def end(self) -> None:
        """Nothing is held back but half a character."""


def _text_after(tokenizer: Any, ids: list[int], prompt: int) -> str:
    """What comes after the prompt. Decoded with it: some decoders drop the space before a first word."""
    before = tokenizer.decode(ids[:prompt], skip_special_tokens=True)
    return tokenizer.decode(ids, skip_special_tokens=True)[len(before) :]


def _write_samples(texts: list[str]) -> None:
    for number, text in enumerate(texts, start=1):
        print(f"--- sample {number} of {len(texts)}\n{text}")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
