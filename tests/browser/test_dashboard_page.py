"""The dashboard of a real gateway before real servers, in a real browser."""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from browser_pages import HOSTILE, Seen, chromium, watched  # noqa: E402
from gateway_cases import CONTRACT, TOKEN, Load, Process, serving  # noqa: E402

from kcverify import driver  # noqa: E402
from kcverify.gateway import shown  # noqa: E402
from kcverify.gateway.dashboard import policy, signed, valid  # noqa: E402

pytestmark = [pytest.mark.needs("chromium", "playwright", "torch"), pytest.mark.slow]

AUTH = {"authorization": f"Bearer {TOKEN}"}
TEXT = CONTRACT.replace(
    'version "1"', 'version "1"\n  "<img src=x onerror=window.owned=1> </script><script>window.owned=1</script> {{7*7}}"', 1
).replace("numerical {", "slice long = prompt_tokens >= 2\nnumerical { far: tv <= 0.9 except 5% on long -> L2\n")  # fmt: skip
ID = "r<img/src=x/onerror=window.owned=1>{{7*7}}"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Process, Process]]:
    with (
        serving("serve-demo", "--kernel", "float32") as exact,
        serving("serve-demo", "--kernel", "int4", "--admin-token", TOKEN) as fast,
    ):
        yield exact, fast


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("dashboard")
    (where / "served.kc").write_text(TEXT, encoding="utf-8")
    (where / "token").write_text(TOKEN + "\n", encoding="utf-8")
    return where


@pytest.fixture(scope="module")
def start(servers: tuple[Process, Process], folder: Path) -> Callable[..., Any]:
    exact, fast = servers

    def gateway(port: str, *more: str) -> Any:
        words = ["gateway", "served.kc", "--reference", exact.url, "--candidate", fast.url, "--port", port, *more]
        return serving(*words, cwd=folder)

    return gateway


