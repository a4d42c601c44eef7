"""Every kernel against its numpy twin: forward, backward and a few steps, in all sizes from 1 to 40 and ragged ones.

All go through programs of the one compiled interpreter. A kernel's backward pass is seen by the parameters before it.
The stated bounds are relative to the largest number of a result: float64 keeps 1e-11, float32 2e-5 (6e-8 per
operation; sums of some hundred terms, and norms that divide by small deviations, lose two digits).
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from numpy_twin import ACTIVATIONS, LOSSES, Call, mirror, optimise
from torch import nn

from uldp.learners.base import LocalTraining
from uldp.learners.blocks import Embedding, Residual
from uldp.learners.kernels.objectives import NUMBERS
from uldp.learners.kernels.program import compile_program
from uldp.learners.kernels.runner import Groups, Runner, TrainingTable

LIMITS = {np.float32: 2e-5, np.float64: 1e-11}
KEY = 0x0123456789ABCDEF
GENERATOR = np.random.default_rng(0)
SIZES = range(1, 41)


@pytest.fixture(autouse=True)
def _same_numbers_whatever_ran_before(request):
    """Of each test its own: float32 keeps the stated bound but for norms that divide by tiny deviations."""
    seed = zlib.crc32(request.node.name.encode())
    GENERATOR.bit_generator.state = np.random.default_rng(seed).bit_generator.state


def close(found, expected, dtype):
    np.testing.assert_allclose(found, expected, rtol=0, atol=LIMITS[dtype] * max(1.0, np.abs(expected).max()))


def flat(arrays):
    return np.concatenate([array.ravel() for array in arrays])


def with_random_parameters(module):
    """Parameters that float32 holds exactly, none of them zero or one."""
    with torch.no_grad():
        for parameter in module.parameters():
            size = 1 / np.sqrt(parameter[0].numel()) if parameter.ndim > 1 else 1.0
            values = GENERATOR.normal(scale=size, size=tuple(parameter.shape)).astype(np.float32)
            parameter.copy_(torch.from_numpy(values))
    return module


def records(shape, count, loss, outputs, whole=False):
    features = GENERATOR.integers(-1, 6, (count, *shape)) if whole else GENERATOR.normal(size=(count, *shape))
    if loss == "cross-entropy":
        labels = GENERATOR.integers(0, outputs, count)
    elif loss == "binary cross-entropy":
        labels = GENERATOR.integers(0, 2, count)
    elif loss == "squared error":
        labels = GENERATOR.normal(size=count)
    else:
        labels = GENERATOR.integers(1, 1 + count, count) * GENERATOR.choice([-1, 1], count)
    return features.astype(np.float32), labels.astype(np.float32).astype(np.float64)


def agree(module, shape, count=5, loss="cross-entropy", whole=False, dtypes=(np.float32, np.float64)):
    """Outputs and gradients of the kernels are those of the twin."""
    module = with_random_parameters(module)
    twin = mirror(module)
    outputs = twin.forward(np.zeros((1, *shape)), Call(training=False)).shape[1]
    features, labels = records(shape, count, loss, outputs, whole)
    exact = features.astype(np.float64)
    expected = twin.forward(exact, Call(training=False))
    twin.backward(LOSSES[loss](twin.forward(exact, Call(KEY)), labels))
    gradient, x = flat(twin.gradients), flat(p.detach().numpy() for p in module.parameters())
    for dtype in dtypes:
        runner = Runner(compile_program(module, shape, NUMBERS[loss]), dtype, 1)
        table = TrainingTable.of(features, labels)
        close(runner.outputs(x, table), expected, dtype)
        ((_, rows),) = runner.gradients(x, table, everybody(count))
        close(rows[0], gradient, dtype)


def everybody(count):
    """One user with all records."""
    zero = np.zeros(1, dtype=np.int64)
    keys = np.array([[KEY, 0]], dtype=np.uint64)
    return Groups(zero, zero, np.array([count]), np.arange(count), keys)


# --- products, biases, losses ---------------------------------------------------------------------------------------


def test_linear_layers_in_all_sizes():
    """m records, k inputs, h hidden and n outputs: each takes all values from 1 to 40, next to all kinds of others."""
    orders = [GENERATOR.permutation(40) + 1 for _ in range(4)]
    for m, k, h, n in zip(*orders, strict=True):
        agree(nn.Sequential(nn.Linear(k, h), nn.Linear(h, n, bias=bool(m % 2))), (k,), m)


@pytest.mark.parametrize("m", [65, 150])
def test_linear_layers_with_more_records_than_a_tile(m):
    agree(nn.Sequential(nn.Linear(3, 17), nn.Linear(17, 9)), (3,), m)


@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "cross-entropy"])
def test_losses_of_one_output(loss):
    for m in SIZES:
        agree(nn.Sequential(nn.Linear(2, 1)), (2,), m, loss)


def test_cross_entropy():
    for n in SIZES:
        agree(nn.Sequential(nn.Linear(2, n, bias=False)), (2,), 1 + n % 9)


# --- activations, norms, dropout ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(kind):
    for n in SIZES:
        agree(nn.Sequential(nn.Linear(2, n), kind(), nn.Linear(n, 2)), (2,), 1 + n % 5)


@pytest.mark.parametrize("affine", [True, False])
def test_norms_of_rows(affine):
    for n in range(2, 41):  # of one number alone a norm leaves the shift
        norms = [(nn.LayerNorm(n, elementwise_affine=affine), 1)]
        norms += [(nn.GroupNorm(g, n, affine=affine), g) for g in (1, 2, 3, 4, 5, 10) if n % g == 0 and n > g]
        for norm, groups in norms:
            # The deviation of two or three numbers may be as small as float32's rounding: those in float64 only.
            dtypes = list(LIMITS)[1 if n < 4 * groups else 0 :]
            agree(nn.Sequential(nn.Linear(2, n), norm, nn.Linear(n, 2)), (2,), 3, dtypes=dtypes)


def test_norms_of_images():
    for channels in SIZES:
        groups = GENERATOR.choice([g for g in range(1, channels + 1) if channels % g == 0])
        height, width = GENERATOR.integers(2, 5, 2)
        norm = nn.GroupNorm(int(groups), channels, affine=bool(channels % 3))
        agree(images(channels, height, width, norm), (2, height, width), 3)


def test_norms_of_flattened_images():
    for channels, groups in ((2, 3), (3, 9), (5, 2), (8, 4), (9, 6)):
        size = channels * 6
        stack = [nn.Conv2d(1, channels, 1), nn.Flatten(), nn.GroupNorm(groups, size), nn.Linear(size, 2)]
        agree(nn.Sequential(*stack), (1, 2, 3), 4)


def test_dropout():
    for n in SIZES:
        stack = [nn.Linear(2, n), nn.Dropout(0.3), nn.Linear(n, n), nn.Dropout(0.75), nn.Linear(n, 2)]
        agree(nn.Sequential(*stack), (2,), 1 + n % 4)


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d])
def test_dropout_of_images(kind):
    for channels in (1, 2, 5, 8, 9):
        agree(images(channels, 3, 2, kind(0.4)), (2, 3, 2), 3)


# --- images ---------------------------------------------------------------------------------------------------------


def images(channels, height, width, layer):
    """A layer on so many channels, between a convolution that sees its gradient and a linear layer."""
    stack = nn.Sequential(nn.Conv2d(2, channels, 1), layer, nn.Flatten())
    size = mirror(stack).forward(np.zeros((1, 2, height, width)), Call(training=False)).shape[1]
    return nn.Sequential(*stack, nn.Linear(size, 2))


def test_convolutions():
    """All numbers of channels from 1 to 40 on both sides, with kernels, strides and borders of all kinds."""
    for inputs, outputs in zip(GENERATOR.permutation(40) + 1, GENERATOR.permutation(40) + 1, strict=True):
        kernel, stride, padding = (tuple(GENERATOR.integers(low, 4, 2).tolist()) for low in (1, 1, 0))
        height, width = GENERATOR.integers(3, 7, 2)
        layer = nn.Conv2d(int(inputs), int(outputs), kernel, stride, padding, bias=bool(inputs % 2))
        agree(images(int(inputs), height, width, layer), (2, height, width), 2)


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 16, 17, 31, 40])
def test_long_images(width):
    layer = nn.Conv2d(3, 4, (2, min(width, 5)), stride=(1, 2), padding=(1, 0))
    agree(images(3, 2, width, layer), (2, 2, width), 2)


def pools():
    for channels in SIZES:
        kernel = GENERATOR.integers(1, 5, 2)
        stride, padding = GENERATOR.integers(1, 5, 2), [GENERATOR.integers(0, k // 2 + 1) for k in kernel]
        sizes = [tuple(int(v) for v in values) for values in (kernel, stride, padding)]
        yield channels, sizes, bool(channels % 2), GENERATOR.integers(4, 9, 2)


def test_max_pooling():
    for channels, sizes, ceil, (height, width) in pools():
        agree(images(channels, height, width, nn.MaxPool2d(*sizes, ceil_mode=ceil)), (2, height, width), 2)


@pytest.mark.parametrize("count_border", [True, False])
def test_mean_pooling(count_border):
    for channels, sizes, ceil, (height, width) in pools():
        layer = nn.AvgPool2d(*sizes, ceil_mode=ceil, count_include_pad=count_border)
        agree(images(channels, height, width, layer), (2, height, width), 2)


# --- embedding and shortcuts ----------------------------------------------------------------------------------------


def test_embeddings():
    """Categories -1 to 5 for tables of 1 to 7 rows: some are unknown, and most occur several times in a batch."""
    for n in SIZES:
        columns = None if n % 2 else 1 + n % 3
        others = 0 if columns is None else 4 - columns
        size = (4 - others) * n + others
        agree(nn.Sequential(Embedding(1 + n % 7, n, columns), nn.Linear(size, 3)), (4,), 1 + n % 9, whole=True)


def test_residual_additions():
    for n in SIZES:
        inner = Residual(nn.Sequential(nn.ReLU(), nn.Linear(n, n), nn.Tanh()))
        outer = Residual(nn.Sequential(nn.Linear(n, 3), nn.Linear(3, n), inner))
        agree(nn.Sequential(nn.Linear(2, n), outer, nn.Identity(), nn.Linear(n, 2)), (2,), 3)


def test_residual_additions_of_images():
    for channels in (1, 2, 5, 8, 9):
        block = Residual(nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.SiLU()))
        agree(images(channels, 4, 3, block), (2, 4, 3), 3)


# --- numbers that are none ------------------------------------------------------------------------------------------

ON_IMAGES = {
    **{kind.__name__: kind() for kind in ACTIVATIONS},
    "max": nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
    "mean": nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
    "norm": nn.GroupNorm(3, 9),
    "dropout": nn.Dropout(0.9),
    "convolution": nn.Conv2d(9, 2, 3, stride=2, padding=1),
    "residual": Residual(nn.ReLU()),
}


@pytest.mark.parametrize("pixel", [(0, 0, 0), (1, 2, 3), (1, 4, 4)])
@pytest.mark.parametrize("name", ON_IMAGES)
def test_nan_reaches_the_outputs_and_the_gradient(name, pixel):
    """One pixel of one record: no comparison, mask or window may swallow it, and no other record has it."""
    module = with_random_parameters(images(9, 5, 5, ON_IMAGES[name]))
    features, labels = records((2, 5, 5), 3, "cross-entropy", 2)
    x = flat(p.detach().numpy() for p in module.parameters())
    runner = Runner(compile_program(module, (2, 5, 5), NUMBERS["cross-entropy"]), np.float32, 1)
    before = runner.outputs(x, TrainingTable.of(features, labels))
    features[(1, *pixel)] = np.nan
    table = TrainingTable.of(features, labels)
    outputs = runner.outputs(x, table)
    assert np.isnan(outputs[1]).all()
    np.testing.assert_array_equal(outputs[[0, 2]], before[[0, 2]])
    ((_, rows),) = runner.gradients(x, table, everybody(3))
    assert not np.isfinite(rows).all()


# --- optimisers -----------------------------------------------------------------------------------------------------

OPTIMISERS = {
    "sgd": LocalTraining(epochs=4, lr=0.1, weight_decay=0.1),
    "momentum": LocalTraining(epochs=4, lr=0.1, weight_decay=0.1, momentum=0.7),
    "adam": LocalTraining(epochs=4, lr=0.1, weight_decay=0.1, optimizer="adam"),
    "adamw": LocalTraining(epochs=4, lr=0.1, weight_decay=0.1, optimizer="adamw"),
}


@pytest.mark.parametrize("local", OPTIMISERS.values(), ids=OPTIMISERS)
def test_optimisers(local):
    """Four steps on linear regressions of 1 to 40 inputs, with dropout: every step draws anew."""
    for n in SIZES:
        module = with_random_parameters(nn.Sequential(nn.Dropout(0.2), nn.Linear(n, 1)))
        features, labels = records((n,), 5, "squared error", 1)

        def gradient(x, step, module=module, features=features, labels=labels):
            net = mirror(module)
            net.layers[1].parameters = [x[None, :-1], x[-1:]]
            outputs = net.forward(features.astype(np.float64), Call(KEY, step))
            net.backward(LOSSES["squared error"](outputs, labels))
            return flat(net.gradients)

        start = flat(p.detach().double().numpy() for p in module.parameters())
        expected = optimise(start, gradient, 4, local) - start
        for dtype in LIMITS:
            runner = Runner(compile_program(module, (n,), NUMBERS["squared error"]), dtype, 1)
            ((_, rows),) = runner.deltas(start, TrainingTable.of(features, labels), everybody(5), local)
            close(rows[0], expected, dtype)
