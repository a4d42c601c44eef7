"""Reports in a real browser: drawn, answering to pointer and keyboard, on a telephone, in the dark, on paper."""

from __future__ import annotations

import pytest

import uldp
from uldp.reproductions.run import reproduce

pytestmark = pytest.mark.slow  # `make test-browser`
SETTINGS = {"data": {"dataset": "breast-cancer", "users": 20}, "privacy": {"epsilon": 4.0}}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """A run's page, its holder's page, a comparison, and a reproduction."""
    folder = tmp_path_factory.mktemp("reports")
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uldp.runs.spending._RUNS", {})  # nobody else's totals count these runs
        for clip in (1.0, 0.5):
            method = {"name": "uldp-avg-w", "rounds": 8, "clip": clip}
            experiment = uldp.Experiment.from_tree({**SETTINGS, "method": method, "run": {"threads": 1}})
            results.append(uldp.train(experiment, directory=folder / f"run-{clip:g}", progress=False))
    run = uldp.report(folder / "run-1")
    holder = uldp.report(folder / "run-1", holder=True)
    figure = reproduce("subject-level-epsilon", folder).folder / "page.html"
    comparison = uldp.report(*results, path=folder / "all.html")
    return {"run": run, "holder": holder, "comparison": comparison, "reproduction": figure}


every_page = pytest.mark.parametrize("kind", ["run", "holder", "comparison", "reproduction"])


def background(page, selector="body"):
    return page.eval_on_selector(selector, "one => getComputedStyle(one).backgroundColor")


@every_page
def test_a_page_draws_its_charts_without_complaints_or_requests(reports, open_page, kind):
    tab = open_page(reports[kind])
    charts = tab.page.query_selector_all("figure.chart svg")
    assert len(charts) >= (3 if kind == "reproduction" else 5)
    for chart in charts:
        box = chart.bounding_box()
        assert box["width"] > 250 and box["height"] > 100
    lines = tab.page.eval_on_selector_all("polyline.line", "all => all.map(one => one.getTotalLength())")
    assert len(lines) >= 3 and all(length > 100 for length in lines)
    assert tab.complaints == []
    assert all(url.startswith(("file:", "data:")) for url in tab.requests) and len(tab.requests) <= 2


def test_the_pointer_is_told_the_values_of_a_round(reports, open_page):
    page = open_page(reports["run"]).page
    chart = page.query_selector("[data-chart] svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert not page.is_visible("#tip")
    page.mouse.move(box["x"] + box["width"] - 15, box["y"] + 60)
    told = page.inner_text("#tip")
    assert page.is_visible("#tip") and told.splitlines()[0] == "round 8"
    for name in ("Accuracy", "Loss", "Epsilon spent 4"):
        assert name in told
    assert len(page.query_selector_all("[data-chart].active")) == len(page.query_selector_all("[data-chart]"))
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 60)
    assert page.inner_text("#tip").splitlines()[0] in ("round 2", "round 3")
    page.mouse.move(1, 1)
    assert not page.is_visible("#tip")


def test_the_pointer_is_told_the_values_of_a_figure(reports, open_page):
    page = open_page(reports["reproduction"]).page
    chart = page.query_selector("[data-chart] svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 15, box["y"] + 60)
    assert page.inner_text("#tip").splitlines() == ["items 100", "a subject 128"]
    page.focus("[data-chart]")
    page.keyboard.press("Home")
    assert page.inner_text("#tip").startswith("items 1\n")


def test_the_keyboard_reaches_every_round_and_every_point(reports, open_page):
    page = open_page(reports["run"]).page
    page.focus("[data-chart]")
    assert page.inner_text("#tip").startswith("round 8")
    page.keyboard.press("Home")
    assert page.inner_text("#tip").startswith("round 1")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#tip").startswith("round 2")
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")
    page = open_page(reports["comparison"]).page
    points = page.query_selector_all("[data-tip]")
    assert len(points) == 2
    for point in points:
        point.focus()
        assert page.is_visible("#tip") and "epsilon" in page.inner_text("#tip")
    points[0].hover()
    assert page.inner_text("#tip") == points[0].get_attribute("aria-label")


@every_page
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_a_telephone(reports, open_page, kind, dark):
    page = open_page(reports[kind], width=390, height=844, dark=dark).page
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = page.evaluate(
        """[...document.querySelectorAll('main *')]
           .filter(one => !one.closest('.wide, svg') && one.getBoundingClientRect().right > 391)
           .map(one => one.tagName + '.' + one.className)"""
    )
    assert wide == []


LUMINANCE = """
const rgb = text => text.match(/[\\d.]+/g).map(Number);
const light = text => {
  const [r, g, b] = rgb(text).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const ground = one => {
  for (; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (rgb(colour).length === 3 || rgb(colour)[3] === 1) return colour;
  }
  return 'rgb(255, 255, 255)';
};
"""
CONTRASTS = (
    "() => {"
    + LUMINANCE
    + """
return [...document.querySelectorAll('main *, footer *')]
  .filter(one => [...one.childNodes].some(part => part.nodeType === 3 && part.textContent.trim()))
  .map(one => {
    const style = getComputedStyle(one), svg = one.closest('svg');
    const pair = [light(svg ? style.fill : style.color), light(ground(svg ? svg.parentElement : one))];
    return [(Math.max(...pair) + .05) / (Math.min(...pair) + .05), one.tagName, one.textContent.slice(0, 40)];
  })
  .filter(([ratio]) => ratio < 4.5);
}"""
)


@every_page
def test_the_theme_follows_the_system_and_text_has_contrast_in_both(reports, open_page, kind):
    grounds = []
    for dark in (False, True):
        page = open_page(reports[kind], dark=dark).page
        grounds.append(background(page))
        page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
        assert page.evaluate(CONTRASTS) == []
    assert grounds == ["rgb(245, 246, 248)", "rgb(14, 19, 24)"]


@every_page
def test_on_paper_all_is_unfolded_on_white(reports, open_page, kind, tmp_path):
    page = open_page(reports[kind], dark=True).page
    page.emulate_media(media="print", color_scheme="dark")
    assert background(page) == "rgb(255, 255, 255)"
    assert not page.is_visible("#tip")
    hidden = page.eval_on_selector_all(
        "details > :not(summary)", "all => all.filter(one => !one.getBoundingClientRect().height).length"
    )
    assert hidden == 0
    page.emulate_media(media="screen")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.eval_on_selector_all("details", "all => all.every(one => one.open)")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert not page.eval_on_selector_all("details", "all => all.some(one => one.open)")
    assert page.pdf(path=tmp_path / "page.pdf")[:4] == b"%PDF"


@every_page
def test_whoever_does_not_see_or_runs_no_script_is_told_the_same(reports, open_page, kind):
    page = open_page(reports[kind]).page
    assert page.eval_on_selector_all("table", "all => all.every(one => one.caption && one.caption.textContent.trim())")
    assert page.eval_on_selector_all("th", "all => all.every(one => one.scope)")
    figures = page.eval_on_selector_all("figure", "all => all.map(one => one.getAttribute('aria-label'))")
    assert figures and all(len(text) > 40 for text in figures)
    assert page.eval_on_selector_all("section", "all => all.every(one => one.getAttribute('aria-labelledby'))")
    quiet = open_page(reports[kind], javascript=False).page
    told = ".adversaries, .comparison, section[aria-labelledby=numbers] table"
    assert quiet.is_visible("polyline.line") and quiet.is_visible(told)
