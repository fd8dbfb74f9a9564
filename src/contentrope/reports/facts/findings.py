"""What the numbers say, in plain sentences made by rules. Each rule can come out either way, or say nothing."""

from __future__ import annotations

from contentrope.reports.facts.comparisons import against_the_paper, exponent, unseen_names
from contentrope.reports.facts.rows import ROWS, best_in, rows_in_words, scores
from contentrope.reports.facts.scaling import ENOUGH, bears, by_distractors
from contentrope.reports.facts.tables import change_of_logit
from contentrope.reports.read import Results, parts_of, variants_of
from contentrope.reports.words import listed


def findings(results: Results) -> list[str]:
    """One sentence per finding, most important first."""
    rules = (_best, against_the_paper, exponent, unseen_names, _distractors, _order)
    return [sentence for rule in rules for sentence in rule(results)]


def _best(results: Results) -> list[str]:
    """Which variant is best in which rows, and where that is within the noise."""
    names = variants_of(results)
    winners = {row: tuple(best_in(results, names, row)) for row in ROWS}
    won = {best: [row for row in ROWS if winners[row] == best] for best in winners.values() if best}
    said = [
        f"Highest hit@5 in {rows_in_words(won[best])}: {listed(best)}."
        for best in sorted(won, key=lambda best: -len(won[best]))
    ]
    close = [row for row in ROWS if winners[row] and _within_noise(results, row, winners[row])]
    noise = f"The gap to the next is smaller than the spread over seeds in {rows_in_words(close)}." if close else ""
    return [*said, *filter(None, [noise])]


def _within_noise(results: Results, row: str, best: tuple[str, ...]) -> bool:
    found = {name: scores(results, name) for name in variants_of(results)}
    others = [by_row[row] for name, by_row in found.items() if name not in best and row in by_row]
    second = max(others, key=lambda value: value.mean, default=None)
    return second is not None and not found[best[0]][row].differs_from(second)


def _distractors(results: Results) -> list[str]:
    """How many distractors each variant bears."""
    found = {name: largest for name in variants_of(results) if (largest := bears(results, name)) is not None}
    said = []
    for count in sorted(set(found.values()), reverse=True):
        names = [name for name, largest in found.items() if largest == count]
        if count:
            more = any(max(by_distractors(results, name, "chain2")) > count for name in names)
            bound = f"up to {count:,} distractors, {'not further' if more else 'the most that were tried'}"
            said.append(f"Hit@5 on chain2 is {ENOUGH:.2f} or more {bound}: {listed(names)}.")
        else:
            said.append(f"Hit@5 on chain2 is below {ENOUGH:.2f} with the fewest distractors already: {listed(names)}.")
    return said


def _order(results: Results) -> list[str]:
    """Whose answers depend on the order in which the facts are written."""
    depends, free = list[str](), list[str]()
    for name in variants_of(results):
        if parts := parts_of(results, name, "order"):
            changed = sum(part["answers_changed"] for part in parts) / len(parts)
            largest = max(part["largest_change"] for part in parts)
            if changed:
                depends.append(f"{name} ({changed:.1%})")
            else:
                free.append(f"{name} (no logit moves by more than {change_of_logit(largest)})")
    words = (
        (free, "Another order of the facts changes no answer of"),
        (depends, "Another order of the facts changes answers of"),
    )
    return [f"{begin} {listed(names)}." for names, begin in words if names]
