"""What was run, in one paragraph."""

from __future__ import annotations

from contentrope.reports.described import machine, model, shown, training
from contentrope.reports.read import Results, setting

TITLE = "Retrieval from facts"


def what_was_run(results: Results) -> str:
    """Sizes, steps, batch, precision, seeds, facts, machine, versions and commit; what is unknown is left out."""
    trained = training(results, f"examples of {facts_per_example(results)}", "examples")
    sentences = (trained, model(results), _asked(results), _world(results), machine(results))
    return " ".join(filter(None, sentences))


def facts_per_example(results: Results) -> str:
    """In words: one fact, or from how many to how many."""
    least, most = setting(results, "facts") or (None, None)
    if least is None:
        return "facts"
    if least == most:
        return "one fact" if most == 1 else f"{most:,} facts"
    return f"{least:,} to {most:,} facts"


def _asked(results: Results) -> str | None:
    examples, distractors = setting(results, "examples"), setting(results, "distractors")
    more = [f"{count:,}" for count in setting(results, "scaling") or ()]
    details = [
        examples and f"{shown(examples)} examples a row",
        distractors and f"{shown(distractors)} distractors beside the fact asked for, or none",
        f"and {', '.join(more)} of them for unseen names and the same relation" if more else None,
    ]
    return f"Asked: {', '.join(filter(None, details))}." if any(details) else None


def _world(results: Results) -> str:
    corpus = results["corpus"]
    sizes = {"facts": "facts", "names": "names", "test_names": "unseen names", "sentences": "sentences"}
    details = [f"{corpus[key]:,} {words}" for key, words in sizes.items() if isinstance(corpus.get(key), int)]
    marks = [f"{key} {shown(corpus[key])}" for key in ("layout", "seed") if corpus.get(key) is not None]
    return f"Facts: {', '.join([*details, *marks]) or 'unknown'}."
