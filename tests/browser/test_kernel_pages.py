"""Pages of a kernel under its contract and of a chain to the policy gradient, in a real browser: named, readable, nothing covered."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")

from browser_pages import chromium, watched  # noqa: E402

pytestmark = [pytest.mark.needs("chromium", "playwright", "torch"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "contracts" / "kernels"
NARROW = "kcverify.conformance.samples:matmul_narrow"
ASKED = """contract answers
assume { temperature = 1; sampler = full_softmax; horizon <= 1 tokens; reward in [0, 1]; advantage in [-1, 1]; score_norm <= 1 }
numerical { drift: logit_span <= 3 except 30% -> L2 }
guarantee { grad_safe: pg_bias <= 2 }
"""
PAGES = {
    "incident.html": (1, "run", str(KERNELS / "accumulator_bf16.kc"), "--kernel", NARROW, "--same-process", "--html", "incident.html"),
    "chain.html": (3, "chain", str(KERNELS / "accumulator_bf16.kc"), "asked.kc", "--window", "4", "--limit", "2", "-o", "chain.html"),
}  # fmt: skip
_COVERED = """() => [...document.querySelectorAll("table td, table tbody th")].filter((e) => {
  if (!e.checkVisibility() || !e.textContent.trim()) return false;
  e.scrollIntoView({block: "center"});
  const r = e.getBoundingClientRect(), at = document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2);
  return at && !e.contains(at) && !at.contains(e);
}).map((e) => e.textContent.trim())"""
_LABELS = """() => [...document.querySelectorAll("svg text.label")].map((e) => e.getBoundingClientRect()).map((r) => [r.left, r.top, r.right, r.bottom])"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("kernels")
    (where / "asked.kc").write_text(ASKED, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for code, *words in PAGES.values():
        command = [sys.executable, "-m", "kcverify", "conformance", *words]
        done = warm.run(command, capture_output=True, text=True, cwd=where, env=environment, timeout=240)
        assert done.returncode == code, done.stderr
    return where


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 375)])
@pytest.mark.parametrize("name", sorted(PAGES))
def test_named_readable_and_nothing_covered(browser: Any, folder: Path, name: str, scheme: str, width: int) -> None:
    with watched(browser, color_scheme=scheme, viewport={"width": width, "height": 900}) as seen:
        seen.page.goto((folder / name).as_uri())
        assert seen.faults() == []
        assert seen.hidden() == set()
        assert seen.page.evaluate(_COVERED) == []
        boxes = seen.page.evaluate(_LABELS)
        assert [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if _meet(a, b)] == []
        seen.quiet((folder / name).as_uri())


def _meet(a: list[float], b: list[float]) -> bool:
    """Whether two boxes (left, top, right, bottom) share more than a pixel of height."""
    across, down = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return across > 0 and down > 0.3 * min(a[3] - a[1], b[3] - b[1])
