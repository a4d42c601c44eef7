"""``uldp reproduce``: every figure's file is sound, verdicts follow from numbers, what was computed is kept."""

import json
import math
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.errors import ConfigError
from uldp.reproductions import figure as figures
from uldp.reproductions import index
from uldp.reproductions.figure import ClaimSide, PaperClaim
from uldp.reproductions.page import page
from uldp.reproductions.plots import plots_of
from uldp.reproductions.rows import MeasuredRow, PanelRows
from uldp.reproductions.run import KINDS, reproduce
from uldp.reproductions.training import ReproductionPlace, Training, variants_of
from uldp.reproductions.verdicts import UNKNOWN, judge

runner = CliRunner()
NAMES = figures.names()
DOCS = Path(__file__).parents[2] / "docs"


def test_the_figures_of_the_papers_are_there():
    assert [
        *(f"uldp-fl-{number}" for number in (2, 4, 5, 6, 7, 8, 9, 10, 11)),
        *(f"srr-fl-{number}" for number in (3, 4, 5, 6, 7, 8)),
        *("srr-fl-latency", "srr-fl-table-1", "subject-level-epsilon", "subject-level-utility"),
    ] == NAMES
    shown = runner.invoke(app, ["reproduce", "--list", "--json"])
    assert [one["figure"] for one in json.loads(shown.stdout)] == NAMES


@pytest.mark.parametrize("mode", figures.MODES)
@pytest.mark.parametrize("name", NAMES)
def test_every_panel_has_settings_that_exist(name, mode, tmp_path):
    for panel in figures.load(name).panels:
        settings = msgspec.convert(panel.of(mode), type=KINDS[panel.kind][0])
        if isinstance(settings, Training):
            real = variants_of(settings, settings.dataset, ReproductionPlace(tmp_path))
            stand_in = variants_of(settings, "breast-cancer", ReproductionPlace(tmp_path))
            assert [one.name for one in real] == [one.name for one in stand_in]


def row(name, score, deviation=0.0, epsilon=1.0):
    metrics = {"accuracy": score, "epsilon": epsilon}
    return MeasuredRow(name=name, metrics=metrics, deviations={"accuracy": deviation} if deviation else {})


def claim(relation="above", right=None, **more):
    return PaperClaim(text="t", left=ClaimSide(row="a"), relation=relation, right=right or ClaimSide(row="b"), **more)


def panels(*scores, deviation=0.0):
    return [PanelRows(name=str(at), rows=[row("a", a, deviation), row("b", b)]) for at, (a, b) in enumerate(scores)]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (panels((0.9, 0.8), (0.7, 0.6)), "holds"),
        (panels((0.9, 0.8), (0.6, 0.7)), "holds with a caveat"),
        (panels((0.7, 0.8), (0.6, 0.7)), "does not hold"),
        (panels((0.9, 0.8), deviation=0.2), "holds with a caveat"),
        ([PanelRows(name="x", rows=[row("a", 1.0)])], "not measured"),
    ],
)
def test_a_verdict_follows_from_the_numbers(found, verdict):
    assert judge(claim(), found).verdict == verdict


def test_a_verdict_from_one_seed_says_so_and_epsilon_needs_none():
    curve = {"accuracy": [0.5, 0.9]}
    both = (row("a", 0.9, epsilon=2.0), row("b", 0.8, epsilon=1.0))
    rows = [msgspec.structs.replace(one, curves=curve) for one in both]
    found = judge(claim(), [PanelRows(name="x", rows=rows)])
    assert (found.verdict, found.reason) == ("holds", "one seed")
    sides = {"left": ClaimSide(row="a", metric="epsilon"), "right": ClaimSide(row="b", metric="epsilon")}
    assert judge(PaperClaim(text="t", relation="above", **sides), [PanelRows(name="x", rows=rows)]).reason == ""


def test_the_score_is_a_metric_of_the_last_round():
    metrics = {
        "loss": 0.4,
        "c_index": 0.7,
        "epsilon": 2.0,
        "server_epsilon": 3.0,
        "mean_c_index": 0.6,
        "mean_loss": 0.5,
    }
    one = MeasuredRow(name="a", metrics=metrics, deviations={"c_index": 0.1})
    assert (one.score, one.value("score"), one.value("mean_score")) == ("c_index", 0.7, 0.6)
    assert (one.deviation("score"), one.deviation("mean_score")) == (0.1, 0.0)


def test_factors_margins_numbers_and_infinite_epsilons():
    found = panels((0.9, 0.5))
    assert judge(claim(times=2.0), found).verdict == "does not hold"
    assert judge(claim(by=0.3), found).verdict == "holds"
    assert judge(claim("close", 0.95, by=0.1), found).verdict == "holds"
    assert judge(claim("below", 0.95), found).verdict == "holds"
    endless = [PanelRows(name="x", rows=[row("a", 0.5, epsilon=None), row("b", 0.5)])]
    sides = {"left": ClaimSide(row="a", metric="epsilon"), "right": ClaimSide(row="b", metric="epsilon")}
    verdict = judge(PaperClaim(text="t", relation="above", **sides), endless)
    assert (verdict.verdict, verdict.decisions[0].left) == ("holds", None)
    assert endless[0].rows[0].value("epsilon") == math.inf


