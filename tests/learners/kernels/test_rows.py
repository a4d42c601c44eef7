"""A user's row is that user's own: nothing comes through the workspace, from neighbours, or from the processor."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from twin import collect, make_silo

from uldp.data.federation import Task
from uldp.errors import ModelError
from uldp.learners.base import LocalTraining
from uldp.learners.blocks import Embedding, Residual
from uldp.learners.groups import group_users
from uldp.learners.kernels import layout as at
from uldp.learners.kernels.forms import NoKernelError, ceiling
from uldp.learners.kernels.objectives import NUMBERS
from uldp.learners.kernels.products import MAX_TERMS
from uldp.learners.kernels.program import compile_program, validate
from uldp.learners.kernels.runner import Groups, Runner, TrainingTable, compiled_interpreter
from uldp.learners.losses import choose_loss
from uldp.learners.models import build_model
from uldp.learners.randomness import TrainingRandomness
from uldp.learners.torch import TorchLearner
from uldp.native.jit import CHECK_VARIABLE
from uldp.rng import Streams

STREAMS = Streams.from_seed(2)
COUNTS = [3, 1, 9, 2, 40, 5, 1, 4]
MODELS = {
    "mlp": ((7,), Task(3), {"hidden": [9, 5], "dropout": 0.3, "norm": "layer", "activation": "gelu"}),
    "cnn": ((2, 9, 8), Task(10), {"dropout2d": 0.2}),
    "creditcard": ((30,), Task(2), {}),
    "cox": ((6,), Task(0, survival=True), {}),
    "vgg-cifar": ((3, 4, 4), Task(10), {"dropout": 0.5}),
    "table": (
        (5,),
        Task(3),
        lambda: [
            Embedding(2, 9, columns=3),
            Residual(nn.Sequential(nn.Linear(29, 29), nn.GELU(), nn.Dropout(0.3))),
            nn.Linear(29, 3),
        ],
    ),
    "image": (
        (2, 7, 6),
        Task(3),
        lambda: [
            nn.Conv2d(2, 5, 3, padding=1),
            nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
            Residual(nn.Sequential(nn.Conv2d(5, 5, 3, padding=1), nn.Tanh())),
            nn.AvgPool2d(3, stride=2, padding=1),
            nn.Flatten(),
            nn.GroupNorm(4, 20),
            nn.Linear(20, 3),
        ],
    ),
}
LOCALS = {
    "plain": LocalTraining(epochs=2, lr=0.1, batch_size=4),
    "sgd": LocalTraining(epochs=2, lr=0.1, batch_size=4, weight_decay=0.01),
    "adam": LocalTraining(epochs=2, lr=0.01, batch_size=4, optimizer="adam"),
    "momentum": LocalTraining(epochs=2, lr=0.05, batch_size=4, momentum=0.8, weight_decay=0.01),
    "adamw": LocalTraining(epochs=2, lr=0.01, batch_size=4, optimizer="adamw", weight_decay=0.01),
}


def program(name):
    shape, task, options = MODELS[name]
    if callable(options):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = nn.Sequential(*options())
    else:
        module = build_model(name, shape, task, options)
    outputs = 1 if task.kind == "survival" else task.classes if name != "logistic" else 1
    made = compile_program(module, shape, NUMBERS[choose_loss(task, outputs).name])
    x = np.concatenate([p.detach().double().numpy().ravel() for p in module.parameters()])
    return made, x, make_silo(COUNTS, shape, task)


def groups(data, only=None):
    who, starts, counts, rows = group_users(data.users)
    part = slice(None) if only is None else slice(only, only + 1)
    return Groups(who[part], starts[part], counts[part], rows, TrainingRandomness(STREAMS, who[part]).keys())


def rows(runner, x, data, local, only=None):
    table, some = TrainingTable.of(data.features, data.labels), groups(data, only)
    return collect(runner.deltas(x, table, some, local)), collect(runner.gradients(x, table, some))


def junk(size, dtype, shift=0):
    """An array that holds the worst there is, and that starts anywhere."""
    fill = np.nan if np.issubdtype(dtype, np.floating) else np.array(-1).astype(dtype)
    return np.full(size + shift, fill, dtype=dtype)[shift:]


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("name", MODELS)
def test_nothing_comes_through_the_workspace(name, local):
    """Each user alone, in memory full of NaN and at an odd address, against all in one workspace after each other."""
    made, x, data = program(name)
    together = rows(Runner(made, np.float32, 1), x, data, LOCALS[local])
    for user in range(len(COUNTS)):
        dirty = Runner(made, np.float32, 1, lambda size, dtype, user=user: junk(size, dtype, user % 8))
        alone = rows(dirty, x, data, LOCALS[local], user)
        for whole, one in zip(together, alone, strict=True):
            np.testing.assert_array_equal(one[user], whole[user])
            assert np.isfinite(one[user]).all()


@pytest.mark.parametrize("batch_size", [1, 4, MAX_TERMS, MAX_TERMS + 1])
@pytest.mark.parametrize("name", MODELS)
def test_steps_without_a_gradient_in_memory_are_the_same_steps(name, batch_size):
    """Small batches step where the gradient is made. A decay that is lost in rounding takes the other way."""
    made, x, data = program(name)
    step = LocalTraining(epochs=3, lr=0.1, batch_size=batch_size)
    runner = Runner(made, np.float32, 1)
    one, _ = rows(runner, x, data, step)
    other, _ = rows(runner, x, data, replace(step, weight_decay=1e-200))
    assert one and all(one[user].tobytes() == other[user].tobytes() for user in one)


@pytest.mark.parametrize("name", ["mlp", "cnn", "table", "image"])
def test_a_user_of_nan_leaves_nothing_behind(name):
    made, x, data = program(name)
    good = rows(Runner(made, np.float32, 1), x, data, LOCALS["adam"])
    data.features[data.users == 2] = np.nan
    data.features[np.flatnonzero(data.users == 4)[3]] = np.inf
    bad = rows(Runner(made, np.float32, 1), x, data, LOCALS["adam"])
    for before, after in zip(good, bad, strict=True):
        assert not np.isfinite(after[2]).all() and not np.isfinite(after[4]).all()
        for user in (0, 1, 3, 5, 6, 7):
            np.testing.assert_array_equal(after[user], before[user])


@pytest.mark.parametrize("local", ["momentum", "adamw"])
@pytest.mark.parametrize("name", ["table", "image"])
def test_threads_do_not_change_a_bit(name, local):
    made, x, _ = program(name)
    shape, task, _ = MODELS[name]
    data = make_silo([1 + user % 6 for user in range(100)], shape, task)  # several blocks of users
    table, some = TrainingTable.of(data.features, data.labels), groups(data)
    one, *others = (
        collect(Runner(made, np.float32, threads).deltas(x, table, some, LOCALS[local])) for threads in (1, 2, 3, 4)
    )
    for other in others:
        for user, row in one.items():
            np.testing.assert_array_equal(other[user], row)


def test_a_label_that_is_no_class_reaches_nothing_else():
    made, x, data = program("creditcard")
    good, _ = rows(Runner(made, np.float32, 1), x, data, LOCALS["sgd"])
    labels = data.labels.astype(np.float64)
    labels[data.users == 2] = [1e18, -1, 2, 0, 1, np.nan, np.inf, -1e300, 1]
    bad = collect(
        Runner(made, np.float32, 1).deltas(x, TrainingTable.of(data.features, labels), groups(data), LOCALS["sgd"])
    )
    assert np.isnan(bad[2]).all()
    for user in (0, 1, 3, 4, 5, 6, 7):
        np.testing.assert_array_equal(bad[user], good[user])


def test_a_window_wider_than_all_images_reads_zeros_only():
    """A border may make a window longer than the longest row of numbers; labels lie behind the zeros."""
    module = nn.Sequential(nn.Conv2d(4, 2, (1, 11), padding=(0, 5)), nn.Flatten(), nn.Linear(2, 2))
    data = make_silo([5, 1, 3], (4, 1, 1), Task(2))
    found = []
    for path in ("kernels", "loop"):
        learner = TorchLearner(module, Task(2), path=path, threads=1)
        x = learner.initial(STREAMS)
        sums = learner.clipped_sums(data, 10.0)(x, np.arange(len(data)), 0, STREAMS)
        found.append([*collect(learner.user_gradients(x, data, STREAMS)).values(), sums])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "cox"])
def test_a_batch_of_several_tiles_is_one_batch(name):
    """More records than go through the layers together: sums, dropout and Cox's risk sets go on across tiles."""
    shape, task, options = MODELS[name]
    module, data = build_model(name, shape, task, options), make_silo([150, 2, 65, 64], shape, task)
    local, found = LocalTraining(epochs=2, lr=0.1, batch_size=140), []
    assert program(name)[0].tile == 64
    for path in ("kernels", "loop"):
        learner = TorchLearner(module, task, path=path, threads=1)
        x = learner.initial(STREAMS)
        made = (learner.user_gradients(x, data, STREAMS), learner.user_deltas(x, data, local, STREAMS))
        found.append([row for part in made for _, row in sorted(collect(part).items())])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=2e-5)


