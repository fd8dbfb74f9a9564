"""What was run, in one paragraph."""

from __future__ import annotations

from contentrope.reports.described import CUSTOM, machine, shown
from contentrope.reports.read import Results, seeds_of, setting
from contentrope.reports.timing.read import BASELINE, accelerations_of, schemes_of
from contentrope.reports.timing.words import WORDS
from contentrope.reports.words import listed

TITLE = "Timing of training steps"
STEP = "A step is the forward pass, the backward pass, clipping, and the update by AdamW."


def what_was_run(results: Results) -> str:
    """Steps, contenders, precision, tokens, machine, versions and commit; what is unknown is left out."""
    sentences = (_steps(results), STEP, _contenders(results), _baseline(results), _tokens(results), machine(results))
    return " ".join(filter(None, sentences))


def _steps(results: Results) -> str:
    repetitions = len(seeds_of(results))
    timed, warmup = setting(results, "timed_steps"), setting(results, "warmup_steps")
    details = [
        timed and f"{shown(timed)} steps timed",
        warmup and f"after {shown(warmup)} to warm up",
        f"{repetitions} repetition{'s' if repetitions > 1 else ''}" if repetitions else None,
        setting(results, "precision") and f"precision {setting(results, 'precision')}",
    ]
    return f"Preset {results.get('preset') or CUSTOM}: {', '.join(filter(None, details)) or 'settings unknown'}."


def _contenders(results: Results) -> str | None:
    schemes, backend = schemes_of(results), setting(results, "backend")
    if not schemes:
        return None
    where = listed([WORDS[acceleration] for acceleration in accelerations_of(results)])
    by = f"; attention backend of addressed schemes: {backend}" if backend else ""
    return f"{listed([BASELINE, *schemes])} take turns, step by step, {where}{by}."


def _baseline(results: Results) -> str | None:
    """How strong the baseline of the eager step is."""
    if "none" not in accelerations_of(results) or setting(results, "rotary") is None:
        return None
    if setting(results, "rotary") == "compiled":
        return f"In the eager step the rotation of {BASELINE} is compiled all the same, that of the others is not."
    return f"In the eager step the rotation of {BASELINE} is eager, as that of the others."


def _tokens(results: Results) -> str | None:
    unit, symbols = setting(results, "unit_length"), setting(results, "vocabulary")
    if unit is None or symbols is None:
        return None
    return f"Tokens are drawn at random of {shown(symbols)}, units end at random, after {shown(unit)} in the mean."
