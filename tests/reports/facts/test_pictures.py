"""The pictures: right points, marks that can be told apart, and nothing that a reader has to guess."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from contentrope.errors import InputError
from contentrope.reports import draw_picture
from contentrope.reports.facts.addresses import domains_of
from tests.reports.facts.made_up import (
    HITS,
    ROWS,
    made_addresses,
    made_inside,
    made_results,
    made_scaling,
    with_details,
)

FEW = {name: HITS[name] for name in ("rope", "content", "content:competition=1")}


def figures_of(results: dict[str, Any]) -> dict[str, Any]:
    import matplotlib.style

    from contentrope.reports.facts import figures

    with matplotlib.style.context("default"):
        return figures(results)


def legend_of(figure: Any) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]


def test_every_variant_has_a_mark_in_every_row_and_the_paper_a_hollow_one() -> None:
    figure = figures_of(made_results(FEW, seeds=1))["hits"]
    assert legend_of(figure) == ["content", "content competition=1", "rope", "hollow: the paper"]
    for axes, names in zip(figure.axes, ("train", "test"), strict=True):
        lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 6]
        solid = [line for line in lines if line.get_markerfacecolor() != "none"]
        drawn = {line.get_marker(): list(line.get_xdata()) for line in solid if line.get_marker() in "os^"}
        rows = [row.endswith(names) for row in ROWS]
        for marker, name in zip("os^", ("content", "content:competition=1", "rope"), strict=True):
            expected = [hit for hit, shown in zip(HITS[name], rows, strict=True) if shown]
            assert drawn[marker] == pytest.approx(expected)
        hollow = [line for line in lines if line.get_markerfacecolor() == "none"]
        assert [line.get_marker() for line in hollow] == ["o", "^"]
        assert hollow[0].get_xdata()[0] == (1.000 if names == "train" else 0.898)


def test_no_mark_of_the_paper_where_the_task_is_another() -> None:
    results = made_results(FEW)
    results["config"]["distractors"] = 9
    assert "hollow: the paper" not in legend_of(figures_of(results)["hits"])


def test_an_error_bar_ends_where_shares_end() -> None:
    results = made_results({"rope": (0.5,) * 12}, seeds=2)
    for seed, hit in enumerate((1.0, 0.8)):
        results["variants"]["rope"]["runs"][str(seed)]["rows"][ROWS[0]]["hit5"] = hit
    (axes, _) = figures_of(results)["hits"].axes
    ends = [point[0] for bars in axes.collections for path in bars.get_paths() for point in path.vertices]
    assert max(end for end in ends if end > 0.9) == pytest.approx(1.0)


def test_scaling_has_the_numbers_of_distractors_as_ticks() -> None:
    results = made_results(FEW, seeds=1)
    assert figures_of(results)["scaling"] is None
    for entry in list(results["variants"].values())[:2]:
        entry["runs"]["0"]["scaling"] = made_scaling({4: 0.9, 16: 0.8, 256: 0.4})
    figure = figures_of(results)["scaling"]
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "log"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["4", "16", "256"]
    assert legend_of(figure) == ["content", "rope"]  # the third was not measured


def test_losses_are_means_of_the_runs_that_tell_the_same_steps() -> None:
    results = made_results({"rope": HITS["rope"]})
    assert figures_of(results)["losses"] is None
    told = ([[100, 2.0], [200, 1.0]], [[100, 3.0], [200, 2.0]], [[150, 9.0]])
    for run, losses in zip(results["variants"]["rope"]["runs"].values(), told, strict=True):
        run["losses"] = losses
    (axes,) = figures_of(results)["losses"].axes
    assert list(axes.get_lines()[0].get_xdata()) == [100, 200]
    assert list(axes.get_lines()[0].get_ydata()) == [2.5, 1.5]


def test_a_loss_of_zero_or_one_point_is_no_problem() -> None:
    results = made_results({"rope": HITS["rope"]}, seeds=1)
    run = results["variants"]["rope"]["runs"]["0"]
    for losses in ([[1, 0.0]], []):
        run["losses"] = losses
        assert figures_of(results)["losses"] is None
    run["losses"] = [[1, 0.0], [2, 0.5]]
    assert figures_of(results)["losses"] is not None


# --- a look inside -------------------------------------------------------------------------------------------------


def with_inside(inside: dict[str, Any]) -> Any:
    results = made_results(FEW, seeds=1)
    results["variants"]["rope"]["runs"]["0"]["inside"] = inside
    return figures_of(results)["inside"]


def test_attention_has_a_panel_a_layer_with_the_characters_and_units() -> None:
    inside = made_inside()
    figure = with_inside(inside)
    texts, *panels, _ = figure.axes
    words = [text.get_text() for text in texts.texts]
    assert words[0] == "rope reads:"
    assert [word for word in words if "asked" in word] == ["  3 <son> adam <father> brian;   (asked for)"]
    assert [axes.get_title() for axes in panels] == ["layer 1", "layer 2", "layer 3"]
    for axes, layer in zip(panels, inside["attention"], strict=True):
        assert [label.get_text() for label in axes.get_xticklabels()] == list("brian")
        shown = axes.collections[0].get_array()
        assert shown.shape == (6, 5)
        assert list(shown[2]) == pytest.approx([line[2] for line in layer])
        (frame,) = axes.patches
        assert (frame.get_xy(), frame.get_width()) == ((0, 2), 5)


def test_many_units_are_cut_to_those_with_most_attention_and_the_one_asked_for() -> None:
    inside = made_inside(layers=1)
    inside["unit_texts"] = [f"<son> s{n} <father> f{n};" for n in range(200)]
    inside["asked"] = 150
    heavy = range(40, 60)
    inside["attention"] = [[[0.04 if n in heavy else 0.0 for n in range(200)] for _ in inside["scored"]]]
    figure = with_inside(inside)
    shown = [int(label.get_text()) for label in figure.axes[1].get_yticklabels()]
    assert len(shown) == 24
    assert {151, *range(41, 61)} <= set(shown)


def test_several_variants_have_pictures_of_their_own() -> None:
    results = made_results(FEW, seeds=2)
    for name in ("rope", "content"):
        for run in results["variants"][name]["runs"].values():
            run |= {"inside": made_inside(layers=4), "addresses": made_addresses(1)}
    names = ["hits", "scaling", "losses", "inside", "inside-2", "addresses", "addresses-2"]
    assert list(figures_of(results)) == names


# --- the map of addresses ------------------------------------------------------------------------------------------


def with_map(addresses: dict[str, Any]) -> Any:
    results = made_results(FEW, seeds=1)
    results["variants"]["content"]["runs"]["0"]["addresses"] = addresses
    return figures_of(results)["addresses"]


def test_few_relations_stand_in_the_legend() -> None:
    figure = with_map(made_addresses(domains=2, sizes=(2,)))
    assert len(legend_of(figure)) == 10
    assert "son, father" in legend_of(figure)
    assert not figure.axes[0].texts
    assert figure.axes[0].get_xlabel() == "first direction (41% of the variance)"


def test_many_relations_are_coloured_by_domain_and_named_where_there_is_room() -> None:
    figure = with_map(made_addresses())
    (axes,) = figure.axes
    assert len(legend_of(figure)) == 5
    assert len({(line.get_color(), line.get_marker()) for line in axes.get_lines()}) == 5
    rooms = [text.get_window_extent() for text in axes.texts]
    assert 10 < len(rooms) <= 45
    assert not any(a.overlaps(b) for i, a in enumerate(rooms) for b in rooms[:i])


def test_relations_whose_facts_are_scattered_are_not_named() -> None:
    addresses = made_addresses()
    addresses["relations"] = sorted(set(addresses["relations"])) * 8
    assert not with_map(addresses).axes[0].texts


def test_relations_without_common_roles_are_only_named() -> None:
    addresses = made_addresses(facts=1)
    addresses["relations"] = [f"a{n}, b{n}" for n in range(len(addresses["points"]))]
    addresses["explained"] = None
    figure = with_map(addresses)
    assert figure.legends == []
    assert len({line.get_color() for line in figure.axes[0].get_lines()}) == 1
    assert figure.axes[0].get_xlabel() == "first direction"


def test_domains_are_roles_that_relations_connect() -> None:
    found = domains_of(["a, b", "c, d", "x, y", "b, c"])
    assert found["a, b"] == found["c, d"] == found["b, c"] == "a, b, c, d"
    assert found["x, y"] == "x, y"


# --- files ---------------------------------------------------------------------------------------------------------


def test_the_main_picture_is_hits_and_the_same_every_time(tmp_path: Path) -> None:
    results = with_details(made_results(FEW))
    for name in ("a.svg", "b.svg"):
        draw_picture(results, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    ElementTree.parse(tmp_path / "a.svg")
    with pytest.raises(InputError, match="nothing to draw"):
        draw_picture(made_results({}), tmp_path / "c.svg")
