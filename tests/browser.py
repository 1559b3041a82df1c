"""What tests that look at a page in a real browser share."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def chromium(*arguments: str) -> Iterator:
    """A headless Chromium of playwright's; skips where either is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (scripts/setup.sh dev)")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if not program:
        pytest.skip("no chromium on PATH (scripts/install_test_packages.sh)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", *arguments])
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser, width: int = 1280, **options) -> tuple:
    """A page, and the list that errors and requests to other places are added to."""
    page = browser.new_page(viewport={"width": width, "height": 800}, **options)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if _is_local(request.url) else problems.append(request.url))
    return page, problems


def _is_local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))
