"""The zoo of models, and how a model comes from its name.

A later entry is one function with the decorator :func:`register`; its keyword-only parameters are the options.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import torch
from torch import nn

from uldp.data.federation import Task
from uldp.errors import ConfigError, ModelError, did_you_mean, format_value, require, user_code
from uldp.learners.checks import Shape, check_model, check_parameters, runs_foreign_code
from uldp.learners.initialisers import WrittenOutDraws
from uldp.learners.seeding import seed_cpu
from uldp.limits import MAX_LAYERS, MAX_PARAMETERS, check_whole
from uldp.plugins import import_user_module
from uldp.rng import Streams

Factory = Callable[..., nn.Module]

ZOO: Final[dict[str, Factory]] = {}
# How modules that were built here can be built again with other initial parameters.
_RECIPES: Final[weakref.WeakKeyDictionary[nn.Module, Callable[[], nn.Module]]] = weakref.WeakKeyDictionary()


def register(name: str) -> Callable[[Factory], Factory]:
    """Add a function (feature_shape, task, *, options...) -> nn.Module to the zoo."""

    def add(factory: Factory) -> Factory:
        ZOO[name] = factory
        return factory

    return add


def build_model(
    name: str,
    feature_shape: Sequence[int],
    task: Task,
    options: Mapping[str, Any] | None = None,
    streams: Streams | None = None,
) -> nn.Module:
    """The model called ``name``: "auto", one of the zoo, or "package.module:factory".

    >>> sum(p.numel() for p in build_model("auto", (13,), Task(classes=2)).parameters())
    14
    """
    shape = tuple(int(size) for size in feature_shape)
    if name == "auto":
        name = _automatic(shape, task)
    if ":" in name:
        factory, arguments = _import_factory(name), dict(options or {})
    elif name in ZOO:
        factory, arguments = ZOO[name], _checked_options(name, options or {})
    else:
        known = ["auto", *sorted(ZOO)]
        unknown = f'unknown model {format_value(name)}. Known models: {", ".join(known)}, or "package.module:factory"'
        unknown += did_you_mean(name, known)
        raise ConfigError(unknown, location="model.name", value=name)

    recipe = _recipe(factory, name, shape, task, arguments)
    if name in ZOO:
        with torch.device("meta"):  # layers without numbers: too large a model is refused before it takes memory
            check_parameters(recipe())
    return _build(recipe, shape, streams or Streams.from_seed(0))


def _recipe(
    factory: Callable[..., object], name: str, shape: Shape, task: Task, arguments: Mapping[str, Any]
) -> Callable[[], nn.Module]:
    def recipe() -> nn.Module:
        instance = f" (for a module with other arguments hand over an instance: {name}(...))"
        hint = instance if isinstance(factory, type) else ""
        called = f"{name!r}, called as a factory with (feature_shape, task){hint}, failed for features of shape {shape}"
        with user_code(ModelError, called, "model.name"):
            module = factory(shape, task, **arguments)
        if not isinstance(module, nn.Module):
            raise ModelError(f"{name!r} returned {type(module).__name__}, not an nn.Module", location="model.name")
        return module

    return recipe


def _build(recipe: Callable[[], nn.Module], shape: Shape, streams: Streams) -> nn.Module:
    module = build_seeded(recipe, streams)
    check_model(module, shape)
    _RECIPES[module] = recipe
    return module


def copy_module(module: object, feature_shape: Shape, task: Task) -> nn.Module:
    """A copy of a module that was handed over: training starts from the parameters that it came with.

    A factory is called instead, as one that an experiment names: training starts from parameters of the seed.
    """
    if callable(module) and not isinstance(module, nn.Module):
        name = getattr(module, "__qualname__", type(module).__qualname__)
        return _build(_recipe(module, name, feature_shape, task, {}), feature_shape, Streams.from_seed(0))
    if not isinstance(module, nn.Module):
        raise ConfigError(f"an nn.Module or the name of a model, not {format_value(module)}", location="model")
    elsewhere = sorted({p.device.type for p in module.parameters()} - {"cpu"})
    if elsewhere:
        raise ModelError(f"its parameters are on {elsewhere[0]}; move it with .cpu()", location="model")
    with user_code(ModelError, "the model cannot be copied", "model"):
        copied = copy.deepcopy(module)
    check_model(copied, feature_shape)
    return copied


def linear_outputs(module: nn.Module) -> int:
    """How many outputs a model W f + b of the features f has, all of it trained; 0 if it is not of this form.

    >>> linear_outputs(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))), linear_outputs(nn.Linear(4, 3, bias=False))
    (3, 0)
    """
    found = list(module) if type(module) is nn.Sequential else [module]
    linear = [layer for layer in found if type(layer) is not nn.Flatten]
    if len(linear) != 1 or type(linear[0]) is not nn.Linear or any(map(runs_foreign_code, (module, *found))):
        return 0
    parts, layer = dict(linear[0].named_parameters()), linear[0]
    others = [name for name, _ in module.named_parameters() if name.rpartition(".")[2] not in ("weight", "bias")]
    if list(parts) != ["weight", "bias"] or list(layer.children()) or others or len(list(module.parameters())) != 2:
        return 0
    return layer.out_features if all(part.requires_grad for part in parts.values()) else 0


def build_seeded(recipe: Callable[[], nn.Module], streams: Streams) -> nn.Module:
    """Build under a generator that starts from ``streams``; torch's own generator stays where it is."""
    with torch.random.fork_rng(devices=[]), WrittenOutDraws():
        seed_cpu(streams.child("parameters").word() >> 1)
        return recipe()


