"""The dashboard of many clauses with long names on 5 slices each: on a wide, a narrow and an enlarged page, in the dark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "gateway"))
from browser_pages import chromium, watched  # noqa: E402
from large_status import large  # noqa: E402

from kcverify.gateway import shown  # noqa: E402

pytestmark = [pytest.mark.needs("chromium", "playwright"), pytest.mark.slow]

CLAUSES = 20
URL = "http://127.0.0.1:9/dashboard"
_OUTSIDE = """() => {
  const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, place = e.closest("th, td, .card, section");
    if (!walk.currentNode.nodeValue.trim() || !place || e.closest("svg, .hidden, pre, script")) continue;
    const head = e.closest("thead");
    if (!e.checkVisibility() || (head && getComputedStyle(head).position === "absolute")) continue;
    const range = document.createRange();
    range.selectNodeContents(walk.currentNode);
    if (range.getBoundingClientRect().right > place.getBoundingClientRect().right + 1) found.push(walk.currentNode.nodeValue.slice(0, 90));
  }
  return found;
}"""
"""Texts that leave their cell or card."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    made, status = large(CLAUSES, tmp_path_factory.mktemp("large") / "s.db")
    return shown.page(made, status, "n0nce", signed=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (640, "light"), (360, "dark")], ids=["wide", "zoom 200 %", "narrow and dark"]
)
def test_nothing_leaves_its_place(browser: Any, page: str, width: int, scheme: str) -> None:
    """Long names break; what a screen reader finds and what is too faint to read is as on a small page."""
    assert len(page) < 1_500_000
    with watched(browser, viewport={"width": width, "height": 900}, color_scheme=scheme) as seen:
        seen.page.route("**/dashboard", lambda r: r.fulfill(body=page, content_type="text/html; charset=utf-8"))
        seen.page.route("**/dashboard/data", lambda r: r.abort())
        seen.page.goto(URL, wait_until="commit")
        seen.page.locator("footer").wait_for()
        assert seen.page.evaluate(_OUTSIDE)[:3] == []
        assert seen.faults() == []
        link = seen.page.locator(".trouble a").first
        link.focus()
        seen.page.keyboard.press("Enter")
        target = seen.page.evaluate("document.querySelector(location.hash).getBoundingClientRect().top")
        assert 0 <= target < 900
