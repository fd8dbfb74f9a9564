"""Result files and pictures lie beside docs/, not in it: they are part of the site, and links to them lead there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
OF_THE_CHECKOUT = re.compile(r"\[([^\]]+)\]\(\.\./(?!results/)[^)]*\)")
"""Links to files of the checkout that the site does not have."""


def on_files(files: Any, config: Any) -> Any:
    for path in sorted((ROOT / "results").rglob("*")):
        if path.is_file():
            files.append(File(str(path.relative_to(ROOT)), str(ROOT), config["site_dir"], use_directory_urls=False))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    markdown = re.sub(r"\[([^\]]+)\]\(\.\./results(?:/[\w-]*)?\)", r"\1", markdown)  # a folder has no page
    return OF_THE_CHECKOUT.sub(r"\1", markdown).replace("](../results/", "](results/")
