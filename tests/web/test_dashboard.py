"""The dashboard in a real browser, against a real hub with traffic.

``HEADRACE_SCREENSHOTS=DIR`` keeps a picture of each page, light and dark. Those in the docs are made by
``tools/screenshots.py``, from a hub with the demo's traffic.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.hubprocess import HubProcess
from tests.web.browsing import browser, needs_browser

import headrace
from headrace.wire.fyrehose.stream import Push, serialize

PAGES = (
    *("overview", "stream", "topics", "services", "consumers", "subscriptions"),
    *("connections", "cluster", "pipeline", "sql", "settings"),
)
SCREENSHOTS = os.environ.get("HEADRACE_SCREENSHOTS")

pytestmark = needs_browser("the dashboard")
__all__ = ["browser"]

expect.set_options(timeout=20_000)

WINDOWS = {
    name: {
        "span": span,
        "start": "2026-01-31T12:00:00Z",
        "end": "2026-01-31T12:01:00Z",
        "messages": 1234 * span,
        "bytes": 98765 * span,
        "publishers": 12,
        "topics": [{"topic": "vehicle/tram-1", "messages": 40}, {"topic": "vehicle/bus-1", "messages": 30}],
        "attributes": [{"name": "vehicle", "value": "tram-1", "messages": 40}],
        "lag": {"p50": 0.25, "p90": 0.5, "p99": 0.75, "max": 1.5},
    }
    for name, span in {"second": 1, "minute": 60, "hour": 3600}.items()
}
"""What the job ``measure`` publishes; ``tests/spark/jobs`` hold that these are its names."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub with a little of everything in it, and messages that keep coming."""
    with HubProcess.start(tmp_path_factory.mktemp("dashboard"), "node.name=mill") as hub:
        with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
            for number in range(3):
                link.publish(f'{{"order": {number}}}'.encode(), topic=f"orders/{number}")
        with headrace.connect_sync(f"spp://{hub.doors['spp']}") as spp:
            for number in range(3):
                spp.publish({"speed": 60 + number}, topic=f"fleet/{number}")
            for name, window in WINDOWS.items():
                spp.publish(window, topic=f"measure/{name}")
        done = threading.Event()
        pushing = threading.Thread(target=_push, args=(hub.address("fyrehose"), done))
        pushing.start()
        yield hub
        done.set()
        pushing.join()


def _push(address: tuple[str, int], done: threading.Event) -> None:
    with socket.create_connection(address) as sock:
        number = 0
        while not done.wait(0.1):
            number += 1
            sock.sendall(
                serialize(Push(json.dumps({"vehicle": number % 7, "speed": 40 + number % 50}).encode()))
            )


@pytest.fixture
def page(browser: Browser, hub: HubProcess) -> Iterator[Page]:
    with _context(browser) as context:
        yield _opened(context, hub)


def _context(browser: Browser, scheme: str = "light", width: int = 1280) -> BrowserContext:
    return browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]


def _opened(context: BrowserContext, hub: HubProcess, where: str = "overview") -> Page:
    page = context.new_page()
    page.failures, page.asked = [], []  # type: ignore[attr-defined]
    page.on("request", lambda request: page.asked.append(request))  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: page.failures.append(str(error)))  # type: ignore[attr-defined]
    page.on(
        "console",
        lambda said: page.failures.append(said.text) if said.type == "error" else None,  # type: ignore[attr-defined]
    )
    page.on(
        "request",
        lambda request: (
            request.url.startswith(f"http://{hub.doors['http']}/") or page.failures.append(request.url)
        ),  # type: ignore[attr-defined]
    )
    page.goto(f"http://{hub.doors['http']}/#/{where}")
    expect(page.locator("#connection")).to_have_text("live")
    return page


