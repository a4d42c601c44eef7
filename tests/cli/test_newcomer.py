"""What people try in their first hour."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import typer
from torch import nn

import uldp
from uldp.cli import output

VISITS = pd.DataFrame({"id": ["a", "b", "c", "d"] * 5, "age": range(20, 40), "ill": [0, 1, 1, 0, 1] * 4})


@pytest.mark.parametrize("call", [uldp.train, uldp.plan])
def test_a_file_is_an_experiment_and_no_data_set(call):
    with pytest.raises(uldp.ConfigError, match=r"uldp.Experiment.from_file\(path\) reads an experiment file"):
        call("study.toml")


@pytest.mark.parametrize("given", [[1, 2], None, 3])
def test_other_things_are_no_data(given):
    with pytest.raises(uldp.ConfigError, match="silos: a table for each silo, by its name"):
        uldp.train(given, user="id", label="y")


def test_a_reader_that_goes_away_is_nobody_s_code(capsys, monkeypatch):
    """As in `uldp plan | head -1`: rich leaves by SystemExit when its output is not read any more."""

    @output.report_errors
    def command():
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904

    monkeypatch.setattr(output.sys.stderr, "close", lambda: None)
    with pytest.raises(typer.Exit) as left:
        command()
    assert left.value.exit_code == 1 and capsys.readouterr().err == ""


def test_missing_values_and_values_outside_say_what_a_schema_needs():
    silos, arguments = {"north": VISITS.assign(age=[math.nan, *range(19)])}, {"user": "id", "label": "ill"}
    schema = uldp.Schema.classes("ill", [0, 1])
    with pytest.raises(uldp.DataError, match="set missing = <an agreed constant> for the column in the schema"):
        uldp.plan(silos, **arguments, schema=schema.numeric("age", 0, 110), epsilon=4.0)
    with pytest.raises(uldp.DataError, match='or set its outside = "clip"'):
        uldp.plan(silos, **arguments, schema=schema.numeric("age", 0, 10, missing=5), epsilon=4.0)
    clipping = uldp.Schema.classes("ill", [0, 1], outside="clip").numeric("age", 0, 10, missing=5)
    assert clipping.features(silos["north"], "north").max() == 1.0


def test_a_class_instead_of_a_module_says_how_it_was_called():
    class Net(nn.Linear):
        def __init__(self):
            super().__init__(1, 2)

    schema = uldp.Schema.classes("ill", [0, 1]).numeric("age", 0, 110)
    said = r"Net', called as a factory with \(feature_shape, task\) \(for a module .* instance"
    with pytest.raises(uldp.ModelError, match=said):
        uldp.plan({"north": VISITS}, user="id", label="ill", schema=schema, model=Net, epsilon=4.0)


def test_warnings_name_the_line_that_called_uldp():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        uldp.UldpClassifier(feature_range=(0, 110), epsilon=4.0, rounds=1).fit(VISITS[["age"]], VISITS["ill"])
        silos = {"north": VISITS, "south": VISITS.assign(age=VISITS["age"] + 1)}
        data = uldp.Federation.from_frames(silos, user="id", label="ill", users=4)
        uldp.compare(data, ["uldp-avg", "fedavg"], epsilon=4.0, rounds=1, progress=False)
    texts = " ".join(str(warning.message) for warning in caught)
    assert "no users were given" in texts and "were read from the data" in texts and "buckets" in texts
    assert {warning.filename for warning in caught} == {__file__}


def test_an_estimator_names_the_columns_that_it_does_not_know_and_what_to_do_about_missing_cells():
    model = uldp.UldpClassifier(feature_range=(0, 110), classes=[0, 1], epsilon=4.0, rounds=1)
    with warnings.catch_warnings(action="ignore"):
        model.fit(VISITS[["age"]], VISITS["ill"])
    with pytest.raises(ValueError, match="unseen at fit time: - height"):
        model.predict(VISITS[["age"]].assign(height=1.0))
    with pytest.raises(ValueError, match=r"Input X contains NaN\. Leave these rows out, or give a schema"):
        model.predict(VISITS[["age"]].assign(age=np.nan))


def test_the_noise_of_the_smallest_epsilon_is_drawn_whatever_the_aggregation():
    """Noise of 2^40 fixed-point units and more neither wraps around nor is cut off on its way to the model."""

    def weights(aggregation):
        # The step is global_lr / (|U| |S|) times the total, so that the model is the total here.
        options = {"data.users": 20, "method.clip": 1.0, "method.global_lr": 20.0 * 5, "run.secrets": "simulated"}
        if aggregation == "paillier":
            options |= {"aggregation.key_bits": 2048}
        with warnings.catch_warnings(action="ignore"):
            result = uldp.train(
                "breast-cancer",
                method="uldp-avg",
                model="logistic",
                aggregation=aggregation,
                epsilon=1e-9,
                rounds=1,
                options=options,
                progress=False,
            )
        assert 0 < result.epsilon <= 1e-9
        return np.concatenate([part.detach().numpy().ravel() for part in result.module().parameters()])

    plain = weights("plain")
    noise_multiplier = uldp.noise_multiplier("uldp-avg", epsilon=1e-9, rounds=1)
    assert 0.6 < plain.std() / noise_multiplier < 1.5  # 31 weights: five deviations
    for aggregation in ("masked", "paillier"):
        np.testing.assert_allclose(weights(aggregation), plain, rtol=1e-6)
