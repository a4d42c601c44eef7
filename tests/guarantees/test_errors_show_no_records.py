"""Whatever fails, nothing that is printed shows a record: not messages, chained errors, warnings, logs or files.

Cells and ids carry marks; every failing path that we know is walked, and the marks are looked for in all that it says.
"""

import logging
import re
import traceback
import warnings

import numpy as np
import pandas as pd
import pytest
from torch import nn
from typer.testing import CliRunner

import uldp
from uldp import Federation, Schema, UldpClassifier, UldpRegressor
from uldp.cli.app import app

TEXT, NUMBER = "zebra-4711", 47.110815
MARKS = (TEXT, "47.11", "4711.0815", "47110815")
SCHEMA = Schema.classes("ill", [0, 1]).numeric("age", 0, 110).category("sex", ["f", "m"])
DATED = SCHEMA.numeric("seen", 1, 12, kind="date", part="month")
DRAW = np.random.default_rng(0)
GOOD = pd.DataFrame({"pid": [f"p{n}" for n in range(30)], "age": DRAW.uniform(20, 90, 30).round(1)})
GOOD = GOOD.assign(sex=DRAW.choice(["f", "m"], 30), ill=(GOOD["age"] > 55).astype(int))
MARKED = GOOD.assign(age=NUMBER, sex=TEXT)
IDS = GOOD.assign(pid=[f"{TEXT} {n}" for n in range(30)])
OK = GOOD.assign(age=NUMBER)
X = np.full((30, 2), NUMBER)
Y = np.arange(30) % 2