def _drawn(page: Page, statuses: int = 1) -> None:
    """Wait until a page has shown so many of the hub's statuses, and all that it asked for meanwhile."""
    page.evaluate(
        """async (wanted) => {
            const { listen } = await import("/dashboard/store.js");
            await new Promise((done) => listen(() => (wanted -= 1) || done()));
        }""",
        statuses,
    )
    for request in page.asked:  # type: ignore[attr-defined]
        if request.resource_type != "eventsource" and (answer := request.response()):
            answer.finished()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_page_opens_without_a_complaint(
    browser: Browser, hub: HubProcess, name: str, scheme: str
) -> None:
    with _context(browser, scheme) as context:
        page = _opened(context, hub, name)
        expect(page.get_by_role("heading", level=1)).to_have_text(name, ignore_case=True)
        expect(page.locator(f"nav a[href='#/{name}']")).to_have_attribute("aria-current", "page")
        _drawn(page, statuses=2)
        assert page.failures == []  # type: ignore[attr-defined]
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(SCREENSHOTS) / f"{name}-{scheme}.png")


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, hub: HubProcess, name: str) -> None:
    with _context(browser, width=375) as context:
        page = _opened(context, hub, name)
        _drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("name", PAGES)
def test_what_can_be_pressed_or_filled_has_a_name(browser: Browser, hub: HubProcess, name: str) -> None:
    with _context(browser) as context:
        page = _opened(context, hub, name)
        _drawn(page)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, a, input, select, textarea, svg[role=img], img")]
                .filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length
                    || e.getAttribute("alt") !== null)).map((e) => e.outerHTML)"""
        )
        assert nameless == []


def test_the_overview_moves_by_itself(page: Page) -> None:
    head = page.locator(".fact", has_text="Head of the sequence").locator("dd")
    before = head.inner_text()
    expect(head).not_to_have_text(before)
    expect(page.locator(".legend li", has_text="fyrehose").first).to_be_visible()
    assert page.locator(".chart path").count() >= 1


def test_the_stream_is_live_and_a_message_opens(page: Page, hub: HubProcess) -> None:
    page.get_by_role("link", name="Stream").click()
    first = page.locator("tbody tr").first.locator("button.link")
    before = first.inner_text()
    expect(first).not_to_have_text(before)
    page.get_by_role("button", name="Pause").click()
    page.locator("tbody tr").first.locator("button.link").click()
    opened = page.get_by_label("Message", exact=True)
    expect(opened.locator("dl")).to_contain_text("fyrehose")
    expect(opened.locator("pre")).to_contain_text('"vehicle"')
    opened.get_by_role("tab", name="Hex").click()
    expect(opened.locator("pre")).to_contain_text("000000  7b 22 76 65")


def test_the_stream_filters_and_jumps(page: Page) -> None:
    page.get_by_role("link", name="Stream").click()
    page.get_by_label("Filter").get_by_label("Topic").fill("orders/*")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_label("Filter").get_by_label("Topic").fill("nothing/here")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".empty")).to_contain_text("No message passes this filter")
    page.get_by_label("Filter").get_by_label("Topic").fill("")
    page.get_by_label("Sequence number").fill("2")
    page.get_by_role("button", name="Go").click()
    expect(page.get_by_label("Message", exact=True)).to_contain_text("Message 2")
    page.get_by_label("Sequence number").fill("999999999")
    page.get_by_role("button", name="Go").click()
    expect(page.locator(".notice")).to_contain_text("There is no message 999,999,999 yet")


def test_an_answer_that_comes_late_does_not_undo_a_filter(browser: Browser, hub: HubProcess) -> None:
    with _context(browser) as context:
        page = context.new_page()
        held: list[Any] = []
        page.route(lambda url: url.endswith("/api/messages?count=100"), lambda route: held.append(route))
        page.goto(f"http://{hub.doors['http']}/#/stream")
        page.get_by_label("Filter").get_by_label("Topic").fill("orders/*")
        page.get_by_role("button", name="Filter").click()
        expect(page.locator("tbody tr")).to_have_count(3)
        with page.expect_response(lambda answer: answer.url.endswith("/api/messages?count=100")) as late:
            held[0].continue_()
        late.value.finished()
        page.evaluate("() => new Promise(requestAnimationFrame)")
        expect(page.locator("tbody tr")).to_have_count(3)
        assert page.evaluate("location.hash") == "#/stream?topic=orders%2F*"


def test_a_message_can_be_published(page: Page, hub: HubProcess) -> None:
    page.get_by_role("link", name="Stream").click()
    page.get_by_text("Publish a message").click()
    form = page.locator("details form")
    form.get_by_label("Topic").fill("from/page")
    form.get_by_label("Attributes").fill("city=Praha x=5")
    form.get_by_label("Payload").fill("žluťoučký <b>kůň</b>")
    form.get_by_role("button", name="Publish").click()
    expect(form.locator("output")).to_contain_text("It is message")
    page.get_by_label("Filter").get_by_label("Topic").fill("from/page")
    page.get_by_role("button", name="Filter").click()
    # Text is text, whatever it says.
    expect(page.locator("tbody tr").first).to_contain_text("<b>kůň</b>")


def test_a_service_is_shown_live_with_its_changes(page: Page, hub: HubProcess) -> None:
    page.get_by_role("link", name="Services").click()
    page.get_by_role("button", name="fleet/1").click()
    detail = page.get_by_label("Service", exact=True)
    expect(detail.locator("pre")).to_contain_text('"speed": 61')
    with headrace.connect_sync(f"spp://{hub.doors['spp']}") as spp:
        spp.publish({"speed": 99}, topic="fleet/1")
    expect(detail.locator("pre")).to_contain_text('"speed": 99')
    expect(detail.locator("tbody tr").first).to_contain_text("99")
    page.get_by_label("Find a service").fill("no such")
    expect(page.get_by_text("No service has that in its name")).to_be_visible()


def test_the_pipeline_shows_what_measure_counts(page: Page, hub: HubProcess) -> None:
    page.get_by_role("link", name="Pipeline").click()
    measured = page.get_by_label("Measured")
    expect(measured.locator("tbody tr")).to_have_count(3)
    with headrace.connect_sync(f"spp://{hub.doors['spp']}") as spp:
        # What is old news is no longer drawn.
        spp.publish({"messages": 74_041}, topic="measure/minute")
    expect(measured.locator("tbody tr").nth(1)).to_contain_text("74,041")
    expect(measured.locator("tbody tr").nth(1)).to_contain_text("vehicle/tram-1, vehicle/bus-1")
    expect(measured.locator(".legend li", has_text="p99")).to_contain_text("0.75")
    # The charts move by what comes.
    with headrace.connect_sync(f"spp://{hub.doors['spp']}") as spp:
        spp.publish({"lag": {"p50": 0.3, "p90": 0.5, "p99": 2.5, "max": 3.5}}, topic="measure/second")
        spp.publish({"messages": 90_000}, topic="measure/minute")
    expect(measured.locator(".legend li", has_text="p99")).to_contain_text("2.50")
    expect(measured.locator(".legend li", has_text="messages")).not_to_contain_text("messages 0")
    # A page that is opened later has a past.
    page.reload()
    expect(measured.locator(".legend li", has_text="p99")).to_contain_text("2.50")
    assert page.locator("section[aria-label=Measured] .chart path").first.get_attribute("d").count("L") >= 1


def test_colours_are_chosen_and_kept(page: Page) -> None:
    page.get_by_role("button", name="Colours").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.get_by_role("button", name="Colours").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_it_goes_by_keyboard(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Stream"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Stream")
    assert page.evaluate("document.activeElement.id") == "main"


def test_the_focus_stays_on_a_message_while_others_come(page: Page) -> None:
    page.get_by_role("link", name="Stream").click()
    row = page.locator("tbody tr").first.locator("button.link")
    row.focus()
    number = page.evaluate("document.activeElement.textContent")
    # Others have come before it.
    expect(page.locator("tbody tr button.link", has_text=number)).to_be_focused()
    expect(page.locator("tbody tr").first.locator("button.link")).not_to_have_text(number)
    expect(page.locator("tbody tr button.link", has_text=number)).to_be_focused()
    page.keyboard.press("Enter")
    opened = page.get_by_label("Message", exact=True)
    expect(opened.get_by_role("heading", name=f"Message {number}")).to_be_focused()
    opened.get_by_role("button", name="Close").press("Enter")
    expect(page.locator("tbody tr button.link", has_text=number)).to_be_focused()


def test_the_form_of_a_payload_is_chosen_by_arrows_and_stays(page: Page, hub: HubProcess) -> None:
    page.get_by_role("link", name="Services").click()
    page.get_by_role("button", name="fleet/2").click()
    detail = page.get_by_label("Service", exact=True)
    detail.get_by_role("tab", name="JSON").press("End")
    expect(detail.get_by_role("tab", name="Hex")).to_be_focused()
    expect(detail.locator("pre")).to_contain_text("000000  7b 22")
    with headrace.connect_sync(f"spp://{hub.doors['spp']}") as spp:
        spp.publish({"driver": "Ada"}, topic="fleet/2")
    expect(detail.locator("pre")).to_contain_text("Ada")
    expect(detail.get_by_role("tab", name="Hex")).to_have_attribute("aria-selected", "true")
    expect(detail.get_by_role("tab", name="Hex")).to_be_focused()


def test_what_does_not_change_can_be_selected(page: Page) -> None:
    page.evaluate("window.kept = document.querySelector('section[aria-label=Doors] code')")
    page.evaluate("getSelection().selectAllChildren(window.kept)")
    head = page.locator(".fact", has_text="Head of the sequence").locator("dd")
    before = head.inner_text()
    expect(head).not_to_have_text(before)
    assert page.evaluate("window.kept.isConnected && getSelection().toString() === window.kept.textContent")


def test_attributes_with_spaces(page: Page, hub: HubProcess) -> None:
    page.get_by_role("link", name="Stream").click()
    page.get_by_text("Publish a message").click()
    form = page.locator("details form")
    form.get_by_label("Attributes").fill('street="Na Hradbách" zip="11000" x=5')
    form.get_by_label("Payload").fill("here")
    form.get_by_role("button", name="Publish").click()
    form.locator("output a").click()
    opened = page.get_by_label("Message", exact=True)
    expect(opened).to_contain_text("3 attributes")
    expect(opened).to_contain_text('"Na Hradbách"')
    expect(opened).to_contain_text('"11000"')
    form = page.locator("details form")
    page.get_by_text("Publish a message").click()
    form.get_by_label("Attributes").fill('street="Na')
    form.get_by_label("Payload").fill("here")
    form.get_by_role("button", name="Publish").click()
    expect(form.locator("output")).to_contain_text("the quote does not end")


def test_subscriptions_tell_how_much_is_matched(page: Page, hub: HubProcess) -> None:
    address = f"sdk://{hub.doors['sdk']}"
    with headrace.connect_sync(address, client_id="ab" * 12) as client:
        client.subscribe(headrace.where(origin="fyrehose"))
        page.get_by_role("link", name="Subscriptions").click()
        expect(page.locator("tbody tr", has_text="ab" * 12)).to_contain_text('origin is "fyrehose"')
        expect(page.locator(".fact", has_text="A message goes to").locator("dd")).to_contain_text("1.00")
        rate = page.locator("tbody tr", has_text="ab" * 12).locator("td").nth(4)
        expect(rate).to_have_text(re.compile(r"^[1-9]"))
        page.get_by_label("Find a client").fill("cd")
        expect(page.get_by_text("No client has that in its id")).to_be_visible()
        page.get_by_label("Find a client").fill("")
        page.get_by_label("Attributes").fill("origin=fyrehose")
        page.get_by_role("button", name="Who would get this?").click()
        expect(page.get_by_text("1 would get it")).to_be_visible()
        page.get_by_label("Attributes").fill("origin=spp")
        page.get_by_role("button", name="Who would get this?").click()
        expect(page.get_by_text("Nobody would get it")).to_be_visible()


JOB = {"state": "running", "rows": 1, "rows_per_second": 12.5, "batch_seconds": 0.75, "behind": 42}


def test_the_pipeline_draws_each_job_and_says_what_verify_found(page: Page, hub: HubProcess) -> None:
    page.get_by_role("link", name="Pipeline").click()
    expect(page.get_by_text("No Spark job reports to this hub")).to_be_visible()
    expect(page.get_by_text("The job verify has not reported here yet")).to_be_visible()
    with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        facts = {
            "jobs": {"archive": JOB},
            "state": "running",
            "master": "local[2]",
            "ui": "http://127.0.0.1:4040",
        }
        link.report("pipeline", facts)
    expect(page.get_by_label("Jobs").locator("tbody tr")).to_contain_text("1 row in 0.75 s")
    expect(page.get_by_role("link", name="pages of its own")).to_have_attribute(
        "href", "http://127.0.0.1:4040"
    )
    for title, figure in (
        ("Rows a second", "12.5"),
        ("Seconds a micro-batch", "0.75"),
        ("Messages behind", "42"),
    ):
        chart = page.locator("figure", has_text=title)
        expect(chart.locator(".legend li", has_text="archive")).to_contain_text(figure)
    findings = page.get_by_label("Findings of verify")
    with headrace.connect_sync(f"spp://{hub.doors['spp']}") as spp:
        spp.publish({"findings": 0, "kinds": {}}, topic="verify")
        expect(findings).to_contain_text("Nothing is missing")
        newest = {"kind": "hole", "first": 2, "last": 4, "evidence": "1 is followed by 5", "server": "a:1"}
        spp.publish({"findings": 3, "kinds": {"hole": 3}, "newest": newest}, topic="verify")
    expect(findings.locator("tbody tr")).to_contain_text("messages that are not there")
    expect(findings).to_contain_text("The newest: hole, message 2 to 4 of a:1: 1 is followed by 5")


def _feigned(page: Page, status: dict[str, Any]) -> None:
    """Have the page believe that the hub's status is another."""
    page.route("**/api/events", lambda route: route.fulfill(
        content_type="text/event-stream", body=f"retry: 60000\nevent: status\ndata: {json.dumps(status)}\n\n"
    ))  # fmt: skip