def test_a_loss_of_one_output_is_not_taken_for_several():
    """It would leave the other outputs' gradients as the user before left them."""
    for loss in set(NUMBERS.values()) - {NUMBERS["cross-entropy"]}:
        with pytest.raises(NoKernelError, match="single output"):
            compile_program(nn.Sequential(nn.Linear(3, 2)), (3,), loss)


def test_read_only_records_are_trained_by_the_same_code_and_nothing_given_is_written():
    made, x, data = program("creditcard")
    runner, local = Runner(made, np.float32, 1), LOCALS["sgd"]
    before = rows(runner, x, data, local)
    compiled, kept = len(compiled_interpreter().signatures), [array.copy() for array in (data.features, x)]
    data.features.flags.writeable = x.flags.writeable = False
    for one, other in zip(before, rows(runner, x, data, local), strict=True):
        for user in one:
            np.testing.assert_array_equal(one[user], other[user])
    assert len(compiled_interpreter().signatures) == compiled
    for array, copy in zip((data.features, x), kept, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_a_program_or_records_that_do_not_fit_are_refused_before_a_kernel_runs():
    made, x, data = program("creditcard")
    runner, table, some = Runner(made, np.float32, 1), TrainingTable.of(data.features, data.labels), groups(data)
    for wrong in (
        replace(some, records=some.records + len(data)),
        replace(some, records=-1 - some.records),
        replace(some, counts=some.counts + 30),
        replace(some, starts=some.starts - 1),
        replace(some, keys=some.keys[:-1]),
        replace(some, starts=some.starts[:-1]),
    ):
        with pytest.raises(ModelError, match="do not fit"):
            list(runner.deltas(x, table, wrong, LOCALS["sgd"]))
    with pytest.raises(ModelError, match="do not fit"):
        runner.outputs(x, TrainingTable.of(data.features[:, :5], data.labels))
    others = {name: program(name)[0] for name in ("creditcard", "image", "table")}
    for name, kind, column in (
        ("creditcard", at.LINEAR, at.X),
        ("creditcard", at.LINEAR, at.Y),
        ("creditcard", at.LINEAR, at.GY),
        ("creditcard", at.LINEAR, at.TURNED),
        ("creditcard", at.ROW_NORM, at.RATES),
        ("creditcard", at.DROPOUT, at.MASK),
        ("image", at.CONVOLUTION, at.BORDERED),
        ("image", at.CONVOLUTION, at.G_BORDERED),
        ("image", at.MAX_POOL, at.INDEX),
        ("image", at.REORDER, at.GX),
        ("table", at.ADD, at.SKIP),
        ("table", at.FORK, at.KEPT),
        ("table", at.ADD, at.KEPT),
    ):
        place = others[name].table[:, at.KIND].tolist().index(kind)
        broken = replace(others[name], table=others[name].table.copy())
        broken.table[place, column] = broken.header[at.WORKSPACE] - 3
        with pytest.raises(ModelError, match="outside of its workspace"):
            validate(broken)
    for other in others.values():
        for row, column in np.argwhere(other.table[:, [at.W, at.B]] >= 0):
            broken = replace(other, table=other.table.copy())
            broken.table[row, (at.W, at.B)[column]] = other.header[at.PARAMETERS] - 1
            with pytest.raises(ModelError, match="outside of their block"):
                validate(broken)
    for column in (at.ONE, at.VALUES, at.OUTPUTS, at.G_OUTPUTS):
        broken = replace(made, header=made.header.copy())
        broken.header[column] = made.header[at.WORKSPACE] - 3
        with pytest.raises(ModelError, match="outside of its workspace"):
            validate(broken)


def test_no_two_buffers_of_a_program_overlap():
    """Outputs, inputs and gradients of different operations lie apart, except where a gradient is made in place."""
    for name in MODELS:
        made, _, _ = program(name)
        head, tile = made.header.tolist(), made.tile
        parts = [(0, head[at.PARAMETERS])]
        parts += [(head[c], head[at.PARAMETERS]) for c in (at.GRADIENTS, at.MEANS, at.SQUARES)]
        parts += [
            (head[at.FEATURES], tile * ceiling(head[at.N_FEATURES])),
            (head[at.ZERO], head[at.ZEROS]),
            (head[at.ONE], 1),
        ]
        for row in made.table.tolist():
            parts.append((row[at.Y], tile * row[at.ROW_Y]))
            if row[at.KIND] in (at.FORK, at.ADD):
                parts.append((row[at.KEPT], tile * row[at.ROW_X]))
            if row[at.GY] > 0:
                parts.append((row[at.GY], tile * row[at.ROW_Y]))
        found = sorted(set(parts))
        for (start, size), (following, _) in pairwise(found):
            assert start + size <= following


# --- other processors -----------------------------------------------------------------------------------------------

_TRAIN = """
import hashlib, sys
sys.path.insert(0, "tests/learners"), sys.path.insert(0, "tests/learners/kernels")
import numpy as np
from test_rows import LOCALS, MODELS, program, rows
from uldp.learners.kernels.runner import Runner, TrainingTable
found = hashlib.sha256()
for name in MODELS:
    made, x, data = program(name)
    x = np.round(x, 4)  # torch's initial parameters are not the subject
    for local in LOCALS.values():
        for part in rows(Runner(made, np.float32, 2), x, data, local):
            for user in sorted(part):
                found.update(part[user].tobytes())
    if name != "cox":
        table, records = TrainingTable.of(data.features, data.labels), np.arange(len(data))
        runner, keys = Runner(made, np.float32, 2), np.zeros((len(data), 2), np.uint64)
        found.update(runner.clipped_sum(x, table, records, keys, 0, 0.1).tobytes())
        found.update(runner.outputs(x, table).tobytes())
print(found.hexdigest())
"""


def in_child(**variables):
    environment = {**os.environ, CHECK_VARIABLE: "", **variables}
    done = subprocess.run(
        [sys.executable, "-c", _TRAIN], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names x86's instruction sets")
def test_two_instruction_sets_give_the_same_bits():
    here = in_child()
    assert here == in_child(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="+fma,+avx"), "128-bit integers, no AVX2"
    assert here == in_child(NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="+fma,+avx2,+bmi,+bmi2")


@pytest.mark.slow
def test_no_kernel_reaches_outside_of_its_arrays():
    assert in_child(**{CHECK_VARIABLE: "1"}) == in_child()
