"""The work of ``contentrope finetune``: measured, attached, trained, measured again, written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from torch import nn

from contentrope.cli.options import is_first_process
from contentrope.cli.progress import progress_display
from contentrope.cli.training import fit, outcome, whole_model
from contentrope.evaluation import shown
from contentrope.results import finite_or_none
from contentrope.training import TrainConfig, stepper_for
from contentrope.training.seeds import seeded

if TYPE_CHECKING:
    from contentrope.cli.finetune import Finetune
    from contentrope.hf.card import Facts
    from contentrope.hf.data import Data


@dataclass(frozen=True)
class Conversion:
    """One model, converted as the options and ``settings`` say."""

    options: Finetune
    config: TrainConfig
    tokenizer: Any
    data: Data
    settings: Mapping[str, Any]
    device: str
    console: Console

    def run(self) -> dict[str, Any]:
        """What was found, as JSON; empty in all processes but the first."""
        import transformers

        from contentrope.hf.finetune import GATE_SHARE, CausalLM, Gated
        from contentrope.hf.saving import save_pretrained

        options, length = self.options, self.settings["length"]
        original = self._original()
        before = self._measured("before", CausalLM(original)) if is_first_process() else {}
        stepper = stepper_for(self._converted(original), self.config)
        batches = self.data.batches(self.tokenizer, length, self.settings["retrieval"], self.device)
        if self.settings["addresses"]["positions"] == "gated":
            batches = Gated(batches, fall=max(1, round(GATE_SHARE * self.config.steps)))
        last = fit(
            stepper, batches, options.out, options.model, self.console, self.settings, save_every=options.save_every
        )
        whole = whole_model(stepper, lambda: self._converted(self._original()))
        if whole is None:
            return {}
        after = self._measured("after", whole)
        found = outcome(whole, last, stepper, self.device) | {
            "trained_parameters": sum(p.numel() for p in whole.parameters() if p.requires_grad),
            "trained_tokens": self.config.steps * self.config.batch_size * length,
            "transformers": transformers.__version__,
            "scored": self._scored,
            "before": before,
            "after": after,
            "sentence": sentence(before, after),
            "options": self._options(),
        }
        save_pretrained(whole.model, options.out / "model", self.tokenizer, facts=facts_of({**self.settings, **found}))
        return found

    def _options(self) -> dict[str, Any]:
        """All that the command was told or took as given, as ``--config`` reads it."""
        given = {name: value for name, value in vars(self.options).items() if name not in ("training", "config", "out")}
        given |= {"window": self.settings["addresses"]["window"], **asdict(self.config)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in given.items() if v is not None}

    def _original(self) -> Any:
        from contentrope.hf.plain import load_model

        # Changes of low rank leave the weights as they are, so these may stay in their own precision.
        dtype = "auto" if self.options.lora else "float32"
        return load_model(self.options.model, dtype=dtype, device=self.device)

    def _converted(self, model: Any) -> nn.Module:
        import contentrope.hf as chf
        from contentrope.hf.finetune import CausalLM, units_named, with_lora

        settings, lora = self.settings, self.options.lora
        with seeded(self.config.seed):  # LoRA begins at random
            chf.attach(
                model,
                self.tokenizer,
                units=units_named(settings["units"]),
                marker=settings["marker"],
                max_length=settings["longest_unit"],
                window=settings["addresses"]["window"],
                competition=settings["addresses"]["competition"],
            )
            return CausalLM(with_lora(model, lora) if lora else model)

    @property
    def _scored(self) -> int:
        """Tokens of held-out text, the same for all lengths."""
        from contentrope.hf.measuring import tokens_to_score

        lengths, held_out = self.settings["lengths"], len(self.data.text.held_out)
        tokens = self.config.steps * self.config.batch_size * self.settings["length"]
        return tokens_to_score(lengths, held_out, tokens) if lengths else 0

    def _measured(self, when: str, model: Any) -> dict[str, float | None]:
        """Perplexity of held-out text by window length, and of the answers in held-out conversations; with a reader, of
        answers behind their documents."""
        from contentrope.hf.chat import ChatRows
        from contentrope.hf.measuring import answers_perplexity, perplexities, readings_perplexity

        found: dict[str, float] = {}
        chat, name = self.data.chat, f"held-out text {when}"
        if lengths := self.settings["lengths"]:
            with progress_display(self.console) as progress:
                progress.measured(name, 0, self._scored * len(lengths))
                held_out = self.data.text.held_out
                by_length = perplexities(
                    model, held_out, lengths, self._scored, lambda read, all_: progress.measured(name, read, all_)
                )
            found |= {str(length): value for length, value in by_length.items()}
        if chat is not None:
            found[ANSWERS] = answers_perplexity(model, ChatRows(chat.training, self.settings["length"]), chat.held_out)
        if self.data.reader is not None:
            rows = self.data.held_out_readings(self.tokenizer, self.settings["length"])
            found[ANSWERS] = readings_perplexity(model, rows)
        return finite_or_none(found)


ANSWERS = "answers"
"""Beside the lengths, in what was measured."""


def sentence(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> str:
    """What the training did, as the numbers say.

    >>> sentence({"16": 4.0, "answers": 3.0}, {"16": 3.0, "answers": 3.3})
    'Held-out text: better at 16 tokens, by 25.0%. Held-out answers: worse by 10.0%.'
    """
    from contentrope.hf.measuring import change, verdict

    def numbers(found: Mapping[str, float | None]) -> dict[int, float]:
        # JSON has no infinity.
        return {int(n): float("inf") if v is None else v for n, v in found.items() if n != ANSWERS}

    said = [f"Held-out text: {verdict(numbers(before), numbers(after))}."] if numbers(before) else []
    if ANSWERS in before:
        said.append(f"Held-out answers: {change(before[ANSWERS], after[ANSWERS])}.")
    return " ".join(said)


def summary(found: Mapping[str, Any]) -> list[str]:
    """What is said of a finished run."""
    lines = [
        f"{found['model']}: {found['trained_parameters']:,} of {found['parameters']:,} parameters trained, "
        f"loss {found['final_loss']:.3f} at the end"
    ]
    if found["limit"] is not None:
        lines.append(f"the model was made for texts of up to {found['limit']:,} tokens")
    for name, before in found["before"].items():
        what = "of answers" if name == ANSWERS else f"in windows of {int(name):,}"
        lines.append(f"held-out perplexity {what}: {shown(before)} before, {shown(found['after'][name])} after")
    return [*lines, str(found["sentence"])]


def facts_of(found: Mapping[str, Any]) -> Facts:
    """What the model card says of a finished run."""
    from contentrope.hf.card import Facts

    train, kinds = found["train"], {"corpus": "text", "data": "conversations"}
    data = {words: f"{found[n]['name']}, SHA-256 {found[n]['sha256']}" for n, words in kinds.items() if n in found}
    training = {
        **data,
        "rows of hidden facts": f"{found['retrieval']:.0%}",
        **({"documents": "memory units, each of which sees only itself"} if "reader" in found else {}),
        "steps": train["steps"],
        "tokens": found["trained_tokens"],
        "tokens per row": found["length"],
        "learning rate": train["learning_rate"],
        "rank of LoRA": found["addresses"]["rank"] if found["addresses"]["train"] == "lora" else "all weights trained",
        "the model's own limit, in tokens": found["limit"] or "unknown",
    }
    measured = [
        {
            "window, in tokens": name if name == ANSWERS else f"{int(name):,}",
            "before": shown(before),
            "after": shown(found["after"][name]),
        }
        for name, before in found["before"].items()
    ]
    scored = []
    if found["scored"]:
        scored.append(f"Perplexity of {found['scored']:,} held-out tokens, the same ones in windows of every length.")
    if ANSWERS in found["before"]:
        reads = ", read behind documents that see only themselves; before the training, as one text"
        scored.append(f"Answers: perplexity of those that are held out{reads if 'reader' in found else ''}.")
    return Facts(
        base=found["model"],
        training=training,
        measured=measured,
        scored=" ".join(scored),
        summary=found["sentence"],
    )
