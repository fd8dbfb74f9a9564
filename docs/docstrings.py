"""Docstrings on the site: examples as code (Markdown would take >>> for a quotation), references without their role."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")


class Docstrings(griffe.Extension):
    """Wraps every example, to the blank line that ends it, in a fenced block."""

    def on_object(self, *, obj: Any, **options: Any) -> None:
        if obj.docstring:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
