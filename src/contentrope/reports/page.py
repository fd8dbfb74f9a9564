"""A report as one HTML file that needs nothing else: no network, no scripts, pictures inside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

from contentrope.reports.blocks import Block, Command, Heading, Paragraph, Picture, Points
from contentrope.reports.looks import GROUND, INK
from contentrope.reports.tables import Cell, Table

STYLE = """
:root { color-scheme: light dark; --line: #d5d9de; --soft: #f3f5f7; --ink: #1f2328; --ground: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a4149; --soft: #1b2027; --ink: #e4e8ec; --ground: #111519; }
}
body { margin: 0 auto; padding: 1rem; max-width: 58rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: 0.35rem 0.7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--ground); }
thead th { border-bottom-width: 2px; }
tbody th { font-weight: normal; }
em { opacity: 0.75; }
pre { padding: 0.7rem; background: var(--soft); border-radius: 6px; overflow-x: auto; overflow-wrap: normal; }
figure { margin: 1rem 0; overflow-x: auto; }
figure svg { width: 100%; min-width: 36rem; height: auto; }
"""


def page(blocks: Sequence[Block], pictures: Mapping[str, bytes]) -> str:
    """The whole file; ``pictures`` holds the SVG of every picture in the blocks."""
    title = next(block.text for block in blocks if isinstance(block, Heading))
    body = "\n".join(_block(block, pictures) for block in blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _block(block: Block, pictures: Mapping[str, bytes]) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Points(items):
            return "<ul>\n" + "\n".join(f"<li>{escape(item)}</li>" for item in items) + "\n</ul>"
        case Command(text):
            return f"<pre><code>{escape(text)}</code></pre>"
        case Picture(name, alternative):
            return f"<figure>{_inline(pictures[name].decode(), name, alternative)}</figure>"
        case Table(head, rows):
            return _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    lines = [
        f'<tr><th scope="row">{_cell(row[0])}</th>' + "".join(f"<td>{_cell(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    ]
    body = "\n".join(lines)
    return f'<div class="wide"><table>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _cell(cell: Cell) -> str:
    tag = {"plain": None, "strong": "strong", "emphasis": "em"}[cell.style]
    return f"<{tag}>{escape(cell.text)}</{tag}>" if tag and cell.text else escape(cell.text)


def _inline(svg: str, name: str, alternative: str) -> str:
    """A picture as part of the page: in the page's own ink, and with ids that no other picture has."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r'\s+xmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(INK, "currentColor").replace(GROUND, "none")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(alternative)}"', 1)
