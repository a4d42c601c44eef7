"""``uldp.tune``: reads no table, keeps the rest of a file, and says that it costs nothing."""

import tomllib

import pandas
import pytest
from typer.testing import CliRunner

import uldp
from uldp import ConfigError, Experiment
from uldp.cli.app import app
from uldp.data.sets.base import PooledDataset
from uldp.data.synthetic_tables import TableShape, draw_federation
from uldp.library import tuning, what_if
from uldp.library.synthetic_runs import PublicShape, synthetic_plan, synthetic_skill
from uldp.library.tuning import write_method
from uldp.rng import Streams

FILE = """\
# Two hospitals.
[data]
silos = ["north.csv", "south.csv"]   # not here at all
user = "id"
label = "ill"
users = 400
people = 40
test_fraction = 0.2
[data.schema.label]
kind = "class"
classes = [0, 1]
[data.schema.columns.age]
kind = "number"
range = [0, 110]   # agreed in May
[data.schema.columns.sex]
kind = "category"
categories = ["f", "m"]

[method]
name = "auto"   # see `uldp methods`

[privacy]
epsilon = 3.0   # our budget
"""

TUNED = FILE.replace('name = "auto"', 'rounds = 7\nname = "auto"')


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(tuning, "ROUNDS", (20,))
    monkeypatch.setattr(tuning, "STAGES", ((1, 2), (2, 1)))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(FILE)
    return path


def test_nothing_is_read_but_the_file(file, few, monkeypatch):
    def opened(*_, **__):
        raise AssertionError("a table was opened")

    monkeypatch.setattr(pandas, "read_csv", opened)
    monkeypatch.setattr(pandas, "read_parquet", opened)
    monkeypatch.setattr(PooledDataset, "load", opened)
    found = uldp.tune(file)
    assert "no table was opened" in found.summary() and "costs" not in found.summary()
    assert file.read_text() == FILE  # nothing was asked to be written
    built_in = Experiment.from_tree({"data": {"dataset": "breast-cancer"}, "privacy": {"epsilon": 3.0}})
    assert uldp.tune(built_in).trials


def test_tables_that_raise_when_opened_do_not_matter(file, few):
    for name in ("north.csv", "south.csv"):
        (file.parent / name).mkdir()  # opening it raises
    assert uldp.tune(file).trials


def test_the_same_shape_and_noise_as_the_real_federation(file):
    experiment = Experiment.from_file(file)
    shape = PublicShape.of(experiment, 3.0)
    tables = shape.tables
    assert (tables.people, tables.silos, tables.numbers, tables.categories) == (40, 2, 1, (2,))
    assert shape.draw(0).schema == shape.schema
    assert synthetic_skill(experiment, shape, {"rounds": 3}, 0) == synthetic_skill(experiment, shape, {"rounds": 3}, 0)


def test_many_people_are_simulated_by_fewer_with_the_same_rho(tmp_path):
    path = tmp_path / "many.toml"
    path.write_text(FILE.replace("people = 40", "people = 40000").replace("users = 400", "users = 40000"))
    experiment = Experiment.from_file(path)
    shape = PublicShape.of(experiment)
    plan = synthetic_plan(experiment, shape, {}, 0).plan
    assert plan.facts.people == 2000
    few = Experiment.from_file(path, ["data.people=2000"])
    own = synthetic_plan(few, PublicShape.of(few), {}, 0).plan
    assert plan.release.noise_to_signal(plan.rounds) == pytest.approx(own.release.noise_to_signal(own.rounds) / 20)


def test_the_chosen_settings_are_written_and_everything_else_stays(file, few):
    file.write_text(TUNED)
    result = CliRunner().invoke(app, ["tune", str(file)])
    assert result.exit_code == 0, result.output
    assert "no privacy" in result.output
    assert "the file before is" in result.output and "before-tune" in result.output
    assert file.with_name("experiment.toml.before-tune").read_text() == TUNED
    before, after = tomllib.loads(FILE), tomllib.loads(file.read_text())
    assert {key: value for key, value in after.items() if key != "method"} == {
        key: value for key, value in before.items() if key != "method"
    }
    for comment in ("# Two hospitals.", "# agreed in May", "# our budget", "# see `uldp methods`"):
        assert comment in file.read_text()
    Experiment.from_file(file)


def test_a_file_that_has_the_chosen_settings_already_is_left_alone(file):
    assert write_method(file, {"name": "auto"}) is None
    assert file.read_text() == FILE and list(file.parent.iterdir()) == [file]