@pytest.fixture(scope="module")
def load(start: Callable[..., Any]) -> Iterator[Load]:
    """A gateway that has answered a few requests."""
    with start("0", "--store", "s.db", "--admin-token-file", "token") as process:
        load = Load(process.url)
        yield load
        load.client.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def entered(seen: Seen, load: Load) -> None:
    """Sign in, and wait until the page is live."""
    page = seen.page
    page.goto(f"{load.url}/dashboard")
    page.get_by_label("Admin token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.locator("#live.pass").wait_for()


def data(load: Load) -> dict[str, Any]:
    found = load.client.get("/dashboard/data", headers=AUTH)
    assert found.status_code == 200
    return dict(found.json())


def test_empty_states_say_what_to_do_and_the_page_follows(browser: Any, load: Load) -> None:
    """From the first look without a request to numbers, without a reload; what a reader opened stays open."""
    with watched(browser) as seen:
        entered(seen, load)
        page = seen.page
        assert "No request yet" in page.locator("#state").inner_text()
        assert "No witness yet" in page.locator("#witnesses").inner_text()
        assert seen.faults() == []
        page.evaluate("window.kept = document.querySelector('main')")
        page.locator("#event-1-rest > summary").focus()
        page.keyboard.press("Enter")
        answer = load.client.post(
            "/v1/completions",
            json={"model": "demo", "prompt": "a\t\x1b b", "max_tokens": 6},
            headers={"x-request-id": ID},
        )
        assert answer.status_code == 200
        load.run(24, max_tokens=4)
        load.settled()
        page.locator("#witnesses .tokens li").first.wait_for()
        assert page.evaluate("window.kept === document.querySelector('main')")
        assert page.evaluate("document.activeElement.parentElement.id") == "event-1-rest"
        assert page.locator("#event-1-rest").evaluate("e => e.open")
        seen.quiet(load.url)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_names_labels_and_contrast(browser: Any, load: Load, scheme: str, width: int) -> None:
    with watched(browser, color_scheme=scheme, viewport={"width": width, "height": 900}) as seen:
        entered(seen, load)
        page = seen.page
        page.get_by_role("button", name="Pause updates").click()
        for summary in page.locator("summary").all():
            summary.evaluate("e => { e.parentElement.open = true }")
        assert seen.faults() == []
        assert seen.hidden() == set()
        assert (
            page.get_by_role("list", name="Stage").get_by_role("listitem").first.get_attribute("aria-current") == "step"
        )
        assert page.get_by_role("img", name="Health of far on long").count() == 1
        assert page.get_by_role("img", name="Shares of traffic").count() == 1
        assert page.get_by_role("table", name="Each clause on each slice").get_by_role("row").count() == 5
        assert page.get_by_role("region", name="Not seen").count() == 1
        assert page.get_by_role("navigation", name="Sections").get_by_role("link").count() == 6
        seen.quiet(load.url)


def test_numbers_are_those_of_the_json(browser: Any, load: Load) -> None:
    load.settled()
    with watched(browser) as seen:
        entered(seen, load)
        page = seen.page
        page.wait_for_timeout(2500)
        page.get_by_role("button", name="Pause updates").click()
        found = data(load)
        status = found["status"]
        assert set(status) == set(load.status()) - {"history"}
        state = [str(status["run"]), str(status["version"]), *(str(v) for v in status["route"]["shares"].values())]
        state += [status["route"]["mirror"], str(status["traffic"]["requests"]), str(status["traffic"]["measured"])]
        assert seen.data("#state") == state
        rows = {(c["clause"], c["slice"]): c for c in status["evidence"]}
        far, shown_far = rows["far", "long"], seen.data("#cell-0 [data-name=evidence]")
        assert shown_far[:2] == [repr(far["mean"]), repr(far["limit"])] and shown_far[2] == str(far["requests"])
        assert {repr(far["log_e_fail"]), repr(far["log_e_pass"])} <= set(shown_far)
        errors = seen.data("#cell-2 [data-name=evidence]")
        assert errors[:2] == [str(rows["errors", None]["exceeding_requests"]), str(rows["errors", None]["requests"])]
        health = {h["cell"]: h for h in status["health"]}
        assert seen.data("#cell-0 [data-name=health]")[0] == repr(health["far on long"]["health"])
        worst = status["witnesses"]["far on long"][0]
        assert seen.data("#witness-1-0")[:2] == [repr(worst["value"]), str(worst["position"])]
        texts = page.locator("#witness-1-0 .tokens li").all_text_contents()
        assert len(texts) == len(worst["tokens"]) and page.locator("#witness-1-0 .tokens .worst").count() == 1
        assert worst["texts"] and all(t.strip() for t in texts)


def test_keyboard(browser: Any, load: Load) -> None:
    with watched(browser) as seen:
        entered(seen, load)
        page = seen.page
        page.get_by_role("button", name="Pause updates").focus()
        page.keyboard.press("Space")
        assert page.get_by_role("button", name="Resume updates").is_visible()
        assert page.locator("#live").inner_text().startswith("Ⅱ paused at ")
        stops = seen.stops()
        assert stops[:2] == ["A Skip to the state", "A Now"]
        assert sum(s.startswith("SUMMARY") for s in stops) == page.locator("summary:visible").count() > 4
        page.locator("#cell-2-table > summary").focus()
        page.keyboard.press("Enter")
        assert page.get_by_role("img", name="Counts between their boundaries").first.is_visible()


def test_who_may_see_it(browser: Any, load: Load, start: Callable[..., Any]) -> None:
    """A cookie that no script reads and that signs out; never a token in an address; without a token only loopback."""
    client = httpx.Client(base_url=load.url, timeout=30)
    assert client.get("/dashboard/data").status_code == 401
    assert "status" not in client.get("/dashboard").text
    assert client.post("/dashboard", data={"token": "wrong-token-00000"}).headers.get("set-cookie") is None
    for given in (f"token={TOKEN}".encode(), b"token=%ff%00" * 2000, b"\xff" * 10, b"&" * 4000):
        answer = client.post("/dashboard", content=given, headers={"content-type": "application/x-www-form-urlencoded"})
        assert answer.status_code == (303 if given.endswith(TOKEN.encode()) else 200)
        client.cookies.clear()
    with watched(browser) as seen:
        page = seen.page
        page.goto(f"{load.url}/dashboard")
        page.get_by_label("Admin token").fill("not the token, by far")
        page.keyboard.press("Enter")
        assert "not the token" in page.get_by_role("alert").inner_text()
        assert seen.faults() == []
        page.get_by_label("Admin token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.locator("#live.pass").wait_for()
        cookie = page.context.cookies()[0]
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["path"] == "/dashboard"
        assert page.evaluate("document.cookie") == "" and not any(TOKEN in a for a in seen.asked)
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Admin token").wait_for()
        assert page.context.cookies() == []
        seen.quiet(load.url)
    now = time.time()
    session = signed(TOKEN.encode(), int(now) + 60)
    assert valid(TOKEN.encode(), session, now) and not valid(TOKEN.encode(), session, now + 61)
    assert not valid(b"another-token-00", session, now) and not valid(TOKEN.encode(), "9" + session, now)
    assert not any(valid(TOKEN.encode(), bad, now) for bad in ("", ".", "١.a", "1" * 400, "é.é"))


def test_a_lost_connection_is_said(browser: Any, start: Callable[..., Any]) -> None:
    """The gateway is killed: the page says since when it knows nothing, and goes on by itself afterwards."""
    with watched(browser) as seen:
        page = seen.page
        with start("0", "--store", "lost.db") as process:
            port = process.url.rpartition(":")[2]
            asked = httpx.get(f"{process.url}/dashboard/data", headers={"host": "rebound.example"})
            assert asked.status_code == 401
            page.goto(f"{process.url}/dashboard")
            page.locator("#live.pass").wait_for()
            assert page.get_by_role("button", name="Sign out").count() == 0
            process.kill()
            page.locator("#stale").wait_for(timeout=30_000)
            text = page.get_by_role("alert").inner_text()
            assert "No data since" in text and "does not answer" in text
            assert page.locator("#live").inner_text() == "✕ no data"
        with start(port, "--store", "lost.db"):
            page.locator("#live.pass").wait_for(timeout=30_000)
            assert not page.locator("#stale").is_visible()
        assert seen.errors == []


def _hostile(value: Any, keep: frozenset[str], text: Iterator[str]) -> Any:
    """The same shape with every text that others may choose replaced."""
    if isinstance(value, dict):
        return {k: v if k in keep else _hostile(v, keep, text) for k, v in value.items()}
    if isinstance(value, list):
        return [_hostile(v, keep, text) for v in value]
    return next(text) if isinstance(value, str) else value


def test_hostile_texts_stay_text(browser: Any, load: Load, folder: Path) -> None:
    """Every text of a real status replaced: models, fingerprints, ids, tokens, reasons, events, names of counters."""
    status = copy.deepcopy(load.status())
    keep = frozenset({"stage", "position", "cell", "clause", "slice", "kind", "verdict", "shares", "mirror", "url"})
    every = "".join(HOSTILE)
    endless = iter(lambda: every, None)
    for name in ("contract", "events", "identity", "upstreams", "witnesses", "evidence"):
        status[name] = _hostile(status[name], keep, endless)
    status["route"] = _hostile(status["route"], keep | {"route"}, endless)
    status["traffic"] |= {"dropped": {every: 1}, "void": {every: 2}, "outside": {every: 3}}
    status |= {"problem": every, "writer": every, "head": every, "next": every, "paused": True, "places": [every]}
    status["unobservable"][every] = {every: 4, "a" + every: 0}
    status["not_watched"][every] = every
    status["witnesses"][every] = status["witnesses"].pop("far on long")
    for row in status["evidence"]:
        row["log_e_fail"] = row["log_e_pass"] = None
    loaded = driver.load_source(driver.read_source(str(folder / "served.kc")), {})
    contract = driver.select(loaded.contracts, None)
    body = shown.page(contract, status, "n0nce", signed=True)
    with watched(browser) as seen:
        page = seen.page
        page.route(
            "**/dashboard",
            lambda r: r.fulfill(
                body=body,
                headers={"content-security-policy": policy("n0nce"), "content-type": "text/html; charset=utf-8"},
            ),
        )
        answer = {
            "sections": shown.sections(contract, status),
            "clock": "00:00:00",
            "title": shown.title(status),
            "summary": shown.summary(status),
        }
        page.route("**/dashboard/data", lambda r: r.fulfill(json=json.loads(json.dumps(answer))))
        page.goto(f"{load.url}/dashboard")
        page.locator("#live.pass").wait_for()
        for summary in page.locator("summary").all():
            summary.evaluate("e => { e.parentElement.open = true }")
        assert page.locator("main script, main img, main svg[onload], main iframe").count() == 0
        assert page.locator("main").inner_text().count("{{7*7}}") > 20
        assert seen.hidden() == set()
        assert [f for f in seen.faults() if "handler" in f or "wider" in f] == []
        seen.quiet(load.url)


def test_what_an_operator_does_is_on_the_page(browser: Any, load: Load) -> None:
    """A pause and its end are there a moment later, with the reason as text, and are said aloud."""
    with watched(browser) as seen:
        entered(seen, load)
        page = seen.page
        post = load.client.post("/admin/pause", json={"reason": "<b>lunch</b>"}, headers=AUTH)
        assert post.status_code == 200
        page.get_by_text("Paused by an operator.").wait_for()
        page.locator("#events", has_text="<b>lunch</b>").wait_for()
        assert "paused" in page.get_by_role("status").text_content()
        load.client.post("/admin/resume", json={}, headers=AUTH)
        page.get_by_text("Paused by an operator.").wait_for(state="detached")
        seen.quiet(load.url)