def test_a_figure_is_computed_once_and_its_page_has_both_numbers(tmp_path, monkeypatch):
    command = ["reproduce", "subject-level-epsilon", "--out", str(tmp_path / "r"), "--json"]
    first = runner.invoke(app, command)
    assert first.exit_code == 0, first.output
    document = json.loads(first.stdout)
    folder = tmp_path / "r" / "subject-level-epsilon" / "quick"
    assert {file.name for file in folder.iterdir()} >= {
        "results.json",
        "page.md",
        "page.html",
        "figure.png",
        "figure.svg",
    }
    assert json.loads((folder / "results.json").read_text()) == document
    assert "does not hold" in (folder / "page.md").read_text()
    short = json.loads((folder / "summary.json").read_text())
    assert [claim["verdict"] for claim in short["claims"]] == [claim["verdict"] for claim in document["claims"]]
    assert page(short).count("|") == page(document).count("|")
    kind = KINDS["subject-epsilons"]
    monkeypatch.setitem(KINDS, "subject-epsilons", (kind[0], None))  # nothing is computed again
    again = json.loads(runner.invoke(app, command).stdout)
    assert again["panels"] == document["panels"]


def test_a_missing_data_set_has_a_stand_in_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("ULDP_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tree = {
        "title": "T",
        "paper": "P",
        "about": "A",
        "panels": [
            {
                "name": "one",
                "kind": "training",
                "settings": {
                    "dataset": "heart-disease",
                    "methods": ["fedavg", "uldp-group-2", "uldp-avg"],
                    "settings": {"method.rounds": 1, "method.local_epochs": 1, "method.local_steps": 2},
                },
            }
        ],
        "claims": [{"text": "C", "left": {"row": "fedavg"}, "relation": "above", "right": 2.0}],
    }
    monkeypatch.setattr("uldp.reproductions.run.load", lambda name: figures.read(tree, name))
    found = reproduce("mine", tmp_path / "r", repeats=2)
    (shown,) = found.document["panels"]
    assert all({"accuracy", "mean_accuracy", "loss", "mean_loss"} <= set(one["deviations"]) for one in shown["rows"])
    assert found.document["stand_in"] and found.verdicts == {"does not hold": 1}
    assert "STAND-IN" in page(found.document) and "breast-cancer" in page(found.document)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_quick_settings_decide_every_claim_and_draw_every_panel_even_with_stand_ins(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ULDP_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = reproduce(name, tmp_path / "r")
    assert [claim["text"] for claim in found.document["claims"] if claim["verdict"] == UNKNOWN] == []
    assert all(any(plot.lines for plot in row) for row in plots_of(found.document))
    assert (found.folder / "page.html").stat().st_size < 2_000_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["uldp-fl-3"], "unknown figure 'uldp-fl-3'. Known: uldp-fl-2, uldp-fl-4"),
        ([], "give one of FIGURE, --all and --list"),
        (["uldp-fl-2", "--all"], "give one of FIGURE, --all and --list"),
        (["uldp-fl-2", "--quick", "--full"], "give one of --quick, --medium and --full"),
        (["uldp-fl-2", "--repeats", "0"], "--repeats"),
    ],
)
def test_bad_input(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["reproduce", *arguments])
    assert result.exit_code == 2
    assert says in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_page_of_all_reproductions_is_what_their_summaries_say():
    summaries = index.read(DOCS)
    assert (DOCS / index.PAGE).read_text() == index.index(summaries)
    assert {one["figure"] for one in summaries if one["mode"] == "quick"} <= set(NAMES)
    for one in summaries:
        assert not one["stand_in"], one["command"]
        figure = figures.load(one["figure"])
        assert one["settings"] == {panel.name: panel.of(one["mode"]) for panel in figure.panels}, one["command"]
        assert [claim["text"] for claim in one["claims"]] == [claim.text for claim in figure.claims], one["command"]


def test_the_longest_mode_is_shown_and_every_mode_is_counted():
    def summary(mode, verdict):
        claims = [{"text": "C", "verdict": verdict, "reason": "", "decisions": []}]
        known = {"figure": "uldp-fl-9", "title": "Figure 9: T", "paper": "P (2024)", "mode": mode, "claims": claims}
        return {**known, "command": f"uldp {mode}", "seconds": 1.0, "notes": [], "published": []}

    text = index.index([summary("medium", "holds"), summary("quick", "does not hold")])
    assert text.index("[quick](") < text.index("[medium](") < text.index("## P, Figure 9: T")
    assert "`uldp medium`" in text and "`uldp quick`" not in text
    assert "| C | holds |" in text
    assert "Without results on this version: `uldp-fl-2`, `uldp-fl-4`" in text


def test_a_file_that_is_no_figure_is_refused():
    with pytest.raises(ConfigError, match="is no figure"):
        figures.read({"title": "T"}, "mine")
    panel = {"name": "one", "kind": "training"}
    whole = {"title": "T", "paper": "P", "about": "A", "panels": [panel]}
    wrong = {"text": "C", "left": {"row": "a", "panel": "two"}, "relation": "above", "right": 1.0}
    with pytest.raises(ConfigError, match="'two', which is not there"):
        figures.read({**whole, "claims": [wrong]}, "mine")