class Raises(nn.Module):
    """Quotes its input in an error, once it gets records."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        scaled = 2 * (NUMBER - 0) / 110 - 1
        if len(x) and bool((abs(x[:, 0] - scaled) < 1e-6).any()):
            raise ValueError(f"cannot take {110 * (float(x[0, 0]) + 1) / 2:.4f} of {TEXT}")
        return self.layer(x)


def train(silos=None, **changes):
    about = {"user": "pid", "label": "ill", "schema": SCHEMA, "users": list(GOOD["pid"]), "test": GOOD}
    what = {"epsilon": 3.0, "rounds": 2, "secrets": "simulated", "progress": False}
    chosen = {key: value for key, value in {**about, **what, **changes}.items() if value is not None}
    return uldp.train({"one": OK} if silos is None else silos, **chosen)


def test_what_a_notebook_prints_of_a_federation_shows_no_record():
    federation = uldp.Federation.from_frames({"one": OK}, user="pid", label="ill", schema=SCHEMA, test=OK)
    shown = [repr(part) for part in (federation, federation.silos, federation.test, federation.people)]
    assert shown[0].startswith("<Federation 'data frames': 1 silo(s) with records: one 30; ")
    assert shown[1] == "(<silo 'one': 30 records>,)"
    assert not [text for text in shown if "array" in text or "[" in text or TEXT in text]


def said(error):
    """All that Python prints of an error, and what ours keep besides."""
    texts = ["".join(traceback.format_exception(error))]
    while error is not None:
        texts += [str(error), repr(getattr(error, "value", "")), *getattr(error, "__notes__", ())]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    # A traceback quotes lines of this file, where the marks are written down; what it says of values is checked.
    return re.sub(r'  File "[^"]*", line .*\n(    .*\n)*', "", "\n".join(texts))


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch, runs_in_process):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ULDP_STATE", str(tmp_path / "state"))


def check(action, capsys, caplog, folder, *, fails=True):
    failure = None
    with warnings.catch_warnings(record=True) as heard, caplog.at_level(logging.DEBUG):
        warnings.simplefilter("always")
        try:
            action()
        except BaseException as error:
            failure = error
    assert (failure is not None) is fails, failure
    printed = capsys.readouterr()
    texts = [printed.out, printed.err, caplog.text, *(str(warning.message) for warning in heard)]
    texts += [said(failure)] if failure is not None else []
    files = [file for file in folder.rglob("*") if file.is_file() and "private" not in file.relative_to(folder).parts]
    texts += [file.read_text(errors="replace") for file in files if file.suffix in (".json", ".jsonl", ".txt", ".html")]
    found = [(mark, text) for mark in MARKS for text in texts if mark in text]
    assert not found
    return failure


def estimator(**changes):
    return UldpClassifier(**{"feature_range": (0, 110), "classes": [0, 1], "epsilon": 3.0, "rounds": 1, **changes})


def regressor(**changes):
    return UldpRegressor(**{"feature_range": (0, 110), "label_range": (0, 1), "epsilon": 3.0, "rounds": 1, **changes})


def arrays(x=X, y=Y, users=None, **changes):
    users = np.arange(30) if users is None else users
    return Federation.from_arrays({"one": (x, y, users)}, **{"test": (X, Y), "classes": 2, "users": 30, **changes})


def raising(report):
    raise ValueError(report)


LIBRARY = {
    "a category": lambda: train({"one": MARKED}),
    "a number": lambda: train({"one": GOOD.assign(age=TEXT)}),
    "out of range": lambda: train({"one": GOOD.assign(age=4711.0815)}),
    "a label": lambda: train({"one": GOOD.assign(ill=TEXT)}),
    "a date": lambda: train({"one": OK.assign(seen=TEXT)}, schema=DATED),
    "an ordinal": lambda: train({"one": OK}, schema=SCHEMA.category("sex", ["m", "w"], kind="ordinal")),
    "a numeric label": lambda: train({"one": GOOD.assign(ill=NUMBER)}),
    "missing cells": lambda: train({"one": OK.assign(sex=None)}),
    "ids off the roster": lambda: train({"one": IDS}),
    "too many ids": lambda: train({"one": IDS}, users=3),
    "ids that are floats": lambda: train({"one": GOOD.assign(pid=NUMBER + np.arange(30))}),
    "ids that are lists": lambda: train({"one": GOOD.assign(pid=[[TEXT]] * 30)}),
    "a roster with doubles": lambda: train(users=[TEXT, TEXT, "p1"]),
    "a short roster": lambda: train({"one": IDS}, users=["p1", "p2"]),
    "test cells": lambda: train(test=MARKED),
    "test labels": lambda: train(test=GOOD.assign(ill=TEXT)),
    "cells that are lists": lambda: train({"one": GOOD.assign(age=[[TEXT]] * 30)}),
    "cells that are dicts": lambda: train({"one": GOOD.assign(sex=[{"name": TEXT}] * 30)}),
    "a column of bytes": lambda: train({"one": GOOD.assign(sex=TEXT.encode())}),
    "frames in a list": lambda: train([MARKED]),
    "a frame alone": lambda: train(MARKED),
    "a dict of lists": lambda: train({"one": MARKED.to_dict("list")}),
    "records": lambda: train({"one": MARKED.to_dict("records")}),
    "an array": lambda: train({"one": MARKED.to_numpy()}),
    "a series": lambda: train({"one": MARKED["sex"]}),
    "schema is a frame": lambda: train(schema=MARKED),
    "model is a frame": lambda: train(model=MARKED),
    "method is a frame": lambda: train(method=MARKED),
    "callbacks are frames": lambda: train(callbacks=[MARKED]),
    "options are a frame": lambda: train(options={"method.clip": MARKED}),
    "test is a list": lambda: train(test=MARKED.to_dict("records")),
    "directory is a frame": lambda: train(directory=MARKED),
    "users are a frame": lambda: train(users=MARKED),
    "epsilon is a series": lambda: train(epsilon=MARKED["age"]),
    "a drafted schema": lambda: train({"one": GOOD.assign(ill=TEXT)}, schema=None),
    "a module that raises in evaluation": lambda: train({"one": GOOD}, model=Raises(), test=OK),
    "a callback that raises": lambda: train(callbacks=raising),
    "predict on cells": lambda: train().predict(MARKED),
    "predict on a list": lambda: train().predict(MARKED.to_dict("records")),
    "predict on texts": lambda: train().predict(np.full((3, 3), TEXT)),
    "predict on a wrong shape": lambda: train().predict(np.full((3, 9), NUMBER)),
    "predict_proba of objects": lambda: train().predict_proba(np.array([[TEXT, 1, 2]], dtype=object)),
    "labels are no classes": lambda: arrays(y=np.full(30, 47.0 + 0.110815)),
    "arrays of texts": lambda: arrays(x=np.full((30, 2), TEXT)),
    "complex arrays": lambda: arrays(x=X + 1j),
    "beyond float32": lambda: arrays(x=47.110815e40 + X),
    "labels are texts": lambda: arrays(y=np.full(30, TEXT)),
    "users are floats": lambda: arrays(users=X[:, 0]),
    "users beyond |U|": lambda: arrays(users=np.r_[47110815, 1:30]),
    "test arrays": lambda: arrays(test=(np.full((3, 2), TEXT), np.zeros(3))),
    "a frame as an array": lambda: arrays(x=MARKED),
    "X of texts": lambda: estimator().fit(np.full((30, 2), TEXT), Y),
    "X of objects": lambda: estimator().fit(np.full((30, 2), {"a": TEXT}, dtype=object), Y),
    "X complex": lambda: estimator().fit(X + 1j, Y),
    "X one-dimensional": lambda: estimator().fit(X[:, 0], Y),
    "X is a frame of texts": lambda: estimator().fit(MARKED, Y),
    "y of texts": lambda: estimator().fit(X, np.full(30, TEXT)),
    "y of one class": lambda: estimator(classes=None).fit(X, np.full(30, TEXT)),
    "y mixed": lambda: estimator(classes=None).fit(X, np.array([TEXT, 1] * 15, dtype=object)),
    "y of bytes": lambda: estimator(classes=None).fit(X, np.array([TEXT.encode(), b"x"] * 15)),
    "y spelled twice": lambda: estimator(classes=None).fit(X, np.array([TEXT, f" {TEXT}"] * 15)),
    "y continuous": lambda: estimator(classes=None).fit(X, X[:, 0]),
    "y two-dimensional": lambda: estimator().fit(X, X),
    "y of lists": lambda: estimator().fit(X, [[TEXT], [TEXT, TEXT]] * 15),
    "y of texts for numbers": lambda: regressor().fit(X, np.full(30, TEXT)),
    "y is infinite": lambda: regressor().fit(X, np.full(30, np.inf)),
    "users with gaps": lambda: estimator().fit(X, Y, users=np.array([TEXT, None] * 15, dtype=object)),
    "users are off the roster": lambda: estimator(roster=["a", "b"]).fit(X, Y, users=[f"{TEXT}{n}" for n in range(30)]),
    "silos are lists": lambda: estimator().fit(X, Y, silos=[[TEXT]] * 29),
    "X beside a schema": lambda: estimator(schema=SCHEMA, feature_range=None, classes=None).fit(MARKED, Y),
    "predict of texts": lambda: estimator().fit(X, Y).predict(np.full((3, 2), TEXT)),
    "predict of objects": lambda: estimator().fit(X, Y).predict([[TEXT, {}]]),
    "feature names": lambda: estimator().fit(pd.DataFrame(X), Y).predict(X[:, :1]),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_no_error_of_the_library_shows_a_record(name, capsys, caplog, tmp_path):
    check(LIBRARY[name], capsys, caplog, tmp_path)


def test_no_run_that_succeeds_says_more(capsys, caplog, tmp_path):
    """Clipped and missing values, doubled spellings and drafts are warned of, by their number."""

    def everything():
        clip = uldp.Schema.from_dict({**SCHEMA.to_dict(), "outside": "clip"})
        frame = MARKED.assign(age=4711.0815)
        train({"one": frame, "two": frame}, schema=clip, directory=tmp_path / "run", progress=True)
        train({"one": IDS.assign(pid=[f" {TEXT}" if n % 2 else TEXT.upper() + str(n) for n in range(30)])}, users=99)
        coded = {"fold_case": True, "aliases": {"f": ["w"]}, "missing_codes": ["x"], "missing": "m"}
        replaced = clip.category("sex", ["f", "m"], outside="missing", **coded).numeric(
            "seen", 1, 2, kind="date", part="year"
        )
        train({"one": frame.assign(seen="4711-08-15")}, schema=replaced.agreed(), test=OK.assign(seen="4711-08-15"))
        estimator().fit(100 * X, Y)
        train({"one": OK.assign(name=TEXT)}, schema=None, test=OK.assign(name=TEXT))
        train(model=Raises())  # a row of training that cannot be computed counts as zero, silently

    check(everything, capsys, caplog, tmp_path, fails=False)


EXPERIMENT = """
[data]
silos = ["one.{kind}"]
test = "test.{kind}"
user = "pid"
label = "ill"
users = {users}
{schema}
[method]
name = "uldp-avg"
rounds = 1
[privacy]
noise_multiplier = 5.0
"""
TABLES = {
    "a category": (MARKED, GOOD),
    "a number": (GOOD.assign(age=TEXT), GOOD),
    "a label": (GOOD.assign(ill=TEXT), GOOD),
    "missing ids": (IDS.assign(pid=[None, *IDS["pid"][1:]]), GOOD),
    "no user column": (IDS.rename(columns={"pid": "id"}), GOOD),
    "a test cell": (GOOD, MARKED),
    "too many ids": (IDS, GOOD),
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("command", ["plan", "run", "doctor"])
@pytest.mark.parametrize("name", TABLES)
def test_no_command_shows_a_record(name, command, kind, capsys, caplog, tmp_path):
    for table, frame in zip(("one", "test"), TABLES[name], strict=True):
        write = frame.to_csv if kind == "csv" else frame.to_parquet
        write(tmp_path / f"{table}.{kind}", index=False)
    users = 5 if name == "too many ids" else 300
    text = EXPERIMENT.format(kind=kind, users=users, schema=SCHEMA.to_toml())
    (tmp_path / "experiment.toml").write_text(text)
    for arguments in ([], ["--json"]):
        result = CliRunner().invoke(app, [command, "experiment.toml", *arguments])
        assert result.exit_code != 0, result.output
        assert not [mark for mark in MARKS if mark in result.output + result.stderr]
        assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)


CSV = {
    "an unbalanced quote": f'pid,age,sex,ill\np1,"{TEXT},f,1\np2,40,f,0\n',
    "too many cells": f"pid,age,sex,ill\np1,{TEXT},{NUMBER},f,1,{TEXT}\n",
    "not UTF-8": f"pid,age,sex,ill\np1,{TEXT}\udcff,f,1\n",
    "a null byte": f"pid,age,sex,ill\np1,{TEXT}\0,f,1\n",
    "no header": f"{TEXT},{NUMBER},f,1\n",
}


@pytest.mark.parametrize("name", [name for name in CSV if name != "no header"])
def test_no_broken_file_is_quoted(name, capsys, caplog, tmp_path):
    path = tmp_path / "one.csv"
    path.write_bytes(CSV[name].encode(errors="surrogateescape"))
    check(lambda: train({"one": str(path)}), capsys, caplog, tmp_path)
    done = train()
    check(lambda: done.predict(str(path)), capsys, caplog, tmp_path)
