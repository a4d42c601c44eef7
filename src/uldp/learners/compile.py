"""From an ``nn.Sequential`` of well-known layers to batched rules, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torch import nn

from uldp.learners import rules, rules_conv
from uldp.learners.rules import Rule, Shape


class NoRuleError(Exception):
    """The model has a layer, or a use of a layer, without a batched rule."""


@dataclass(frozen=True)
class Compiled:
    """The rules of a model, and how much one record needs."""

    rules: tuple[Rule, ...]
    images: bool
    units: int
    products: int


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested Sequentials in order."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from layers(child)
    elif type(module) is not nn.Identity:
        yield module


def compile_rules(module: nn.Module, feature_shape: Shape) -> Compiled:
    """Fresh rules for the model; :class:`NoRuleError` says why it has none."""
    for part in module.modules():
        # A hook, or a forward of the instance's own, may do anything: rules would silently leave it out.
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or "forward" in vars(part):
            raise NoRuleError(f"{type(part).__name__} has a hook or a forward of its own")
    starts = _starts(module)
    shape = feature_shape
    found = list(layers(module))
    # An image that is flattened at once is a table.
    if len(shape) != 1 and found and type(found[0]) is nn.Flatten:
        shape, found = (prod(shape),), found[1:]
    images = len(shape) == 3
    if len(shape) not in (1, 3):
        raise NoRuleError(f"features of shape {shape}")
    made: list[Rule] = []
    units, products, dropouts = prod(shape), 0, 0
    for layer in found:
        if not type(layer).__module__.startswith("torch.nn.modules."):
            raise NoRuleError(f"no batched rule for {type(layer).__name__}")
        if isinstance(layer, nn.Flatten) and len(shape) == 1:
            continue
        rule, shape, cost = _rule(layer, shape, [starts[id(p)] for p in layer.parameters()], not made, dropouts)
        dropouts += isinstance(rule, rules.Dropout)
        made.append(rule)
        units += cost.units
        products += cost.products
    if len(shape) != 1:
        raise NoRuleError("the result is an image")
    _fuse_first(made, found, starts)
    for below, rule in pairwise(made):
        rule.in_place = below.fresh
    next(rule for rule in made if rule.slots).input_gradient = False
    return Compiled(tuple(made), images, units, products)


def _fuse_first(made: list[Rule], found: list[nn.Module], starts: dict[int, int]) -> None:
    """A first convolution with max-pooling above it becomes one rule."""
    if len(made) > 1 and isinstance(made[0], rules_conv.ConvPatches) and isinstance(made[1], rules_conv.MaxPool):
        layer = found[0]
        assert isinstance(layer, nn.Conv2d)
        fused = rules_conv.ConvPatchesMax(layer, [starts[id(p)] for p in layer.parameters()], made[1].kernel)
        made[:2] = [fused]


def _starts(module: nn.Module) -> dict[int, int]:
    """Where each parameter starts in the flat vector."""
    starts, position = {}, 0
    for parameter in module.parameters():
        if not parameter.requires_grad:
            raise NoRuleError("some parameters are frozen")
        starts[id(parameter)] = position
        position += parameter.numel()
    owners = [id(p) for layer in layers(module) for p in layer.parameters()]
    if sorted(owners) != sorted(starts):
        raise NoRuleError("layers share parameters")
    return starts


@dataclass(frozen=True)
class _Cost:
    units: int
    products: int = 0


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _rule(
    layer: nn.Module, shape: Shape, starts: list[int], is_first: bool, dropouts: int
) -> tuple[Rule, Shape, _Cost]:
    """The rule of one layer, the shape of its result, and its cost."""
    match layer:
        case nn.Linear() if len(shape) == 1:
            return (
                rules.Linear(layer, starts),
                (layer.out_features,),
                _Cost(layer.out_features, layer.weight.numel()),
            )
        case nn.Conv2d() if len(shape) == 3:
            return _convolution(layer, shape, starts, is_first)
        case nn.Flatten() if (layer.start_dim, layer.end_dim) == (1, -1):
            return rules.Flatten(), (prod(shape),), _Cost(prod(shape))
        case nn.GroupNorm() | nn.LayerNorm():
            return _norm(layer, shape, starts), shape, _Cost(2 * prod(shape))
        case nn.Dropout():
            return rules.Dropout(layer.p, dropouts, shape, False), shape, _Cost(2 * prod(shape))
        case nn.Dropout2d() if len(shape) == 3:
            return rules.Dropout(layer.p, dropouts, shape, True), shape, _Cost(prod(shape))
        case nn.MaxPool2d() | nn.AvgPool2d() | nn.AdaptiveAvgPool2d() if len(shape) == 3:
            rule, result = _pool(layer, shape)
            return rule, result, _Cost(2 * prod(shape))
    return _activation(layer), shape, _Cost(prod(shape))


def _activation(layer: nn.Module) -> Rule:
    match layer:
        case nn.ReLU():
            return rules.Relu()
        case nn.LeakyReLU():
            return rules.LeakyRelu(layer.negative_slope)
        case nn.Tanh():
            return rules.Tanh()
        case nn.Sigmoid():
            return rules.Sigmoid()
        case nn.SiLU():
            return rules.Silu()
        case nn.GELU() if layer.approximate == "none":
            return rules.Gelu()
    raise NoRuleError(f"no batched rule for {layer}")


def _convolution(layer: nn.Conv2d, shape: Shape, starts: list[int], is_first: bool) -> tuple[Rule, Shape, _Cost]:
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros" or layer.groups != 1 or layer.dilation != (1, 1):
        raise NoRuleError(f"no batched rule for {layer}")
    size = [
        (length + 2 * padding - kernel) // stride + 1
        for length, padding, kernel, stride in zip(
            shape[1:], layer.padding, layer.kernel_size, layer.stride, strict=True
        )
    ]
    pixels = prod(size)
    use_patches = is_first or tuple(layer.stride) != (1, 1)
    rule = rules_conv.ConvPatches(layer, starts) if use_patches else rules_conv.ConvRows(layer, starts)
    unrolled = layer.weight[0].numel() * pixels if use_patches else 2 * shape[0] * shape[1] * shape[2] * 5
    cost = _Cost(layer.out_channels * pixels + unrolled, layer.weight.numel() * pixels)
    return rule, (layer.out_channels, size[0], size[1]), cost


def _norm(layer: nn.GroupNorm | nn.LayerNorm, shape: Shape, starts: list[int]) -> Rule:
    if isinstance(layer, nn.LayerNorm):
        if len(shape) != 1 or tuple(layer.normalized_shape) != shape:
            raise NoRuleError(f"no batched rule for {layer} on features of shape {shape}")
        return rules.Normalize(shape[0], 1, layer.eps, starts)
    if len(shape) == 1:
        return rules.Normalize(shape[0], layer.num_groups, layer.eps, starts)
    return rules.ImageNorm(shape[0], layer.num_groups, layer.eps, starts)


def _pool(layer: nn.MaxPool2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d, shape: Shape) -> tuple[Rule, Shape]:
    if isinstance(layer, nn.AdaptiveAvgPool2d):
        if layer.output_size not in (1, (1, 1)):
            raise NoRuleError(f"no batched rule for {layer}")
        return rules_conv.AvgPool((shape[1], shape[2])), (shape[0], 1, 1)
    kernel = _pair(layer.kernel_size)
    plain = kernel == _pair(layer.stride) and _pair(layer.padding) == (0, 0) and not layer.ceil_mode
    if isinstance(layer, nn.MaxPool2d):
        plain = plain and _pair(layer.dilation) == (1, 1) and not layer.return_indices
    else:
        plain = plain and layer.divisor_override is None
    if not plain:
        raise NoRuleError(f"no batched rule for {layer}")
    pool = rules_conv.MaxPool if isinstance(layer, nn.MaxPool2d) else rules_conv.AvgPool
    return pool(kernel), (shape[0], shape[1] // kernel[0], shape[2] // kernel[1])