def initial_module(module: nn.Module, streams: Streams) -> nn.Module:
    """The module with fresh initial parameters; one that was not built by :func:`build_model` is taken as it is."""
    recipe = _RECIPES.get(module)
    return module if recipe is None else build_seeded(recipe, streams)


def _automatic(shape: Shape, task: Task) -> str:
    if task.kind == "survival":
        return "cox"
    if len(shape) == 3:
        return "cnn"
    return "logistic" if task.kind == "classification" else "linear"


def _import_factory(name: str) -> Factory:
    path, _, attribute = name.partition(":")
    where = "it must be installed, or lie in the folder where the command is started"
    with user_code(ConfigError, f"{name!r}: module {path!r} cannot be imported ({where})", "model.name"):
        found: Any = import_user_module(path)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{name!r}: module {path!r} has no {attribute!r}", location="model.name", value=name)
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{name!r} cannot be called", location="model.name", value=name)
    return found  # type: ignore[no-any-return]


def _checked_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(ZOO[name]).parameters.values()
    known = sorted(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    for option in options:
        if option not in known:
            listed = f"Known options: {', '.join(known)}" if known else "It has none"
            unknown = f"unknown option {option!r} of model {name!r}. {listed}."
            raise ConfigError(unknown, location="model.options", value=option)
    return dict(options)


# --- options --------------------------------------------------------------------------------------------------


def _outputs(task: Task, single: bool = False) -> int:
    if task.kind != "classification":
        return 1
    return 1 if single and task.classes == 2 else task.classes


def _rate(value: Any, option: str) -> float:
    valid = not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < 1
    require(valid, f"model.options.{option}", value, "a number from 0 to below 1")
    return float(value)


def _sizes(value: Any, option: str) -> list[int]:
    location = f"model.options.{option}"
    values = [value] if isinstance(value, int) and not isinstance(value, bool) else value
    require(isinstance(values, list | tuple), location, value, "a list of positive whole numbers")
    require(len(values) <= MAX_LAYERS, location, len(values), f"at most {MAX_LAYERS} layers")
    return [check_whole(size, 1, MAX_PARAMETERS, location) for size in values]


def _choice(value: Any, option: str, known: Sequence[str]) -> str:
    if value not in known:
        unknown = f"unknown value {format_value(value)}. Known: {', '.join(known)}"
        raise ConfigError(unknown, location=f"model.options.{option}", value=value)
    return str(value)


def _stack_for_rows(shape: Shape, *stack: nn.Module) -> nn.Sequential:
    """The layers for rows of features; images are flattened first."""
    return nn.Sequential(*([nn.Flatten()] if len(shape) > 1 else []), *stack)


def _images(name: str, shape: Shape, least: int) -> None:
    if len(shape) != 3 or min(shape[1:]) < least:
        needed = f"images (channels, height, width) of at least {least}x{least}"
        wrong = f"model {name!r} needs {needed}, not features of shape {shape}"
        raise ConfigError(wrong, location="model.name", value=name)


def _require_task(kind: str, name: str, task: Task) -> None:
    if task.kind != kind:
        raise ConfigError(f"model {name!r} is for {kind}, the task is {task.kind}", location="model.name", value=name)


# --- the zoo --------------------------------------------------------------------------------------------------


@register("logistic")
def logistic(shape: Shape, task: Task) -> nn.Module:
    """Logistic regression: one logit for two classes, one per class otherwise."""
    _require_task("classification", "logistic", task)
    return _stack_for_rows(shape, nn.Linear(prod(shape), _outputs(task, single=True)))


@register("linear")
def linear(shape: Shape, task: Task) -> nn.Module:
    """Linear regression."""
    _require_task("regression", "linear", task)
    return _stack_for_rows(shape, nn.Linear(prod(shape), 1))


@register("cox")
def cox(shape: Shape, task: Task) -> nn.Module:
    """Linear Cox regression. Adding a number to all scores changes nothing: the bias counts, but does not move."""
    _require_task("survival", "cox", task)
    return _stack_for_rows(shape, nn.Linear(prod(shape), 1))


@register("mlp")
def mlp(
    shape: Shape, task: Task, *, hidden: Any = (64,), dropout: Any = 0.0, norm: Any = "none", activation: Any = "relu"
) -> nn.Module:
    """Dense layers; each hidden one with an activation, and a norm and dropout on demand."""
    rate = _rate(dropout, "dropout")
    norms = {"none": None, "layer": nn.LayerNorm, "group": lambda size: nn.GroupNorm(1, size)}
    activations = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "leaky-relu": nn.LeakyReLU}
    make_norm = norms[_choice(norm, "norm", tuple(norms))]
    make_activation = activations[_choice(activation, "activation", tuple(activations))]
    stack: list[nn.Module] = []
    width = prod(shape)
    for size in _sizes(hidden, "hidden"):
        stack += [nn.Linear(width, size), make_activation()]
        if make_norm is not None:
            stack.append(make_norm(size))
        if rate:
            stack.append(nn.Dropout(rate))
        width = size
    return _stack_for_rows(shape, *stack, nn.Linear(width, _outputs(task, single=True)))