def test_the_cluster_page(browser: Browser, hub: HubProcess) -> None:
    with _context(browser) as context:
        page = _opened(context, hub, "cluster")
        expect(page.get_by_label("Nodes")).to_contain_text("This hub is alone")
        with urlopen(f"http://{hub.doors['http']}/api/status", timeout=20) as answer:
            status = json.load(answer)
        page = context.new_page()
        nodes = [
            {"name": "mill", "host": "a:1", "mode": "WRK", "role": "primary", "head": 9, "age": 0.0},
            {"name": "weir", "host": "b:1", "mode": "DSC", "role": "backup", "head": 8, "age": 2.1},
            {"name": "c:1", "host": "c:1", "mode": "ERR", "role": "backup", "head": None, "age": None},
        ]
        cluster = {
            "name": "x",
            "view": 7,
            "status": "normal",
            "primary": "mill",
            "nodes": nodes,
            "problem": None,
        }
        _feigned(page, {**status, "cluster": cluster})
        page.goto(f"http://{hub.doors['http']}/#/cluster")
        expect(page.get_by_label("Nodes", exact=True)).to_contain_text("x: 1 of 3 nodes are working")
        rows = page.get_by_label("Nodes", exact=True).locator("tbody tr")
        expect(rows.nth(0)).to_contain_text("itself")
        expect(rows.nth(1)).to_contain_text("2 s ago")
        expect(rows.nth(2)).to_contain_text("silent")
        expect(rows.nth(2)).to_contain_text("not now")


