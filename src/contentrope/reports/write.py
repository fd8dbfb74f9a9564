"""Writing a report: Markdown, HTML and pictures into one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from contentrope.errors import BackendError, InputError
from contentrope.files import require_replaceable, write_whole
from contentrope.reports.checked import check_results
from contentrope.reports.known import experiment_of
from contentrope.reports.markdown import markdown
from contentrope.reports.page import page
from contentrope.reports.pictures import Drawn, draw
from contentrope.reports.read import Results

PAGES = ("report.md", "report.html")
"""What every report has; pictures have names of their own."""


def write_report(results: Results, folder: str | Path) -> list[Path]:
    """Write report.md, report.html and the pictures, and return their paths; without matplotlib, no pictures."""
    check_results(results)
    try:
        pictures, notice = draw(results), None
    except BackendError as error:
        pictures, notice = {}, f"Not drawn: {error}."
    blocks = experiment_of(results).document(results, pictures, notice)
    files = {
        PAGES[0]: markdown(blocks).encode(),
        PAGES[1]: page(blocks, {name: drawn.svg for name, drawn in pictures.items()}).encode(),
        **_files(pictures),
    }
    places = {Path(folder, name): data for name, data in files.items()}
    require_replaceable(places)
    for path, data in places.items():
        write_whole(path, data)
    return list(places)


def draw_picture(results: Results, path: str | Path) -> None:
    """Write the main picture of the experiment alone, as .svg or .png."""
    check_results(results)
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise InputError(f"a picture is written as .svg or .png, not as {path.name}")
    main = experiment_of(results).MAIN_PICTURE
    drawn = draw(results, main).get(main)
    if drawn is None:
        raise InputError("there is nothing to draw: no run has a finite number")
    write_whole(path, drawn.svg if path.suffix == ".svg" else drawn.png)


def _files(pictures: Mapping[str, Drawn]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for name, drawn in pictures.items():
        files |= {f"{name}.svg": drawn.svg, f"{name}.png": drawn.png}
    return files