def test_no_copy_replaces_an_earlier_one(file):
    copies = [write_method(file, {"name": "auto", "rounds": rounds}) for rounds in (3, 4, 5)]
    assert len({*copies, file}) == 4 and copies[0].read_text() == FILE
    assert [tomllib.loads(copy.read_text())["method"].get("rounds") for copy in copies] == [None, 3, 4]


@pytest.mark.parametrize(
    "text",
    ["[method]\nname = 'fedavg' # a\n# keep\nlocal_epochs = 3\n[data]\nx = 1\n", "[data]\nx = 1\n", "[method]\n"],
)
def test_a_section_is_replaced_line_by_line(tmp_path, text):
    path = tmp_path / "a.toml"
    path.write_text(text)
    write_method(path, {"name": "auto", "server_lr": 3.0})
    tree = tomllib.loads(path.read_text())
    assert tree["method"] == {"name": "auto", "server_lr": 3.0}
    assert ("# keep" in path.read_text()) == ("# keep" in text) and ("# a" in path.read_text()) == ("# a" in text)


def test_a_section_in_another_form_is_refused_and_stays(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('method = {name = "auto"}\n[data]\nx = 1\n')
    with pytest.raises(ConfigError, match="cannot be changed line by line"):
        write_method(path, {"name": "uldp-avg-w"})
    assert path.read_text().startswith("method = {")


def test_bad_input(file):
    with pytest.raises(ConfigError, match="records"):
        uldp.tune(file, records=0.0)
    with pytest.raises(ConfigError, match="images and survival times"):
        uldp.tune(Experiment.from_tree({"data": {"dataset": "tcga-brca"}, "privacy": {"epsilon": 3.0}}))
    with pytest.raises(ConfigError, match=r"^experiment: a uldp\.Experiment or the path .*, not a Federation"):
        uldp.tune(uldp.Federation.from_dataset("breast-cancer"))
    with pytest.raises(ConfigError, match="there is no file"):
        uldp.tune(Experiment.from_file(file), write=True)


def test_made_up_federations_differ_and_have_the_shape():
    shape = TableShape(people=60, silos=3, records=2.0, numbers=2, categories=(3,), classes=3)
    one, two = (draw_federation(shape, Streams.from_seed(seed)) for seed in (0, 1))
    assert one.users == 60 and len(one.silos) == 3 and one.feature_shape == (5,)
    assert (one.counts().sum(axis=0) > 0).all() and one.counts().sum() == 120
    assert abs(one.test.features).max() <= 1
    assert one.test.features.tobytes() != two.test.features.tobytes()


def test_a_public_base_rate_is_the_made_up_tables_too():
    shape = TableShape(people=500, silos=2, records=4.0, numbers=4, base_rate=(0.9, 0.1))
    drawn = draw_federation(shape, Streams.from_seed(0))
    assert drawn.test.labels.mean() == pytest.approx(0.1, abs=0.03)


def test_public_labels_of_the_file_are_those_of_the_made_up_tables(tmp_path):
    path = tmp_path / "rare.toml"
    path.write_text(FILE.replace("people = 40", "people = 40\nbase_rate = 0.1"))
    experiment = Experiment.from_file(path)
    shape = PublicShape.of(experiment)
    assert shape.tables.base_rate == (0.9, 0.1)
    assert synthetic_plan(experiment, shape, {}, 0).experiment.data.base_rate == (0.9, 0.1)


def test_what_if_names_changes_and_orders_them_by_what_is_possible(file, monkeypatch):
    seen = []

    def skill(experiment, shape, changes, number):
        seen.append((experiment.privacy.epsilon, shape.tables.people, shape.max_features))
        return 0.25

    monkeypatch.setattr(what_if, "synthetic_skill", skill)
    monkeypatch.setattr(what_if, "FEDERATIONS", 1)
    experiment = Experiment.from_file(file)
    found = what_if.alternatives(experiment)
    assert [one.change for one in found] == [
        "as planned",
        "with 160 people",
        "with 1 of the 3 features",
        "at epsilon 9",
        "at delta 0.0001",
        "without noise",
    ]
    assert seen[1][1] == 160 and seen[2][2] == 1 and seen[3][0] == 9.0 and seen[5][0] is None
    assert "no record was read" in what_if.sentence(found, experiment)


def test_plan_says_what_changes_would_buy(file, monkeypatch):
    monkeypatch.setattr(what_if, "FEDERATIONS", 1)
    file.write_text(FILE.replace('name = "auto"', 'name = "auto"\nrounds = 3'))
    result = CliRunner().invoke(app, ["plan", str(file), "--what-if"])
    assert result.exit_code == 0, result.output
    assert "made-up federations of 40 people in 2 silos" in result.output and "without noise" in result.output