def test_a_refusal_is_said_and_tried_again(browser: Browser, hub: HubProcess) -> None:
    with _context(browser) as context:
        page = context.new_page()
        refusing = '{"error": "auth.required is on"}'
        page.route(
            "**/api/history",
            lambda route: route.fulfill(status=503, content_type="application/json", body=refusing),
        )
        page.goto(f"http://{hub.doors['http']}/#/services")
        expect(page.locator("#lost")).to_contain_text("auth.required is on")
        page.unroute("**/api/history")
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#lost")).to_be_empty()


CONTRAST = """() => {
    const numbers = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
    const linear = (part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    const ground = (element) => {
        const colour = numbers(getComputedStyle(element).backgroundColor);
        return colour.length < 4 || colour[3] > 0 ? colour : ground(element.parentElement);
    };
    const spoken = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    return [...document.querySelectorAll("body *")]
        .filter((each) => spoken(each) && each.checkVisibility() && !each.closest("noscript, .unseen, .fresh, option"))
        .map((each) => {
            const { fill, color } = getComputedStyle(each);
            const own = light(numbers(each instanceof SVGElement ? fill : color));
            const behind = light(ground(each));
            const ratio = (Math.max(own, behind) + 0.05) / (Math.min(own, behind) + 0.05);
            return [ratio, each.textContent.trim().slice(0, 40)];
        }).filter(([ratio]) => ratio < 4.5);
}"""
"""Text whose contrast with what is behind it is below 4.5, the least that WCAG 2 (AA) asks for."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Browser, hub: HubProcess, scheme: str) -> None:
    with _context(browser, scheme) as context:
        page = _opened(context, hub)
        for name in PAGES:
            page.goto(f"http://{hub.doors['http']}/#/{name}")
            expect(page.get_by_role("heading", level=1)).to_have_text(name, ignore_case=True)
            expect(page.locator("main .sheet").first).to_be_visible()
            assert page.evaluate(CONTRAST) == []


def test_a_hub_that_goes_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    with HubProcess.start(tmp_path) as hub, _context(browser) as context:
        page = _opened(context, hub)
        # An empty hub says what to do.
        expect(page.get_by_label("Begin")).to_contain_text("headrace pub 'hello, world'")
        page.get_by_role("link", name="Cluster").click()
        hub.kill9()
        expect(page.locator("#connection")).to_have_text("reconnecting")
        expect(page.locator(".notice")).to_contain_text("does not answer")
        page.get_by_role("link", name="Stream").click()
        expect(page.locator(".notice")).to_have_count(1)
        hub.restart()
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator(".notice")).to_have_count(0)
        # What was opened meanwhile is live as well.
        expect(page.get_by_text("No messages yet")).to_be_visible()
        with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
            link.publish(b"back again")
        expect(page.locator("tbody tr")).to_contain_text("back again")


def test_a_service_that_does_not_exist(browser: Browser, hub: HubProcess) -> None:
    with _context(browser) as context:
        page = context.new_page()
        page.goto(f"http://{hub.doors['http']}/#/services?id=no/such")
        expect(page.get_by_label("Service", exact=True)).to_contain_text("there is no service 'no/such'")
        with headrace.connect_sync(f"spp://{hub.doors['spp']}") as spp:
            spp.publish({"now": "there"}, topic="no/such")
        expect(page.get_by_label("Service", exact=True)).to_contain_text('"now": "there"')


def test_a_consumer_is_moved_and_its_dead_letter_published_again(page: Page, hub: HubProcess) -> None:
    with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        seq = link.publish(b"cannot be handled", topic="bills/1").first
        with link.consumer("billing", topic="bills/*", from_seq=seq, max_tries=1) as billing:
            billing.nack(next(billing))
            page.goto(f"http://{hub.doors['http']}/#/consumers?name=billing")
            sheet = page.get_by_label("Consumer", exact=True)
            expect(sheet.get_by_role("heading", name="billing")).to_be_visible()
            sheet.get_by_role("button", name="Publish again").click()
            expect(sheet).to_contain_text("Published again, as message")
            again = next(billing)
            assert (again.topic, again.payload) == ("bills/1", b"cannot be handled")
            billing.ack(again)
        sheet.get_by_label("Continue with").fill("earliest")
        sheet.get_by_role("button", name="Move it there").click()
        expect(sheet).to_contain_text("billing continues there.")
        expect(sheet).to_contain_text("Done up to0")
        page.on("dialog", lambda dialog: dialog.accept())
        sheet.get_by_role("button", name="Remove it").click()
        expect(sheet).to_contain_text("billing is removed.")
        assert "billing" not in {each["consumer"] for each in link.consumers()}


def test_a_connection_is_closed(page: Page, hub: HubProcess) -> None:
    page.goto(f"http://{hub.doors['http']}/#/connections")
    with socket.create_connection(hub.address("spp")) as peer:
        where = "{}:{}".format(*peer.getsockname())
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name=f"Close the connection of {where}").click()
        expect(page.locator("main")).to_contain_text(f"The connection of {where} is closed.")
        peer.settimeout(20)
        while peer.recv(4096):
            pass


def test_settings_are_found_and_say_where_they_came_from(page: Page, hub: HubProcess) -> None:
    page.goto(f"http://{hub.doors['http']}/#/settings")
    page.get_by_label("Find a setting").fill("node.name")
    row = page.get_by_role("row", name="node.name")
    expect(row).to_contain_text("mill")
    expect(row).to_contain_text("--set")
    page.get_by_label("Find a setting").fill("fsync")
    page.get_by_label("Only what is not the default").check()
    expect(page.locator("main")).to_contain_text("No setting has that.")


def test_the_stream_finds_text_and_attributes_and_gives_a_message_an_address(
    page: Page, hub: HubProcess
) -> None:
    with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        seq = link.publish(b"a needle in hay", topic="barn", attributes={"side": "north"}).first
    page.goto(f"http://{hub.doors['http']}/#/stream")
    form = page.get_by_label("Filter")
    form.get_by_label("Text").fill("NEEDLE")
    form.get_by_label("Attributes").fill("side=north")
    form.get_by_role("button", name="Filter").click()
    messages = page.get_by_label("Messages")
    expect(messages.get_by_role("row")).to_have_count(2)
    messages.get_by_role("button", name=f"{seq:,}").click()
    expect(page).to_have_url(re.compile(f"#/stream\\?seq={seq}$"))
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Message", exact=True)).to_be_hidden()
    form.get_by_label("Attributes").fill("side north")
    form.get_by_role("button", name="Filter").click()
    expect(page.locator("main")).to_contain_text("expected name=value")
    jump = page.get_by_label("Go to")
    form.get_by_label("Attributes").fill("")
    jump.get_by_label("Sequence number").fill("999999999")
    jump.get_by_role("button", name="Go").click()
    expect(page.locator("main")).to_contain_text("There is no message 999,999,999 yet: the newest is")


def test_attributes_may_have_commas_between_them_and_predicates_are_words(
    page: Page, hub: HubProcess
) -> None:
    with headrace.connect_sync(f"sdk://{hub.doors['sdk']}") as client:
        client.subscribe(headrace.where(city="Brno", kind=headrace.not_(["a", 7]), x=headrace.at_least(5)))
        page.goto(f"http://{hub.doors['http']}/#/subscriptions")
        row = page.get_by_role("row", name=client.client_id)
        expect(row).to_contain_text('city is "Brno"')
        expect(row).to_contain_text('kind is not "a" or 7')
        expect(row).to_contain_text("x ≥ 5")
        page.get_by_label("Attributes").fill("city=Brno, x=5.5")
        page.get_by_role("button", name="Who would get this?").click()
        expect(page.locator("main")).to_contain_text("1 would get it")
        page.get_by_label("Attributes").fill("city=Brno,x=5.5")
        page.get_by_role("button", name="Who would get this?").click()
        expect(page.locator("main")).to_contain_text("put a blank between attributes")
        for text in ("city=Brno|Praha", "x=0..10", "x>=5", "x=1|y=2"):
            page.get_by_label("Attributes").fill(text)
            page.get_by_role("button", name="Who would get this?").click()
            expect(page.locator("main")).to_contain_text(f"{text}: ")


def test_a_query_is_asked_charted_and_remembered(page: Page) -> None:
    page.goto(page.url.partition("#")[0] + "#/sql")
    box = page.get_by_label("Query", exact=True).locator("textarea")
    box.fill("select topic, count(*) as n from messages where topic like 'orders/%' group by 1 order by 1")
    box.press("Control+Enter")
    expect(page.get_by_role("region", name=re.compile("3 rows, exact up to message"))).to_be_visible()
    expect(page.get_by_role("img", name="n by topic")).to_be_visible()
    expect(page.locator("tbody tr").nth(1)).to_contain_text("orders/1")
    box.fill("select nothing from nowhere")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("nowhere")
    page.failures.clear()  # type: ignore[attr-defined] -- the browser tells of each answer that is an error
    page.reload()
    expect(box).to_have_value(re.compile("^select topic"))
    expect(page.get_by_label("History").locator("option")).to_have_count(2)
