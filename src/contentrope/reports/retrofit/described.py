"""What was run, in words."""

from __future__ import annotations

from contentrope.reports.described import machine, model, shown, training
from contentrope.reports.growth.curves import lengths_of, training_length
from contentrope.reports.read import Results

UNTOUCHED = "untouched"
RESCALINGS = ("pi", "ntk", "yarn")


def title(results: Results) -> str:
    return f"Retrofit on {results['corpus'].get('name', 'an unnamed text')}"


def along(results: Results) -> str:
    """What a window is made of: the model that is trained here reads characters."""
    return "characters read" if trained_here(results) else "tokens read"


def trained_here(results: Results) -> bool:
    return not results["config"].get("model")


def what_was_run(results: Results) -> str:
    """The original, its conversion, model, lengths, text and machine; what is unknown is left out."""
    sentences = (_original(results), _conversion(results), model(results), _reading(results), _text(results))
    return " ".join(filter(None, (*sentences, machine(results))))


def _original(results: Results) -> str | None:
    if not trained_here(results):
        return f"Original: {results['config']['model']}."
    settings = results["config"].get("pretraining") or {}
    steps, batch, rate = (settings.get(name) for name in ("steps", "batch_size", "learning_rate"))
    if not (steps and batch and rate):
        return None
    return (
        f"Original: Llama's architecture, trained here with RoPE for {shown(steps)} steps of {shown(batch)} windows, "
        f"learning rate {shown(rate)}."
    )


def _conversion(results: Results) -> str:
    length = training_length(results)
    windows = f"windows of {length:,} {along(results).split()[0]}" if length else "windows of text"
    # Without the other training in the settings, steps and rate are those of the conversion.
    alone = {name: part for name, part in results["config"].items() if name != "pretraining"}
    return training({**results, "config": alone}, f"{windows}, for the conversion", "windows")


def _reading(results: Results) -> str | None:
    lengths, units = lengths_of(results), results["config"].get("units")
    read = f"Read at {', '.join(f'{n:,}' for n in lengths)} {along(results).split()[0]}." if lengths else None
    return " ".join(filter(None, (f"Units: {units}." if units else None, read))) or None


def _text(results: Results) -> str:
    corpus = results["corpus"]
    sizes = {"characters": "characters", "training": "to train on", "held_out": "held out"}
    details = [f"{corpus[key]:,} {words}" for key, words in sizes.items() if isinstance(corpus.get(key), int)]
    mark = [f"SHA-256 {str(corpus['sha256'])[:12]}…"] if corpus.get("sha256") else []
    return f"Text: {', '.join([str(corpus.get('name', 'unnamed')), *details, *mark])}."
