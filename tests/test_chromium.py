"""Every kind of page in a real browser: what it asks for, how it reads, and how it fits, prints and tabs.

Needs a Chromium; without one these tests are skipped and say so.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest
from builders import HOSTILE, Page, fail, game, golden, keep, measure
from chromium import Chromium, program

from leakscope.core import files
from leakscope.report import comparison, overview
from leakscope.report.page import write
from leakscope.results.compare import read
from leakscope.results.result import FORMAT

RUNS = {  # of every kind a real tiny cell, and those of the first format: several seeds, cells and parts
    "games": lambda: [measure("game"), measure("share"), *golden("inference"), fail(game("race"))],
    "audits": lambda: [measure("canary"), measure("members"), *golden("mechanism"), *golden("membership")],
    "layers": lambda: [measure("layers"), *golden("layers")],
    "guards": lambda: [measure("guard"), *golden("guards")],
    "hostile": lambda: [game(HOSTILE, id=HOSTILE, defense={"name": HOSTILE}), fail(game(HOSTILE), HOSTILE)],
}
PAGES = [*RUNS, "comparison", "summary"]
PRINTED = {"A4": 718, "Letter": 740}  # CSS pixels between the margins that Chromium prints with
WIDER = "html { font-size: 16px !important } * { font-family: monospace !important; letter-spacing: %sem !important; }"
FONTS = {"own": "", "monospace": WIDER % 0, "spaced": WIDER % 0.12}

pytestmark = pytest.mark.skipif(program() is None, reason="no Chromium is installed here")

CONTRAST = """(() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const c = channels(getComputedStyle(node).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility({visibilityProperty: true}) || node.closest("title, desc, script")) continue;
    const style = getComputedStyle(node), text = channels(node.closest("svg") ? style.fill : style.color);
    const [high, low] = [light(text), light(behind(node))].sort((a, b) => b - a);
    found.push([(high + 0.05) / (low + 0.05), walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
})()"""
REACHABLE = "a[href], button, summary, input, select, textarea, [tabindex]"
LOOK = """(node) => [node, ...node.querySelectorAll("*")].map((one) => {
  const s = getComputedStyle(one);
  return [s.outlineStyle, s.outlineWidth, s.stroke, s.strokeWidth, s.visibility].join();
}).join(";")"""
WIDE = """[...document.querySelectorAll("table, svg, figure, p, li, pre, img")].filter((node) =>
  node.checkVisibility() && node.getBoundingClientRect().right > document.documentElement.clientWidth + 1
  && !node.closest("svg *") %s).map((node) => node.outerHTML.slice(0, 120))"""

BROKEN = """[...document.querySelectorAll("td")].flatMap((cell) => {
  const found = [], walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) for (const number of walker.currentNode.data.matchAll(/(?<![\\w=(])[−\\d](?:[\\d.,]*\\d)?%?/g)) {
    const range = document.createRange();
    range.setStart(walker.currentNode, number.index);
    range.setEnd(walker.currentNode, number.index + number[0].length);
    if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) found.push(number[0]);
  }
  return found;
})"""  # numbers that go on in the next line, where they read as two
LOW = """[...document.querySelectorAll(".wide")].filter((n) => n.scrollHeight > n.clientHeight + 1)
  .map((n) => n.textContent.slice(0, 80))"""  # boxes that hide the end of what is in them
SCROLLED = """[...document.querySelectorAll(".wide:has(> .stack)")].filter((n) => n.scrollWidth > n.clientWidth)
  .map((n) => n.textContent.slice(0, 80))"""  # tables that are to stand one cell below the other on a phone


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Every page by its name, on disk."""
    root = tmp_path_factory.mktemp("pages")
    for name, make in RUNS.items():
        keep(root / name, [one.model_copy(update={"format": FORMAT}) for one in make()], name=name)
    found = {name: write(root / name) for name in RUNS}
    pruned = keep(root / "pruned", [game("race", rate=0.7, defense={"name": "Sign"}), measure("game")])
    files.write(root / "comparison.html", comparison.render(read(root / "games", pruned)))
    overview.write([*(root / name for name in RUNS), pruned, root / "no such folder"], root / "summary.html")
    return found | {name: root / f"{name}.html" for name in ("comparison", "summary")}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(program(), tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def tabs(browser, pages):
    """Every page in a tab, loaded once and looked at in many ways."""
    return {name: browser.page(file) for name, file in pages.items()}


@pytest.fixture(params=PAGES)
def name(request):
    return request.param


@pytest.fixture
def page(tabs, name):
    """A page as a window of 1280 pixels shows it, all its details closed again."""
    tab = tabs[name]
    tab.call("Page.bringToFront")
    tab.view()
    yield tab
    tab.run("document.querySelectorAll('details').forEach((one) => { one.open = false })")


def unfolded(page, **view):
    """The page in another view, all details open."""
    page.view(**view)
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    return page


def test_a_page_asks_for_itself_alone_and_says_nothing_on_the_console(page, pages, name):
    assert page.requests == [pages[name].as_uri()]
    assert page.messages == []
    assert page.run("document.title") != ""


def test_a_request_and_a_message_would_be_seen(browser, tmp_path):
    """The check itself: it fails on a page that does what it forbids."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><title>t</title><p>x<img src='other.png'><script>console.log(1); x.y</script>"
    )
    with browser.page(bad) as page:
        assert [address.rpartition("/")[2] for address in page.requests] == ["bad.html", "other.png"]
        assert len(page.messages) >= 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_a_contrast_of_at_least_four_and_a_half(page, scheme):
    found = unfolded(page, scheme=scheme).run(CONTRAST)
    assert len(found) > 5
    assert found[0][0] >= 4.5, found[:5]
    dark = page.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark == (scheme == "dark")


def test_every_control_is_reached_by_tab_and_shows_that_it_has_the_focus(page):
    page.run(
        f"window.all = [...document.querySelectorAll('{REACHABLE}')].filter((n) => n.checkVisibility()); 0"
    )
    page.run(f"document.activeElement.blur(); window.look = {LOOK}; window.before = all.map(look); 0")
    seen, unseen = [], []
    for _ in range(page.run("all.length")):
        page.press("Tab")
        i, words, changed = page.run(
            "(() => { const n = document.activeElement, i = all.indexOf(n);"
            "return [i, n.outerHTML.slice(0, 80), i >= 0 && look(n) !== before[i]]; })()"
        )
        seen.append(i)
        unseen += [] if changed else [words]
    assert unseen == []
    assert seen == list(range(len(seen)))


@pytest.mark.parametrize(("width", "zoom"), [(320, 1), (1280, 2), (1280, 4)])
def test_nothing_leaves_the_viewport_on_a_phone_or_when_zoomed(page, width, zoom):
    """At 200% a window of 1280 pixels is 640 wide, at 400% 320 (WCAG 1.4.10); wide tables have their own box."""
    unfolded(page, width=width, zoom=zoom)
    over, room = page.run("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert room == width / zoom
    assert over <= room
    assert page.run(WIDE % "&& !node.closest('.wide')") == []
    assert page.run(SCROLLED) == [] or room > 320


def test_two_runs_stand_side_by_side_on_a_phone(tabs):
    tabs["comparison"].view(width=320)
    boxes = tabs["comparison"].run(
        "[...document.querySelector('.sides tbody tr').querySelectorAll('td')].slice(0, 3)"
        ".map((n) => n.getBoundingClientRect()).map((b) => [b.left, b.right, b.top])"
    )
    assert len({top for _, _, top in boxes}) == 1
    assert 0 <= boxes[0][0] < boxes[0][1] <= boxes[1][0] < boxes[1][1] <= boxes[2][0] < boxes[2][1] <= 320


@pytest.mark.parametrize("paper", PRINTED)
@pytest.mark.parametrize("font", FONTS)
def test_no_table_is_cut_off_on_paper(page, font, paper):
    """Whatever fonts are installed: the page is tried with wider ones than any of them."""
    unfolded(page, width=PRINTED[paper], media="print")
    page.run(f"document.head.insertAdjacentHTML('beforeend', '<style id=font>{FONTS[font]}</style>'); 0")
    found, broken = page.run(WIDE % "") + page.run(LOW), page.run(BROKEN)
    page.run("document.getElementById('font').remove()")
    assert found == []
    assert broken == [] or font == "spaced"


def printed(pdf):
    """The text of a PDF without its spaces, for lines are broken anew on paper."""
    found = subprocess.run(
        ["pdftotext", "-raw", "-", "-"], input=pdf, capture_output=True, check=True, timeout=60
    )
    return "".join(found.stdout.decode().split())


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no pdftotext (poppler) is installed here")
def test_a_printed_page_holds_its_headline_and_every_word_of_its_tables_closed_ones_too(page):
    """Tables are looked for word by word: a PDF does not keep which line belongs to which cell."""
    pdf = page.pdf()
    assert pdf.startswith(b"%PDF")
    text = printed(pdf)
    headline = page.run("document.querySelector('.verdicts p, h2').textContent")
    assert "".join(headline.split()) in text
    words = page.run(
        "[...document.querySelectorAll('th, td, pre')].flatMap((n) => n.innerText.split(/\\s+/))"
    )
    assert {word for word in words if word not in text} == set()


def test_every_drawing_has_a_title_or_is_decoration(page):
    bare = page.run(
        "[...document.querySelectorAll('svg')].filter((n) => n.getAttribute('aria-hidden') !== 'true'"
        "&& !(n.querySelector(':scope > title') || {textContent: ''}).textContent.trim()).length"
    )
    assert bare == 0


def test_a_summary_is_sorted_by_the_keyboard_and_whole_without_script(browser, pages):
    column = "[...document.querySelectorAll('.sortable tbody tr')].map((row) => row.cells[3].dataset.sort)"
    with browser.page(pages["summary"]) as page:
        page.run("document.querySelectorAll('.sortable thead button')[3].focus()")
        for down in (False, True):
            page.press("Enter")
            found = page.run(column)
            numbers = [float(value) for value in found if value]
            assert numbers == sorted(numbers, reverse=down)
            assert found[len(numbers) :] == [""] * (len(found) - len(numbers))
        heads = page.run("[...document.querySelectorAll('thead th')].map((n) => n.getAttribute('aria-sort'))")
        assert heads == [None, None, None, "descending", *[None] * (len(heads) - 4)]
        links = page.run("[...document.querySelectorAll('tbody a')].map((a) => a.href)")
        assert pages["games"].as_uri() in links
    static = Page(pages["summary"].read_text(encoding="utf-8").partition("<script>")[0] + "</body></html>")
    assert len([tag for tag, _ in static.seen if tag == "tr"]) == 1 + len(RUNS) + 1
    assert "button" not in {tag for tag, _ in static.seen}
