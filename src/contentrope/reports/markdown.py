"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from contentrope.reports.blocks import Block, Command, Heading, Paragraph, Picture, Points
from contentrope.reports.tables import Table, markdown_text


def markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(map(_block, blocks)) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {markdown_text(text)}"
        case Paragraph(text):
            return markdown_text(text)
        case Points(items):
            return "\n".join(f"- {markdown_text(item)}" for item in items)
        case Command(text):
            return f"```bash\n{text}\n```"
        case Picture(name, alternative):
            return f"![{markdown_text(alternative)}]({name}.svg)"
        case Table():
            return block.markdown()
