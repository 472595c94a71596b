"""A real browser for the tests of pages: what it recorded, and what a screen reader or a keyboard finds."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
HOSTILE = (
    "<img src=x onerror=window.owned=1>", "</script><script>window.owned=1</script>", "{{7*7}}", "{% raw %}",
    "'\"><svg onload=window.owned=1>", "\u202egnp.exe\u2066", "\x1b[31m\x00", "javascript:window.owned=1", "&lt;b&gt;&#0;",
    "a\u200bb\ufeff\U000e0041",
)  # fmt: skip
HIDDEN = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u200b\ufeff\x00\x1b\U000e0041"
"""Characters that no page may hold."""

_FAULTS = """() => {
  const found = [], all = (s) => [...document.querySelectorAll(s)];
  const name = (e) => (e.getAttribute("aria-label") || (e.getAttribute("aria-labelledby") || "").split(" ")
    .map((i) => document.getElementById(i)?.textContent || "").join(" ") || e.textContent || "").trim();
  for (const e of all("a, button, summary, [role=img], article, nav, table")) {
    const label = e.matches("table") ? (e.caption?.textContent || "").trim() : name(e);
    if (!label) found.push("no name: " + e.outerHTML.slice(0, 120));
  }
  for (const e of all("input:not([hidden]), select, textarea")) if (!e.labels.length) found.push("no label: " + e.outerHTML);
  for (const e of all("svg")) if (e.getAttribute("role") !== "img" || !e.querySelector(":scope > title") || !e.querySelector(":scope > desc"))
    found.push("svg without role, title or desc: " + e.id);
  for (const e of all("th")) if (!e.scope) found.push("th without scope: " + e.textContent);
  for (const e of all("section")) if (!name(e)) found.push("section without a name: " + e.id);
  const ids = all("[id]").map((e) => e.id);
  for (const id of new Set(ids)) if (ids.filter((i) => i === id).length > 1) found.push("id twice: " + id);
  for (const e of all("[aria-labelledby], [aria-describedby]"))
    for (const id of ((e.getAttribute("aria-labelledby") || "") + " " + (e.getAttribute("aria-describedby") || "")).trim().split(/\\s+/))
      if (!document.getElementById(id)) found.push("refers to nothing: " + id);
  for (const e of all("a[href^='#']")) if (!document.getElementById(e.getAttribute("href").slice(1))) found.push("leads nowhere: " + e.href);
  let before = 0;
  for (const e of all("h1, h2, h3, h4, h5, h6")) {
    const level = +e.tagName[1];
    if (level > before + 1) found.push(`h${level} after h${before}: ` + e.textContent);
    before = level;
  }
  if (all("h1").length !== 1) found.push("not one h1");
  if (all("main").length !== 1) found.push("not one main");
  if (!document.documentElement.lang || !document.title) found.push("no language or title");
  for (const e of all("*")) for (const a of e.attributes) if (/^on/i.test(a.name)) found.push("inline handler: " + e.outerHTML.slice(0, 120));
  if (document.documentElement.scrollWidth > document.documentElement.clientWidth) found.push("wider than the window");
  return found;
}"""

_CONTRAST = """() => {
  const numbers = (c) => (c.match(/[\\d.]+/g) || [0, 0, 0]).map(Number);
  const lum = (c) => { const [r, g, b] = numbers(c).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if ((numbers(c)[3] ?? 1) > 0) return c; }
    return "rgb(255, 255, 255)"; };
  const worst = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.nodeValue.trim() || e.closest("script, style, noscript, .hidden") || !e.checkVisibility()) continue;
    const inside = e.closest("svg"), style = getComputedStyle(e);
    if (inside && !e.matches(".tick, .label, .detail")) continue;
    const [a, b] = [lum(inside ? style.fill : style.color), lum(ground(inside ? inside.parentElement : e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) worst.push(`${ratio.toFixed(2)} ${walk.currentNode.nodeValue.trim().slice(0, 40)}`);
  }
  return worst;
}"""


@dataclass
class Seen:
    """What a page did: messages of its console, errors, addresses it asked for."""

    page: Page
    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def quiet(self, *own: str) -> None:
        """No error, no message, nothing asked from anywhere but `own`; no text of others ran."""
        assert self.errors == []
        assert [m for m in self.console if not m.startswith("verbose")] == []
        assert [a for a in self.asked if not a.startswith(own)] == []
        assert self.page.evaluate("window.owned") is None

    def faults(self) -> list[str]:
        """What a screen reader would stumble over, and text too faint to read."""
        return [*self.page.evaluate(_FAULTS), *self.page.evaluate(_CONTRAST)]

    def data(self, within: str = "body") -> list[str]:
        """Values of all `<data>` elements."""
        return list(self.page.eval_on_selector_all(f"{within} data", "es => es.map(e => e.value)"))

    def hidden(self) -> set[str]:
        """Characters of the page's text and attributes that could deceive a reader."""
        text = self.page.evaluate("document.documentElement.outerHTML")
        return set(text) & set(HIDDEN)

    def stops(self, most: int = 400) -> list[str]:
        """What the Tab key reaches, in order, each once."""
        page, found = self.page, list[str]()
        page.evaluate(
            "() => { const e = document.createElement('i'); e.tabIndex = -1; document.body.prepend(e); e.focus(); e.remove(); }"
        )
        tell = "() => { const e = document.activeElement; return e === document.body ? '' : `${e.tagName} ${e.textContent.trim().slice(0, 60)}`; }"
        for _ in range(most):
            page.keyboard.press("Tab")
            at = page.evaluate(tell)
            if not at:
                break
            found.append(at)
        return found


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's browser, headless, talking to nobody."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def watched(browser: Browser, **options: Any) -> Iterator[Seen]:
    """A page with nothing of an earlier one; `options` of the context."""
    context = browser.new_context(**options)
    try:
        page = context.new_page()
        seen = Seen(page)
        page.on("console", lambda m: seen.console.append(f"{m.type} {m.text}"))
        page.on("pageerror", lambda e: seen.errors.append(str(e)))
        page.on("request", lambda r: seen.asked.append(r.url))
        yield seen
    finally:
        context.close()
