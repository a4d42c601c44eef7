"""Reports hold what may be shown and nothing else, say what holds, and bad input is refused in one sentence."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

import uldp
from uldp.cli.app import app
from uldp.privacy.sentences import NOT_SECRET
from uldp.reports.comparison import grouped, unbeaten
from uldp.reports.epsilons import Point
from uldp.reports.page import comparison_page, run_page
from uldp.reports.words import best_guess, show_guess, verdict
from uldp.runtimes.reporting import view_of_directory, view_of_result

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("runs_in_process")


def experiment(**changes):
    method = {"name": "uldp-avg-w", "rounds": 3, **changes.pop("method", {})}
    return uldp.Experiment.from_tree({
        "data": {"dataset": "breast-cancer", "users": 20},
        "method": method,
        "privacy": changes.pop("privacy", {"noise_multiplier": 5.0}),
        "run": {"threads": 1, **changes},
    })  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two seeds, another setting and one without noise; nobody may change them."""
    folder = tmp_path_factory.mktemp("trained")
    made = {
        "first": experiment(),
        "seed": experiment(seed=1),
        "clip": experiment(method={"clip": 0.5}),
        "plain": experiment(method={"name": "fedavg"}, privacy={}),
        "secret": experiment(secrets="os"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uldp.runs.spending._RUNS", {})  # nobody else's totals count these runs
        return folder, {name: uldp.train(one, directory=folder / name, progress=False) for name, one in made.items()}


@pytest.fixture
def runs(trained, tmp_path, monkeypatch):
    """A copy of the run directories, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    for path in trained[0].iterdir():
        shutil.copytree(path, tmp_path / path.name)
    return tmp_path


def refused(*arguments):
    """The sentence with which a command line is refused; nothing was written."""
    before = sorted(map(str, Path().rglob("*")))
    result = runner.invoke(app, ["report", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    assert sorted(map(str, Path().rglob("*"))) == before
    (line,) = result.stderr.splitlines()
    return line


class Page(HTMLParser):
    """The text of a page, the addresses that it names, and its elements."""

    def __init__(self, text):
        super().__init__()
        self.words, self.addresses, self.elements, self.within = [], [], [], ""
        self.feed(text)

    def handle_data(self, data):
        self.words += data.split() if self.within not in ("style", "script") else []

    def handle_starttag(self, tag, attributes):
        self.within = tag
        self.elements.append((tag, dict(attributes)))
        self.addresses += [value for key, value in attributes if key in ("src", "href", "action", "data", "poster")]

    def handle_endtag(self, tag):
        self.within = ""


def page_of(path):
    return Page(Path(path).read_text())


def test_a_page_with_a_card_stands_beside_the_run_and_loads_nothing(runs):
    result = runner.invoke(app, ["report", "secret"])
    assert result.exit_code == 0, result.output
    page, text = page_of("secret/report.html"), Path("secret/report.html").read_text()
    assert all(address.startswith(("#", "data:,")) for address in page.addresses)
    assert "http:" not in text and "https:" not in text and "@import" not in text and "url(" not in text
    said = " ".join(page.words)
    statement = json.loads(Path("secret/statement.json").read_text())
    assert "Every person is protected" in said and statement["guarantee"] in said
    for exposure in statement["exposures"]:
        assert exposure["who"] in said and exposure["sees"] in said and f"{exposure['epsilon']:.4g}" in said
    for caveat in statement["caveats"]:
        assert caveat["text"] in said
    card = Path("secret/report.md").read_text()
    assert statement["guarantee"] in card and all(caveat["text"] in card for caveat in statement["caveats"])
    assert len(text) < 2_000_000


def test_simulated_noise_is_no_guarantee_in_a_report(runs):
    runner.invoke(app, ["report", "first"])
    said = " ".join(page_of("first/report.html").words)
    assert "A rehearsal: nobody is protected" in said and NOT_SECRET in said
    assert "Every person is protected" not in said.replace("With secret noise it would hold that: every", "")
    assert NOT_SECRET in Path("first/report.md").read_text()


def test_a_run_without_privacy_says_so(runs):
    runner.invoke(app, ["report", "plain"])
    said = " ".join(page_of("plain/report.html").words)
    assert "Nobody is protected" in said and "no bound" in said and "Epsilon spent" not in said


def test_a_report_reads_nothing_private_and_is_the_same_without_it(runs, monkeypatch):
    assert runner.invoke(app, ["report", "first"]).exit_code == 0
    first = Path("first/report.html").read_bytes(), Path("first/report.md").read_bytes()
    shutil.rmtree("first/private")
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: 20 * clock())
    assert runner.invoke(app, ["report", "first", "--force"]).exit_code == 0
    assert (Path("first/report.html").read_bytes(), Path("first/report.md").read_bytes()) == first
    text = b"".join(first)
    assert b"second" not in text and str(runs).encode() not in text and os.getcwd().encode() not in text


def test_a_report_holds_no_record_counts_unless_it_is_for_the_holder(runs):
    counts = uldp.prepare(experiment()).federation.counts()
    runner.invoke(app, ["report", "first"])
    words = page_of("first/report.html").words
    silos = {f"{number:,}" for number in (*counts.sum(axis=1), counts.sum()) if number > 100}  # no axis has these
    assert silos and not silos & set(words) and "Records per user" not in " ".join(words)
    made = runner.invoke(app, ["report", "first", "--holder"])
    assert made.exit_code == 0 and "holder of the data only" in made.stderr
    page = Path("first/private/report.html")
    assert page.stat().st_mode & 0o077 == 0
    assert silos <= set(page_of(page).words) and "For the holder of the data only." in page.read_text()


def test_a_holders_page_does_not_go_where_files_may_be_shown(runs):
    assert "private folder" in refused("first", "--holder", "--out", "first/mine.html")
    assert "one run" in refused("first", "seed", "--holder", "--out", "x.html")
    assert "--registry" in refused("secret", "--holder", "--registry")


def test_a_result_in_memory_gives_the_page_of_its_directory(trained, tmp_path):
    folder, results = trained
    saved = results["secret"].save(tmp_path / "secret")
    assert view_of_result(results["secret"]) == view_of_directory(folder / "secret") == view_of_directory(saved)
    read = uldp.load(saved)
    assert view_of_result(read) == view_of_directory(saved)
    page = results["secret"].report(tmp_path / "a.html")
    assert page.read_text() == uldp.report(saved, path=tmp_path / "b.html").read_text()
    with pytest.raises(uldp.RunError, match="exists already"):
        results["secret"].report(tmp_path / "a.html")


def test_several_runs_are_compared_seeds_together(runs):
    result = runner.invoke(app, ["report", "first", "seed", "clip", "plain", "--out", "all.html"])
    assert result.exit_code == 0, result.output
    page = page_of("all.html")
    said = " ".join(page.words)
    assert "uldp-avg-w, clip 1" in said and "uldp-avg-w, clip 0.5" in said and "fedavg" in said
    assert "3 settings" in said and "4 runs" in said and "3 private runs would together cost epsilon" in said
    spots = [attributes for tag, attributes in page.elements if tag == "g" and "data-tip" in attributes]
    assert len(spots) == 3 and all(spot["tabindex"] == "0" and spot["aria-label"] for spot in spots)
    assert not Path("all.md").exists()


def test_what_runs_cost_together_is_what_total_says(runs):
    runner.invoke(app, ["report", "first", "seed", "clip", "--out", "all.html"])
    total = json.loads(runner.invoke(app, ["total", "first", "seed", "clip", "--json"]).stdout)["totals"][0]["epsilon"]
    assert f"together cost epsilon {total:.4g}" in " ".join(page_of("all.html").words)
    runner.invoke(app, ["report", "first", "secret", "--out", "mixed.html"])
    assert "nothing is guaranteed together" in " ".join(page_of("mixed.html").words)


def test_a_comparisons_folder_is_reported_as_a_whole(runs):
    small = ["--dataset", "breast-cancer", "--set", "data.users=20", "--set", "method.rounds=2"]
    made = runner.invoke(app, ["compare", *small, "--methods", "fedavg,uldp-avg", "--repeats", "2", "--out", "cmp"])
    assert made.exit_code == 0 and runner.invoke(app, ["report", "cmp"]).exit_code == 0
    said = " ".join(page_of("cmp/report.html").words)
    assert "2 settings" in said and "4 runs" in said and "±" in said


def test_the_frontier_has_the_points_that_no_other_beats():
    def point(label, epsilon, value, hollow=False):
        return Point(label, epsilon, value, 0.0, 0, hollow)

    points = [
        point("a", 1.0, 0.7),
        point("b", 2.0, 0.8),
        point("same as b", 1.999, 0.75),
        point("worse", 3.0, 0.79),
        point("none", math.inf, 0.99),
        point("record", 0.5, 0.99, hollow=True),
    ]
    assert [one.label for one in unbeaten(points, "accuracy")] == ["a", "b"]
    assert [one.label for one in unbeaten(points, "loss")] == ["a"]


def test_the_bound_on_a_guess_is_never_shown_smaller_than_it_is():
    for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0, 6.0):
        exact = (math.exp(epsilon) + 1e-5) / (1 + math.exp(epsilon))
        assert best_guess(epsilon, 1e-5) == pytest.approx(exact, rel=1e-12)
        assert float(show_guess(epsilon, 1e-5).split()[0]) >= 100 * exact


@pytest.mark.parametrize(("epsilon", "level"), [(0.5, "good"), (4.0, "good"), (6.0, "warn"), (50.0, "bad")])
def test_a_verdict_fades_with_epsilon(trained, epsilon, level):
    from dataclasses import replace

    statement = replace(trained[1]["secret"].statement, epsilon=epsilon, caveats=())
    assert verdict(statement).level == level
    assert verdict(replace(statement, simulated=True)).level == "warn"
    assert verdict(replace(statement, no_guarantee="of this")).level == "bad"
    assert verdict(replace(statement, privacy_unit="record", epsilon=1.0)).level == "warn"


def test_names_from_outside_are_escaped(runs):
    tree = json.loads(Path("first/result.json").read_text())
    tree["silos"] = ["<script>alert(1)</script>", "a|b`c`"]
    Path("first/result.json").write_text(json.dumps(tree))
    runner.invoke(app, ["report", "first"])
    assert "<script>alert" not in Path("first/report.html").read_text()
    assert "\\<script>" in Path("first/report.md").read_text()


def test_bad_input_is_refused_in_one_sentence(runs):
    assert "not a run directory" in refused("nowhere")
    Path("empty").mkdir()
    assert "not a run directory" in refused("empty")
    Path("first/report.html").write_text("mine")
    assert "exists already" in refused("first") and "--force" in refused("first")
    Path("seed/report.md").write_text("mine")
    assert "seed/report.md: exists already" in refused("seed")
    assert "ends in .html" in refused("clip", "--out", "page.pdf")
    assert "no folder" in refused("clip", "--out", "none/page.html")
    assert "--out" in refused("clip", "seed")
    assert "twice" in refused("clip", "clip", "--out", "x.html")
    Path("clip/report.html").mkdir()
    assert "choose another name" in refused("clip", "--force")
    assert Path("first/report.html").read_text() == "mine"


def test_other_versions_and_unfinished_runs_are_refused(runs):
    versions = json.loads(Path("first/versions.json").read_text())
    Path("first/versions.json").write_text(json.dumps({**versions, "uldp": "0.0.1"}))
    assert "0.0.1" in refused("first")
    Path("seed/result.json").unlink()
    assert "no result yet" in refused("seed")
    Path("clip/statement.json").write_text("{}")
    assert "damaged" in refused("clip")
    Path("plain/result.json").write_text("{}")
    assert "does not know" in refused("plain")


def test_runs_on_different_data_are_not_compared(runs):
    uldp.train("synthetic", noise_multiplier=5.0, rounds=1, directory="other", progress=False)
    assert "different data" in refused("first", "other", "--out", "x.html")


def test_an_audit_of_a_run_stands_in_its_report(runs):
    uldp.train("synthetic", method="uldp-avg", epsilon=4.0, rounds=2, directory="audited", progress=False)
    made = runner.invoke(app, ["audit", "audited", "--canaries", "2000"])
    assert made.exit_code == 0, made.output
    assert runner.invoke(app, ["report", "audited"]).exit_code == 0
    said = " ".join(page_of("audited/report.html").words)
    assert "Not refuted: uldp-avg" in said and "Direct checks" in said and "not refuted: at least" in said
    shutil.copy("audited/audit.json", "plain/audit.json")
    assert "another experiment" in refused("plain")
    audit = json.loads(Path("audited/audit.json").read_text())
    Path("audited/audit.json").write_text(json.dumps({**audit, "records": "real"}))
    assert "real records" in refused("audited", "--force")
    options = runner.invoke(app, ["audit", "first", "--rounds", "9"])
    assert options.exit_code == 2 and "takes its settings" in options.stderr


# Field names and values of schemas/deployments-schema.yaml in opendp/deployments-registry-data at 057e5d81.
SCHEMA = {
    "basic": "name data_curators description intended_use data_product_type data_product_region data_product_sector "
    "publication_date",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details number_of_privacy_units privacy_parameters "
    "privacy_parameters_details",
    "deployment_model": "model_name model_name_details trust_assumptions actors release_type release_type_details "
    "data_source_type data_source_type_details access_type access_type_details",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms composition post_processing justification "
    "utility additional_information",
    "administrative": "evidence_sources status registry_authors tier",
}
REQUIRED = {
    "basic": "name data_curators description intended_use data_product_type data_product_region publication_date",
    "administrative": "status registry_authors tier",
}


def test_the_draft_for_the_registry_has_its_fields_and_names_what_is_missing(runs):
    made = runner.invoke(app, ["report", "secret", "--registry"])
    assert made.exit_code == 0 and "fill in: url_slug" in made.stdout
    record = json.loads(Path("secret/report.registry.json").read_text())
    deployment = record["deployment"]
    assert record.keys() == {"deployment"} and deployment.keys() <= SCHEMA.keys()
    assert all(deployment[part].keys() <= set(SCHEMA[part].split()) for part in deployment)
    missing = made.stdout.partition("fill in: ")[2].split(", ")
    wanted = {f"deployment.{part}.{key}" for part, keys in REQUIRED.items() for key in keys.split()} | {"url_slug"}
    given = {f"deployment.{part}.{key}" for part, keys in deployment.items() for key in keys}
    assert wanted - given == {one.strip() for one in missing}
    assert deployment["basic"]["data_product_type"] == "Machine learning model"
    assert deployment["dp_variant"]["variant_name"] == "Approximate DP"
    assert deployment["deployment_model"]["model_name"] == "Federated"
    statement = json.loads(Path("secret/statement.json").read_text())
    parameters = deployment["privacy_loss"]["privacy_parameters"]
    assert parameters == {"epsilon": statement["epsilon"], "delta": statement["delta"]}
    assert deployment["privacy_loss"]["number_of_privacy_units"] == 20
    assert deployment["administrative"]["status"] == "Draft"


def test_a_run_without_a_guarantee_is_not_for_the_registry(runs):
    assert "no guarantee to be registered" in refused("first", "--registry")
    assert "no guarantee to be registered" in refused("plain", "--registry")


def test_the_agreed_columns_are_in_the_page_and_the_card_and_no_cell_is(tmp_path, monkeypatch):
    import pandas as pd

    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"id": range(40), "age": [30, 61] * 20, "ward": ["a|b", "c"] * 20, "ill": [0, 1] * 20})
    schema = uldp.Schema.classes("ill", [0, 1]).numeric("age", 0, 110).category("ward", ["a|b", "c"])
    silos = {"north": frame[:20], "south": frame[20:]}
    tables = {"user": "id", "label": "ill", "schema": schema}
    result = uldp.train(
        silos, **tables, users=40, test=frame, epsilon=5.0, rounds=2, progress=False, directory="r"
    )  # fmt: skip
    assert view_of_result(result) == view_of_directory("r")
    page, card = uldp.report("r"), Path("r/report.md").read_text()
    said = " ".join(page_of(page).words)
    assert "age number 0" in said and "ward category a|b, c" in said and "north" in said and "south" in said
    assert "| ward | category | a\\|b, c |" in card and "Predicts one of 2 classes ill (0, 1)" in card
    with pytest.raises(uldp.ConfigError, match="handed over in Python"):
        uldp.report("r", holder=True)
    silos = uldp.Federation.from_frames(
        {"north": frame[:20], "south": frame[20:]}, user="id", label="ill", schema=schema
    )
    assert "for the holder only" in uldp.report("r", holder=silos).read_text()


def test_large_runs_and_comparisons_stay_small_pages(trained):
    from dataclasses import replace

    view = view_of_directory(trained[0] / "secret")
    many = [replace(view.rounds[0], number=number) for number in range(1, 20_001)]
    assert len(run_page(replace(view, rounds=tuple(many)))) < 500_000
    views = []
    for number in range(300):
        settings = {**view.settings, "method": {**view.settings["method"], "clip": 1.0 + number / 10}}
        views.append(replace(view, settings=settings, rounds=tuple(many[:500]), name=f"run-{number}"))
    assert len(comparison_page(views, "many", "")) < 2_000_000


def test_runs_are_grouped_by_their_settings(trained):
    views = [view_of_directory(trained[0] / name) for name in ("first", "seed", "clip", "plain")]
    groups = grouped(views)
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    assert groups[1].differs["method.clip"] == "0.5"
    assert re.fullmatch(r"[\d.]+ ± [\d.]+ %", groups[0].shown_metric("accuracy"))
