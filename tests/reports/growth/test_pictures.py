"""The pictures: right ticks, right points, the same bytes every time."""

from pathlib import Path
from typing import Any

import pytest

from contentrope.errors import InputError
from contentrope.reports import draw_picture, write_report
from contentrope.reports.looks import looks
from tests.reports.growth.made_up import CURVES, made_results
from tests.reports.reading import Page


def figure_of(results: dict[str, Any]) -> Any:
    import matplotlib.style

    from contentrope.reports.growth.figures import curve_figure

    with matplotlib.style.context("default"):
        return curve_figure(results)


def test_the_picture_has_the_lengths_as_ticks_and_content_first() -> None:
    figure = figure_of(made_results({"rope": CURVES["rope"], "content": CURVES["content"]}))
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["256", "512", "1,024", "2,048", "4,096"]
    assert all(float(label.get_text().replace(",", "")) for label in axes.get_yticklabels())
    assert not axes.get_xticks(minor=True).size + axes.get_yticks(minor=True).size
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["content", "rope", "hollow: the paper"]


@pytest.mark.parametrize("last", [1e150, 1e305])
def test_a_curve_may_end_near_the_largest_number(tmp_path: Path, last: float) -> None:
    results = made_results({"content": CURVES["content"], "rope": (4.4, 9.0, 20.0, 40.0, last)})
    names = {path.name for path in write_report(results, tmp_path)}
    assert {"report.md", "curve.svg"} <= names


def test_a_close_up_appears_only_where_curves_crowd() -> None:
    crowded = {name: CURVES[name] for name in ("content", "alibi", "rope")}
    assert len(figure_of(made_results(crowded)).axes) == 2
    del crowded["rope"]
    assert len(figure_of(made_results(crowded)).axes) == 1


def test_the_paper_is_drawn_once_a_scheme_in_its_colour() -> None:
    curves = {name: CURVES[name] for name in ("rope", "rope:frequencies=model_wide", "local")}
    (axes,) = figure_of(made_results(curves)).axes
    hollow = [line for line in axes.get_lines() if line.get_markerfacecolor() == "none"]
    assert [list(line.get_ydata()) for line in hollow] == [[4.70, 5.99, 8.23, 10.71, 13.36]]
    colours = {line.get_color() for line in axes.get_lines() if list(line.get_xdata()) == [256, 512, 1024, 2048, 4096]}
    assert hollow[0].get_color() in colours
    assert len(colours) == 2


def test_windows_read_once_score_other_text_and_are_not_part_of_the_curve() -> None:
    results = made_results({"content": CURVES["content"]})
    results["config"]["once"] = [4096]
    (axes,) = figure_of(results).axes
    assert max(max(line.get_xdata()) for line in axes.get_lines()) == 2048


def test_a_long_legend_fits_beside_the_axes() -> None:
    many = {
        f"content:competition=1,learn_competition=true,noise={i},anchors=[0,1]": CURVES["content"] for i in range(15)
    }
    figure = figure_of(made_results(many))
    figure.draw_without_rendering()
    drawn = figure.legends[0].get_window_extent()
    assert drawn.y0 >= 0
    assert drawn.y1 <= figure.bbox.height
    assert "anchors=[0,1]" in figure.legends[0].get_texts()[0].get_text()


def test_the_colour_of_a_scheme_goes_to_its_plain_form_or_its_first() -> None:
    found = looks(["content:noise=1", "content:noise=2", "random:competition=1", "random"])
    assert found["content:noise=1"].colour == looks(["content"])["content"].colour
    assert found["random"].colour == looks(["random"])["random"].colour
    assert len({look.colour for look in found.values()}) == 4


def test_a_picture_is_svg_or_png(tmp_path: Path) -> None:
    draw_picture(made_results(), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"x\.pdf"):
        draw_picture(made_results(), tmp_path / "x.pdf")


def test_own_settings_of_matplotlib_change_nothing(tmp_path: Path) -> None:
    import matplotlib

    draw_picture(made_results(), tmp_path / "a.svg")
    with matplotlib.rc_context({"font.size": 20, "axes.grid": False, "lines.linewidth": 9}):
        draw_picture(made_results(), tmp_path / "b.svg")
        assert matplotlib.rcParams["font.size"] == 20
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("curves", [{}, {"content": (None,) * 5}])
def test_with_nothing_to_draw_there_is_no_picture(tmp_path: Path, curves: dict[str, tuple[None, ...]]) -> None:
    results = made_results(dict(curves))
    assert [path.name for path in write_report(results, tmp_path)] == ["report.md", "report.html"]
    Page((tmp_path / "report.html").read_text())
    assert "matplotlib" not in (tmp_path / "report.md").read_text()
    with pytest.raises(InputError, match="nothing to draw"):
        draw_picture(results, tmp_path / "curve.svg")


def test_odd_curves_are_drawn(tmp_path: Path) -> None:
    write_report(made_results({"a": (4.0,)}, lengths=(256,)), tmp_path)
    write_report(made_results({"a": (4.0, None, 1e9), "b": (1.0, 1.0, 1.0)}, lengths=(7, 8, 9)), tmp_path)
    write_report(made_results({f"v{i}": (4.0, 5.0) for i in range(30)}, lengths=(1, 2)), tmp_path)
