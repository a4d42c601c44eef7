"""The zoo of models, and the checks that every model passes before it is trained.

A later entry is one function with the decorator :func:`zoo`; its keyword-only parameters are the options.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, nn

from uldp.data.federation import Task
from uldp.errors import ConfigError, ModelError, first_line
from uldp.rng import Streams

Shape = tuple[int, ...]
Factory = Callable[..., nn.Module]

ZOO: Final[dict[str, Factory]] = {}
# How modules that were built here can be built again with other initial parameters.
_RECIPES: Final[weakref.WeakKeyDictionary[nn.Module, Callable[[], nn.Module]]] = weakref.WeakKeyDictionary()


def zoo(name: str) -> Callable[[Factory], Factory]:
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
        factory, arguments = _import_factory(name), {}
        if options:
            raise ConfigError(
                f"a factory takes no options, but got {', '.join(sorted(options))}", place="model.options"
            )
    elif name in ZOO:
        factory, arguments = ZOO[name], _checked_options(name, options or {})
    else:
        known = ", ".join(["auto", *sorted(ZOO)])
        raise ConfigError(
            f'unknown model {name!r}. Known models: {known}, or "package.module:factory"',
            place="model.name",
            value=name,
        )

    def recipe() -> nn.Module:
        return _call(name, factory, shape, task, arguments)

    module = seeded(recipe, streams or Streams.from_seed(0))
    check_model(module, shape)
    _RECIPES[module] = recipe
    return module


def seeded(recipe: Callable[[], nn.Module], streams: Streams) -> nn.Module:
    """Build under a generator that starts from ``streams``; torch's own generator stays where it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.child("parameters").word() >> 1)
        return recipe()


def initial_module(module: nn.Module, streams: Streams) -> nn.Module:
    """The module with fresh initial parameters; one that was not built by :func:`build_model` is taken as it is."""
    recipe = _RECIPES.get(module)
    return module if recipe is None else seeded(recipe, streams)


def _automatic(shape: Shape, task: Task) -> str:
    if task.kind == "survival":
        return "cox"
    if len(shape) == 3:
        return "cnn"
    return "logistic" if task.kind == "classification" else "linear"


