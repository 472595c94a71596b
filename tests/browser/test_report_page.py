"""Pages that commands write, in a real browser: the numbers of the JSON, hostile text inert, keyboard and names."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")

from browser_pages import HOSTILE, Seen, chromium, watched  # noqa: E402

pytestmark = [pytest.mark.needs("chromium", "playwright", "torch"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
CONTRACT = """contract looked_at version "3"
  "%s"
assume { temperature = 1; sampler = full_softmax; vocabulary = 256; reward in [0, 1]; horizon <= 64 tokens }
slice first = tag("first")
numerical {
  drift: tv <= 0.1 except 20%% -> L3
  near:  tv <= 0.9 except 50%% on first -> L2
  kl:    mean kl(candidate || reference) <= 0.05 nats -> L1
}
runtime { slow: p99 latency <= 100 s -> L2 }
guarantee { one_token: tv <= 0.3 except 20%%; reward: reward_drift <= 0.2 }
escalate { L1 -> log; L2 -> guard; L3 -> rollback }
"""


def run(where: Path, *words: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "kcverify", *words, "--format", "json"]
    done = warm.run(command, capture_output=True, text=True, cwd=where, env=environment, timeout=240)
    assert done.returncode in (0, 1, 3), done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A contract, data and two streams in which every text that may be hostile is."""
    where = tmp_path_factory.mktemp("report")
    told = (
        " ".join(HOSTILE)
        .replace('"', "")
        .replace("\x00", "")
        .replace("\x1b", "")
        .replace("\u202e", "")
        .replace("\u2066", "")
    )
    (where / "looked_at.kc").write_text(CONTRACT % told, encoding="utf-8")
    lines = [
        {
            "request_id": f"{text}{i}",
            "text": f"it was {text} then and {text} again, twice",
            "tags": ["first"] if i % 2 else [],
        }
        for i, text in enumerate(HOSTILE)
    ]
    (where / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    stream = (ROOT / "tests/data/streams/vllm_completions.jsonl").read_text(encoding="utf-8")
    for name, shift in (("a.jsonl", 0.0), ("b.jsonl", 0.125)):
        rows = [json.loads(line) for line in stream.splitlines()]
        for i, row in enumerate(rows):
            row["custom_id"] = "".join(HOSTILE) + str(i)
            body = row["response"]["body"]
            if body:
                body["model"] = "".join(HOSTILE)
                logprobs = body["choices"][0]["logprobs"]
                logprobs["token_logprobs"] = [x if x is None else x - shift for x in logprobs["token_logprobs"]]
        (where / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return where


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, Any]:
    pair = ("--reference", "demo:float32", "--candidate", "demo:int4")
    return run(folder, "measure", "looked_at.kc", *pair, "--data", "data.jsonl", "--causes", "--report", "report.html")


@pytest.fixture(scope="module")
def compared(folder: Path) -> dict[str, Any]:
    return run(folder, "compare", "a.jsonl", "b.jsonl", "--as", "verl", "--html", "compared.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def numbers(value: object) -> Iterator[str]:
    """Every number of a JSON value as the page's `<data>` elements write it; bounds are exact texts."""
    if isinstance(value, dict):
        for one in value.values():
            yield from numbers(one)
    elif isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, float):
        yield repr(value)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)


def opened(seen: Seen, folder: Path, name: str) -> None:
    seen.page.goto((folder / name).as_uri())


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("name", ["report.html", "compared.html"])
def test_readable_named_and_inert(
    browser: Any, folder: Path, measured: dict[str, Any], compared: dict[str, Any], name: str, scheme: str, width: int
) -> None:
    with watched(browser, color_scheme=scheme, viewport={"width": width, "height": 900}) as seen:
        opened(seen, folder, name)
        assert seen.faults() == []
        assert seen.hidden() == set()
        assert seen.page.locator("script, iframe, object, link, img").count() == 0
        text = seen.page.locator("body").inner_text()
        assert "{{7*7}}" in text and "<img src=x onerror=" in text and "\\u202e" in text
        seen.quiet((folder / name).as_uri())


def test_numbers_are_those_of_the_json(browser: Any, folder: Path, measured: dict[str, Any]) -> None:
    with watched(browser) as seen:
        opened(seen, folder, "report.html")
        shown, known = seen.data(), set(numbers(measured))
        assert len(shown) > 60
        assert [value for value in shown if _is_number(value) and value not in known] == []
        rows = {c["name"]: c for c in measured["measured"]["clauses"]}
        drift = seen.page.locator(
            "#clauses ~ .card tbody tr", has=seen.page.get_by_role("rowheader", name="drift")
        ).first
        assert [drift.locator("data").nth(i).get_attribute("value") for i in range(2)] == [
            str(rows["drift"]["evidence"]["exceeding_rows"]),
            str(rows["drift"]["evidence"]["rows"]),
        ]
        assert seen.page.get_by_role("table", name="All traffic").get_by_role("row").count() == 4
        assert seen.page.get_by_role("img", name="Histogram of tv").count() == 1


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def test_keyboard(browser: Any, folder: Path, measured: dict[str, Any]) -> None:
    """The skip link comes first and leads to the content; a closed part opens by Enter; nothing is a trap."""
    with watched(browser) as seen:
        opened(seen, folder, "report.html")
        page = seen.page
        stops = seen.stops()
        assert stops[0] == "A Skip to the guarantees"
        assert [s for s in stops if s.startswith("SUMMARY")] == [
            f"SUMMARY {text.strip()[:60]}" for text in page.locator("summary:visible").all_text_contents()
        ]
        page.evaluate("document.activeElement?.blur()")
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        closed = page.locator("details:not([open]) > summary").first.element_handle()
        closed.focus()
        page.keyboard.press("Enter")
        assert closed.evaluate("e => e.parentElement.open")


def test_print_opens_what_is_closed(browser: Any, folder: Path, measured: dict[str, Any]) -> None:
    with watched(browser, color_scheme="dark") as seen:
        opened(seen, folder, "report.html")
        table = seen.page.get_by_role("table", name="Chain of bounds of one_token", include_hidden=True)
        assert not table.is_visible()
        seen.page.emulate_media(media="print")
        assert table.is_visible()
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
