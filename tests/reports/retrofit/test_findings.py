"""What the report says of the numbers: each sentence can come out either way."""

from __future__ import annotations

import pytest

from contentrope.reports.retrofit.findings import findings
from contentrope.reports.retrofit.tables import against_original, perplexity_table
from tests.reports.retrofit.made_up import CURVES, made_results

GATED = "content:positions=gated"


def said(**changed: tuple[float | None, ...]) -> str:
    names = {"gated": GATED, "addresses": "content:train=addresses", "yarn": "yarn:factor=16", "untouched": "untouched"}
    return "\n".join(findings(made_results(CURVES | {names[name]: values for name, values in changed.items()})))


def test_who_stays_near_the_original() -> None:
    claim = "at 4,096 at most 2% above the original's perplexity at 256"
    assert f"Reads {claim}: {GATED}." in said()
    assert f"Reads {claim}: {GATED} and content:train=addresses." in said(addresses=(4.1, 4.1, 4.1, 4.1, 4.079))
    assert f"No conversion to content addresses reads {claim}." in said(gated=(4.0, 4.0, 4.0, 4.0, 4.09))


def test_who_is_below_every_rescaling() -> None:
    assert f"{GATED} is below every rescaling from 512 to 4,096." in said()
    assert f"{GATED} is below every rescaling from 1,024 to 4,096." in said(yarn=(4.0, 4.06, 4.2, 4.3, 5.0))
    assert f"{GATED} is below every rescaling nowhere beyond the training length." in said(yarn=(4.0,) * 5)


def test_without_an_original_or_a_rescaling_nothing_is_compared_with_it() -> None:
    alone = "\n".join(findings(made_results({GATED: CURVES[GATED]})))
    assert "original" not in alone
    assert "rescaling" not in alone
    assert "Stays within 2%" in alone


def test_percent_are_taken_seed_by_seed() -> None:
    results = made_results(seeds=2)
    found = against_original(results, GATED, 4096)
    assert found is not None
    assert found.mean == pytest.approx(1.5)
    assert found.spread == pytest.approx(0.0, abs=1e-9)
    del results["variants"]["untouched"]["runs"]["1"]
    found = against_original(results, GATED, 4096)
    assert found is not None
    assert found.count == 1
    results["variants"]["untouched"]["runs"]["0"]["perplexity"]["256"] = None
    assert against_original(results, GATED, 4096) is None


def test_the_last_column_compares_with_the_original() -> None:
    table = perplexity_table(made_results(seeds=1))
    assert table.head == [
        "characters read", "256", "512", "1,024", "2,048", "4,096", "4,096 against the original at 256",
    ]  # fmt: skip
    cells = {row[0].text: row[-1].text for row in table.rows}
    assert cells == {
        "untouched": "+1,400.0%",
        GATED: "+1.5%",
        "content:train=addresses": "+7.0%",
        "pi:factor=16": "+400.0%",
        "yarn:factor=16": "+35.0%",
    }
    infinite = CURVES | {"pi:factor=16": (4.2, 5.0, 9.0, 12.0, None)}
    assert perplexity_table(made_results(infinite, seeds=1)).rows[3][-1].text == "inf"
    assert len(perplexity_table(made_results({GATED: CURVES[GATED]})).head) == 6