def _import_factory(name: str) -> Factory:
    path, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(path)
    except Exception as error:
        raise ConfigError(
            f"{name!r}: module {path!r} cannot be imported ({first_line(error)})",
            place="model.name",
            value=name,
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{name!r}: module {path!r} has no {attribute!r}", place="model.name", value=name)
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{name!r} cannot be called", place="model.name", value=name)
    return found  # type: ignore[no-any-return]


def _checked_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(ZOO[name]).parameters.values()
    known = sorted(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    for option in options:
        if option not in known:
            listed = f"Known options: {', '.join(known)}" if known else "It has none"
            raise ConfigError(
                f"unknown option {option!r} of model {name!r}. {listed}.", place="model.options", value=option
            )
    return dict(options)


def _call(name: str, factory: Factory, shape: Shape, task: Task, arguments: Mapping[str, Any]) -> nn.Module:
    try:
        module = factory(shape, task, **arguments)
    except (ConfigError, ModelError):
        raise
    except Exception as error:
        raise ModelError(
            f"{name!r} failed for features of shape {shape} ({first_line(error)})",
            place="model.name",
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{name!r} returned {type(module).__name__}, not an nn.Module", place="model.name")
    return module


# --- checks ---------------------------------------------------------------------------------------------------


def check_model(module: nn.Module, feature_shape: Shape | None = None) -> None:
    """Refuse a model that cannot be trained user by user: see the messages."""
    for name, layer in module.named_modules():
        _check_layer(name, layer)
    if not any(p.requires_grad for p in module.parameters()):
        raise ModelError("the model has no trainable parameters", place="model")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ModelError(f"parameter {name!r} has no size yet; give lazy layers their sizes", place="model")
        if not parameter.is_floating_point():
            raise ModelError(f"parameter {name!r} is {parameter.dtype}, not a real number", place="model")
    if feature_shape is not None:
        _check_behaviour(module, feature_shape)


def _check_layer(name: str, layer: nn.Module) -> None:
    kind = type(layer).__name__
    label = f"layer {name!r} ({kind})" if name else f"the model ({kind})"
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(
        layer, nn.modules.instancenorm._InstanceNorm
    ):
        raise ModelError(
            f"{label} mixes the records of a batch, so one person's records would move another's gradient. "
            "Use GroupNorm or LayerNorm instead",
            place="model",
            value=kind,
        )
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        raise ModelError(
            f"{label} keeps running statistics of the data outside the parameters. "
            "Use GroupNorm or LayerNorm instead, or track_running_stats=False",
            place="model",
            value=kind,
        )


def probe(feature_shape: Shape, records: int) -> Tensor:
    """Fixed, harmless features to try a model on."""
    count = records * prod(feature_shape)
    return torch.linspace(-1.0, 1.0, count, dtype=torch.float64).sin().view(records, *feature_shape)


_PROBES: Final = 5


def _check_behaviour(module: nn.Module, feature_shape: Shape) -> None:
    """Try the model: outputs of the right form, no state that training moves, no coupling between records."""
    try:
        model = copy.deepcopy(module).double()
    except Exception as error:
        raise ModelError(f"the model cannot be copied ({first_line(error)})", place="model") from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs, others = (torch.randn(_PROBES, *feature_shape, dtype=torch.float64) for _ in range(2))
        with torch.no_grad():
            for parameter in model.parameters():  # a gate that starts closed may open in training
                parameter.add_(0.1 * torch.randn_like(parameter))
        _check_state(model.train(), inputs, others)
        for training in (True, False):
            _check_coupling(model.train(training), inputs)


def _check_state(model: nn.Module, inputs: Tensor, others: Tensor) -> None:
    """Nothing that one call leaves behind may reach the next: neither in buffers nor in Python attributes."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        before = _seeded_try(model, inputs)
        _seeded_try(model, others)
        after = _seeded_try(model, inputs)
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, buffers.get(name, buffer.new_empty(0))):
            raise ModelError(
                f"buffer {name!r} changes during training: it would carry data past the clipping. "
                "Keep state in parameters only",
                place="model",
                value=name,
            )
    if before.ndim != 2 or len(before) != len(inputs):
        raise ModelError(
            f"for {len(inputs)} records the model returns shape {tuple(before.shape)}, not ({len(inputs)}, outputs)",
            place="model",
        )
    if not before.is_floating_point():
        raise ModelError(f"the model returns {before.dtype}, not real numbers", place="model")
    if not torch.isfinite(before).all():
        raise ModelError("the model returns NaN or infinity for ordinary inputs", place="model")
    if not torch.equal(before, after):
        raise ModelError(
            "the model remembers earlier records: called twice with the same ones it gives different results. "
            "Keep state in parameters only",
            place="model",
        )


def _check_coupling(model: nn.Module, inputs: Tensor) -> None:
    """The output for a record must not move with any other record of the batch."""
    coupled = False
    for record in (0, len(inputs) - 1):
        given = inputs.clone().requires_grad_()
        with torch.enable_grad():
            output = _seeded_try(model, given)[record].sum()
            if not output.requires_grad:
                raise ModelError("the model's output does not depend on its parameters", place="model")
            (moves,) = torch.autograd.grad(output, given, allow_unused=True)
        if moves is not None:
            moves[record] = 0.0
            coupled |= bool((moves != 0).any())
    with torch.no_grad():
        if not model.training:
            together = _seeded_try(model, inputs)
            alone = [_seeded_try(model, inputs[i : i + 1]) for i in range(len(inputs))]
            if any(part.shape != together[:1].shape for part in alone):
                raise ModelError("the model returns another shape for one record than for several", place="model")
            coupled |= not torch.allclose(together, torch.cat(alone), rtol=1e-6, atol=1e-9, equal_nan=True)
    if coupled:
        raise ModelError(
            "the result for one record depends on the other records of the batch: "
            "one person's records would move another's gradient",
            place="model",
        )


def _seeded_try(model: nn.Module, inputs: Tensor) -> Tensor:
    torch.manual_seed(1)
    return _try(model, inputs)


def _try(model: nn.Module, inputs: Tensor) -> Tensor:
    try:
        outputs = model(inputs)
    except Exception as error:
        raise ModelError(
            f"the model cannot be applied to {len(inputs)} record(s) of shape {tuple(inputs.shape[1:])} "
            f"({first_line(error)})",
            place="model",
        ) from error
    if not isinstance(outputs, Tensor):
        raise ModelError(f"the model returns {type(outputs).__name__}, not a tensor", place="model")
    return outputs


# --- options --------------------------------------------------------------------------------------------------


def _outputs(task: Task, single: bool = False) -> int:
    if task.kind != "classification":
        return 1
    return 1 if single and task.classes == 2 else task.classes


def _rate(value: Any, option: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigError(f"a number from 0 to below 1, not {value!r}", place=f"model.options.{option}", value=value)
    return float(value)


def _sizes(value: Any, option: str) -> list[int]:
    values = [value] if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(values, list | tuple) or not all(type(size) is int and size >= 1 for size in values):
        raise ConfigError(
            f"a list of positive whole numbers, not {value!r}", place=f"model.options.{option}", value=value
        )
    return list(values)


def _choice(value: Any, option: str, known: Sequence[str]) -> str:
    if value not in known:
        raise ConfigError(
            f"unknown value {value!r}. Known: {', '.join(known)}",
            place=f"model.options.{option}",
            value=value,
        )
    return str(value)


def _on_rows(shape: Shape, *stack: nn.Module) -> nn.Sequential:
    """The layers for rows of features; images are flattened first."""
    return nn.Sequential(*([nn.Flatten()] if len(shape) > 1 else []), *stack)


def _images(name: str, shape: Shape, least: int) -> None:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ConfigError(
            f"model {name!r} needs images (channels, height, width) of at least {least}x{least}, "
            f"not features of shape {shape}",
            place="model.name",
            value=name,
        )


def _only(kind: str, name: str, task: Task) -> None:
    if task.kind != kind:
        raise ConfigError(f"model {name!r} is for {kind}, the task is {task.kind}", place="model.name", value=name)


# --- the zoo --------------------------------------------------------------------------------------------------


@zoo("logistic")
def logistic(shape: Shape, task: Task) -> nn.Module:
    """Logistic regression: one logit for two classes, one per class otherwise."""
    _only("classification", "logistic", task)
    return _on_rows(shape, nn.Linear(prod(shape), _outputs(task, single=True)))


@zoo("linear")
def linear(shape: Shape, task: Task) -> nn.Module:
    """Linear regression."""
    _only("regression", "linear", task)
    return _on_rows(shape, nn.Linear(prod(shape), 1))


@zoo("cox")
def cox(shape: Shape, task: Task) -> nn.Module:
    """Linear Cox regression. Adding a number to all scores changes nothing: the bias counts, but does not move."""
    _only("survival", "cox", task)
    return _on_rows(shape, nn.Linear(prod(shape), 1))


@zoo("mlp")
def mlp(
    shape: Shape,
    task: Task,
    *,
    hidden: Any = (64,),
    dropout: Any = 0.0,
    norm: Any = "none",
    activation: Any = "relu",
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
    return _on_rows(shape, *stack, nn.Linear(width, _outputs(task, single=True)))


@zoo("cnn")
def cnn(
    shape: Shape,
    task: Task,
    *,
    channels: Any = (10, 20),
    hidden: Any = 50,
    dropout: Any = 0.5,
    dropout2d: Any = 0.0,
) -> nn.Module:
    """Two convolutions with pooling and two dense layers; on 1x28x28 images of 10 classes 21,840 parameters.

    The kernel is 5x5 without padding; images below 16x16 get 3x3 with padding, so that something is left to pool.
    """
    _images("cnn", shape, 4)
    sizes = _sizes(channels, "channels")
    dense = _sizes(hidden, "hidden")
    if len(sizes) != 2 or len(dense) != 1:
        raise ConfigError("two numbers of channels and one hidden size", place="model.options", value=channels)
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


@zoo("creditcard")
def creditcard(shape: Shape, task: Task, *, width: Any = 30, dropout: Any = 0.5) -> nn.Module:
    """Five blocks of dense, ReLU and group norm, dropout on all but the first: 5,012 parameters for 30 features."""
    rate = _rate(dropout, "dropout")
    sizes = _sizes(width, "width")
    if len(sizes) != 1:
        raise ConfigError(f"one whole number, not {width!r}", place="model.options.width", value=width)
    stack: list[nn.Module] = []
    inputs = prod(shape)
    for block in range(5):
        stack += [nn.Linear(inputs, sizes[0]), nn.ReLU(), nn.GroupNorm(1, sizes[0])]
        if block and rate:
            stack.append(nn.Dropout(rate))
        inputs = sizes[0]
    return _on_rows(shape, *stack, nn.Linear(inputs, _outputs(task)))


# The nets of SRR-FL (CODASPY 2024). The paper gives their numbers of parameters, and no layers but "two-layer" and
# "VGG-like". The arrangements below are our guess: of those that we searched (3x3 convolutions, widths and dense
# layers in powers of two), the most ordinary one that has the published number exactly. Others have it too.


@zoo("mnist-two-layer")
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


@zoo("vgg-cifar")
def vgg_cifar(shape: Shape, task: Task, *, groups: Any = 8, dropout: Any = 0.0) -> nn.Module:
    """Convolutions 32, 32, pool, 64, 64, pool, dense 512, each with a group norm: 2,169,770 parameters for 3x32x32.

    Such nets usually have batch norm, which mixes the records of a batch; group norm has as many parameters.
    """
    _images("vgg-cifar", shape, 4)
    if type(groups) is not int or groups not in (1, 2, 4, 8, 16, 32):
        raise ConfigError(f"1, 2, 4, 8, 16 or 32, not {groups!r}", place="model.options.groups", value=groups)
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


@zoo("vgg-medical")
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