@register("cnn")
def cnn(
    shape: Shape, task: Task, *, channels: Any = (10, 20), hidden: Any = 50, dropout: Any = 0.5, dropout2d: Any = 0.0
) -> nn.Module:
    """Two convolutions with pooling and two dense layers; on 1x28x28 images of 10 classes 21,840 parameters.

    The kernel is 5x5 without padding; images below 16x16 get 3x3 with padding, so that something is left to pool.
    """
    _images("cnn", shape, 4)
    sizes = _sizes(channels, "channels")
    dense = _sizes(hidden, "hidden")
    if len(sizes) != 2 or len(dense) != 1:
        raise ConfigError("two numbers of channels and one hidden size", location="model.options", value=channels)
    kernel, padding = (5, 0) if min(shape[1:]) >= 16 else (3, 1)
    rate, rate2d = _rate(dropout, "dropout"), _rate(dropout2d, "dropout2d")
    height, width = (_after_convolutions(size, kernel, padding) for size in shape[1:])
    return nn.Sequential(
        nn.Conv2d(shape[0], sizes[0], kernel, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(sizes[0], sizes[1], kernel, padding=padding),
        *([nn.Dropout2d(rate2d)] if rate2d else []),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(sizes[1] * height * width, dense[0]),
        nn.ReLU(),
        *([nn.Dropout(rate)] if rate else []),
        nn.Linear(dense[0], _outputs(task)),
    )


def _after_convolutions(size: int, kernel: int, padding: int) -> int:
    for _ in range(2):
        size = (size + 2 * padding - kernel + 1) // 2
    return size


@register("creditcard")
def creditcard(shape: Shape, task: Task, *, width: Any = 30, dropout: Any = 0.5) -> nn.Module:
    """Five blocks of dense, ReLU and group norm, dropout on all but the first: 5,012 parameters for 30 features."""
    rate = _rate(dropout, "dropout")
    sizes = _sizes(width, "width")
    require(len(sizes) == 1, "model.options.width", width, "one whole number")
    stack: list[nn.Module] = []
    inputs = prod(shape)
    for block in range(5):
        stack += [nn.Linear(inputs, sizes[0]), nn.ReLU(), nn.GroupNorm(1, sizes[0])]
        if block and rate:
            stack.append(nn.Dropout(rate))
        inputs = sizes[0]
    return _stack_for_rows(shape, *stack, nn.Linear(inputs, _outputs(task)))


# The nets of SRR-FL (CODASPY 2024). The paper gives their numbers of parameters, and no layers but "two-layer" and
# "VGG-like". medical-cnn is the net of the authors' notebook. The other arrangements below are our guess: of those that
# we searched (3x3 convolutions, widths and dense layers in powers of two), the most ordinary one that has the published
# number exactly. Others have it too.


@register("mnist-two-layer")
def mnist_two_layer(shape: Shape, task: Task) -> nn.Module:
    """Two 3x3 convolutions of 16 and 32 channels with pooling, one dense layer: 20,490 parameters for 1x28x28.

    No net of two dense layers on 784 inputs has that number.
    """
    _images("mnist-two-layer", shape, 4)
    return nn.Sequential(
        *_convolutions(shape[0], (16,), padding=1, groups=0),
        *_convolutions(16, (32,), padding=1, groups=0),
        nn.Flatten(),
        nn.Linear(32 * (shape[1] // 4) * (shape[2] // 4), _outputs(task)),
    )


@register("vgg-cifar")
def vgg_cifar(shape: Shape, task: Task, *, groups: Any = 8, dropout: Any = 0.0) -> nn.Module:
    """Convolutions 32, 32, pool, 64, 64, pool, dense 512, each with a group norm: 2,169,770 parameters for 3x32x32.

    Such nets usually have batch norm, which mixes the records of a batch; group norm has as many parameters.
    """
    _images("vgg-cifar", shape, 4)
    allowed = type(groups) is int and groups in (1, 2, 4, 8, 16, 32)
    require(allowed, "model.options.groups", groups, "1, 2, 4, 8, 16 or 32")
    rate = _rate(dropout, "dropout")
    return nn.Sequential(
        *_convolutions(shape[0], (32, 32), padding=1, groups=groups),
        *_convolutions(32, (64, 64), padding=1, groups=groups),
        nn.Flatten(),
        nn.Linear(64 * (shape[1] // 4) * (shape[2] // 4), 512),
        nn.GroupNorm(groups, 512),
        nn.ReLU(),
        *([nn.Dropout(rate)] if rate else []),
        nn.Linear(512, _outputs(task)),
    )


@register("vgg-medical")
def vgg_medical(shape: Shape, task: Task, *, dropout: Any = 0.0) -> nn.Module:
    """Convolutions as in vgg-cifar, without padding and norm, dense 512, 16, 16: 5,611,878 parameters for 1x64x64.

    That there is no norm fits the published range of all weights, 0 +- 0.075: a norm's scales begin at 1.
    """
    _images("vgg-medical", shape, 16)
    rate = _rate(dropout, "dropout")
    height, width = (((size - 4) // 2 - 4) // 2 for size in shape[1:])
    dense: list[nn.Module] = []
    inputs = 64 * height * width
    for size in (512, 16, 16):
        dense += [nn.Linear(inputs, size), nn.ReLU()]
        if rate and size == 512:
            dense.append(nn.Dropout(rate))
        inputs = size
    return nn.Sequential(
        *_convolutions(shape[0], (32, 32), padding=0, groups=0),
        *_convolutions(32, (64, 64), padding=0, groups=0),
        nn.Flatten(),
        *dense,
        nn.Linear(inputs, _outputs(task)),
    )


@register("medical-cnn")
def medical_cnn(shape: Shape, task: Task) -> nn.Module:
    """3x3 convolutions of 6 and 16 channels with pooling, dense 120, 84, 20: 5,611,878 parameters for 3x224x224.

    On the 64 x 64 grey images of the data set it has 389,370.
    """
    _images("medical-cnn", shape, 16)
    height, width = (((size - 2) // 2 - 2) // 2 for size in shape[1:])
    dense: list[nn.Module] = []
    inputs = 16 * height * width
    for size in (120, 84, 20):
        dense += [nn.Linear(inputs, size), nn.ReLU()]
        inputs = size
    return nn.Sequential(
        *_convolutions(shape[0], (6,), padding=0, groups=0),
        *_convolutions(6, (16,), padding=0, groups=0),
        nn.Flatten(),
        *dense,
        nn.Linear(inputs, _outputs(task)),
    )


def _convolutions(inputs: int, widths: Sequence[int], padding: int, groups: int) -> list[nn.Module]:
    """3x3 convolutions with ReLU, and a norm if there are groups; then pooling."""
    stack: list[nn.Module] = []
    for width in widths:
        stack.append(nn.Conv2d(inputs, width, 3, padding=padding))
        if groups:
            stack.append(nn.GroupNorm(groups, width))
        stack.append(nn.ReLU())
        inputs = width
    return [*stack, nn.MaxPool2d(2)]
