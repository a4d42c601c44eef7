"""A headless Chromium for pages that open from disk; without one these tests are skipped, and say why."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Tab:
    """A page in the browser, and everything that it complained about or asked the network for."""

    page: object
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def chromium():
    """The browser's program."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)")
    pytest.importorskip("playwright", reason="no Python client of the browser: pip install 'uldp[browser]'")
    return found


@pytest.fixture
def open_page(chromium, tmp_path):
    """Opens a file in a new profile: ``open_page(path, width=390, dark=True)``."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as client:
        contexts = []

        def opened(path, *, width=1160, height=900, dark=False, javascript=True):
            context = client.chromium.launch_persistent_context(
                tmp_path / f"profile-{len(contexts)}",
                executable_path=chromium,
                headless=True,
                args=list(FLAGS),
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
                java_script_enabled=javascript,
            )
            contexts.append(context)
            tab = Tab(context.new_page())
            tab.page.on("console", lambda message: tab.complaints.append(message.text))
            tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
            tab.page.on("request", lambda request: tab.requests.append(request.url))
            tab.page.goto(path.resolve().as_uri())
            return tab

        yield opened
        for context in contexts:
            context.close()
