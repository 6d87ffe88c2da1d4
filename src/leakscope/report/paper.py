"""A page on paper: printed by a browser, where there is one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from leakscope.core import files
from leakscope.report.pages import plural

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
PATIENCE = 60  # seconds for a browser
SHEETS = 2  # pages that are wanted
SIZES = (100, 95, 90, 85)  # of the letters, in percent


def print_page(page: str) -> tuple[bytes, str]:
    """The PDF, in the largest letters with which it has no more pages than wanted, or else the smallest, and
    what became of it. Links would lead from paper to the place where it was printed, so there are none."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        return b"", "there is no Chromium or Chrome on the PATH."
    printed, pages = b"", 0
    try:
        for size in SIZES:
            style = f"<style>html {{ font-size: {size}% }}</style></head>"
            bare = re.sub(r'<a href="[^"]*">', "<a>", page).replace("</head>", style, 1)
            printed = _run(browser, bare)
            pages = len(re.findall(rb"/Type */Page\b", printed))
            if pages <= SHEETS:
                break
    except (OSError, subprocess.SubprocessError) as error:
        return b"", f"{Path(browser).name} did not print it ({type(error).__name__})."
    return printed, f"{plural(pages, 'page')}."


def _run(browser: str, page: str) -> bytes:
    with TemporaryDirectory() as place:
        source, target = Path(place, "page.html"), Path(place, "page.pdf")
        files.write(source, page)
        root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        flags = [
            "--headless",
            "--disable-gpu",
            "--no-pdf-header-footer",
            f"--user-data-dir={place}/profile",
            *root,
        ]
        command = [browser, *flags, f"--print-to-pdf={target}", source.as_uri()]
        subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True)
        return files.read(target)
