"""What was run, in one paragraph."""

from __future__ import annotations

from contentrope.reports.described import machine, model, training
from contentrope.reports.growth.curves import lengths_of, training_length
from contentrope.reports.read import Results, setting


def title(results: Results) -> str:
    return f"Context growth on {results['corpus'].get('name', 'an unnamed text')}"


def what_was_run(results: Results) -> str:
    """Sizes, steps, batch, precision, seeds, text, machine, versions and commit; what is unknown is left out."""
    sentences = (_training(results), model(results), _reading(results), _text(results), machine(results))
    return " ".join(filter(None, sentences))


def _training(results: Results) -> str:
    length = training_length(results)
    return training(results, f"windows of {length:,} characters" if length else "windows of text", "windows")


def _reading(results: Results) -> str | None:
    lengths = lengths_of(results)
    once = [length for length in setting(results, "once") or () if length in lengths]
    read = f"Read at {', '.join(f'{n:,}' for n in lengths)} characters" if lengths else None
    rest = f" ({', '.join(f'{n:,}' for n in once)} with the first seed alone)" if once else ""
    unseen = " Scored on the end of the training part, to choose settings; the held-out text stays unseen."
    return read and f"{read}{rest}.{unseen if setting(results, 'search') else ''}"


def _text(results: Results) -> str:
    corpus = results["corpus"]
    sizes = {"characters": "characters", "symbols": "symbols", "training": "to train on", "held_out": "held out"}
    details = [f"{corpus[key]:,} {words}" for key, words in sizes.items() if isinstance(corpus.get(key), int)]
    mark = [f"SHA-256 {str(corpus['sha256'])[:12]}…"] if corpus.get("sha256") else []
    return f"Text: {', '.join([str(corpus.get('name', 'unnamed')), *details, *mark])}."
