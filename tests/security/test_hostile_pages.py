"""Every page that a command writes, with hostile words wherever its answer has text: the tags of the plain page, and inert."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hostile_output import OWN, Tags, hostile, obeyed
from hostile_words import unprintable

pytestmark = pytest.mark.needs("torch")

from kcverify.cli import main  # noqa: E402
from kcverify.cli.common import tell  # noqa: E402

ROOT = Path(__file__).parents[2]
CONTRACT = """contract c version "1"
assume { temperature = 1; sampler = full_softmax; vocabulary = 256; horizon <= 4 tokens; reward in [0, 1] }
slice first = tag("first")
numerical { d: tv <= 0.5 except 30% on first -> L1; e: logit_span <= 5 except 30% -> L1 }
guarantee { g: tv <= 0.9 except 30% }
"""
SMALL = ("--window", "8", "--limit", "16", "--data", "t.txt")
PRODUCT = str(ROOT / "contracts/kernels/accumulator_bf16.kc")
SOFTMAX = str(ROOT / "contracts/kernels/softmax_stable.kc")
STREAM = str(ROOT / "tests/data/streams/vllm_completions.jsonl")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "measure": ("measure", "c.kc", "--reference", "demo:float32", "--candidate", "demo:int8", *SMALL, "--causes"),
    "compare": ("compare", STREAM, STREAM, "--as", "verl"),
    "map": ("map", "c.kc", "--kernel", "int8", "--rows", "16", *SMALL),
    "allocate": ("allocate", "c.kc", "--clause", "e", "--formats", "float32,int8_bf16", "--level", "kind", "--calibration", "4", "--points", "1", *SMALL),
    "conformance": ("conformance", "run", SOFTMAX, "--kernel", "softmax.float32", "--same-process", "--trials", "1"),
    "chain": ("conformance", "chain", PRODUCT, "c.kc", *SMALL),
}  # fmt: skip
KEEP = frozenset({
    "verdict", "severity", "kind", "status", "state", "evidence", "answer", "worth", "metric", "statistic", "relation", "exception",
    "mean", "largest", "lower", "upper", "value", "max", "p99.9", "limit", "share", "format", "unit_kind", "seen", "kernel", "means",
    "figures", "ratio", "tolerance", "residual", "coerced", "cost_kind", "at_most", "log_mean", "bound", "threshold", "slack", "exact",
    "quantity", "follows", "carried", "pareto", "sensitivity", "units", "histograms", "formats",
})  # fmt: skip
"""Keys whose texts are numbers, or words of ours that a page looks up."""


def renderers() -> dict[str, tuple[Callable[[Any], str], Callable[[Any, bool], str]]]:
    """By command: what writes its page, and its text."""
    from kcverify.conformance.record import entry
    from kcverify.emit import allocation, conformance, report, streams
    from kcverify.output import allocation as of_allocation
    from kcverify.output import compare_streams, kernel_chain, measure
    from kcverify.output import conformance as of_conformance

    def run_page(found: Any) -> str:
        return conformance.render({**found, "reproduce": entry(found)["reproduce"]})

    return {
        "measure": (report.render_report, measure.text), "compare": (streams.render_comparison, compare_streams.text),
        "map": (allocation.render_map, of_allocation.drift_map), "allocate": (allocation.render_allocation, of_allocation.allocation),
        "conformance": (run_page, of_conformance.run), "chain": (allocation.render_chain, kernel_chain.text),
    }  # fmt: skip


def answer(words: tuple[str, ...]) -> Any:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main([*words, "--format", "json"])
    assert stop.value.code in (0, 1, 3), err.getvalue()
    return json.loads(out.getvalue())


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, Any]]:
    """By command: the page of a small run, the same with hostile words, and the answer with them."""
    folder, made = tmp_path_factory.mktemp("pages"), {}
    with contextlib.chdir(folder):
        Path("c.kc").write_text(CONTRACT)
        Path("t.txt").write_text("a few words of plain text, again and again; " * 6)
        for name, words in COMMANDS.items():
            plain, render = answer(words), renderers()[name][0]
            changed = hostile(plain, KEEP)
            made[name] = (render(plain), render(changed), changed)
            (folder / f"{name}.html").write_text(made[name][1], encoding="utf-8")
    return made


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_the_tags_of_a_plain_one(pages: Any, name: str) -> None:
    plain, page, _ = pages[name]
    assert "{{7*7}}" in page and "onerror=alert(1)" in page
    assert Tags(page).found - OWN <= Tags(plain).found
    assert not {a for _, a in Tags(page).found if a.startswith("on") or a in ("src", "srcdoc", "formaction")}
    assert not unprintable(page)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_text_of_an_answer_keeps_its_lines(pages: Any, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Words of others end no line of ours, command no terminal and no runner of CI."""
    tell(renderers()[name][1], pages[name][2])
    told = capsys.readouterr().out
    assert not obeyed(told)
    assert not [line for line in told.splitlines() if line.strip() in ("yes", "null", "-rf", "--help", "'''", "a: b")]


@pytest.mark.needs("chromium", "playwright")
def test_a_browser_runs_nothing_of_them(pages: Any, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        asked: list[str] = []
        said: list[str] = []
        page.on("request", lambda r: asked.append(r.url))
        page.on("dialog", lambda d: (said.append(d.message), d.dismiss()))
        page.on("console", lambda m: said.append(m.text))
        page.on("pageerror", lambda e: said.append(str(e)))
        for name, (_, text, _) in pages.items():
            file = tmp_path / f"{name}.html"
            file.write_text(text, encoding="utf-8")
            asked.clear()
            page.goto(file.as_uri())
            assert asked == [file.as_uri()], name
            assert (
                page.locator("script, img, iframe, object, embed, link, base, form, [onload], [onerror]").count() == 0
            ), name
        browser.close()
    assert said == []
