"""A module whose ``forward`` hands its features from layer to layer, as the ``nn.Sequential`` of these layers.

torch.fx calls ``forward`` once, on a copy, with a stand-in for the features, and records what becomes of it. What is
no chain of known layers and functions has no kernel. Recording misses what does not happen to the features (a context
without gradients, a choice by a Python variable), so the chain must also pass a trial: the same outputs and the same
gradients as the module, in training and in evaluation.

>>> class Net(nn.Module):
...     __module__ = "nets"  # a class outside of torch and uldp
...     def __init__(self):
...         super().__init__()
...         self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
...     def forward(self, x):
...         return self.last(torch.relu(self.first(x)))
>>> [type(layer).__name__ for layer in unroll(Net(), (3,))]
['Linear', 'ReLU', 'Linear']
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from uldp.learners.checks import probe, runs_foreign_code
from uldp.learners.kernels.forms import NoKernelError, Shape
from uldp.learners.seeding import seed_cpu

_RECORDS: Final = (1, 4)

Maker = Callable[..., nn.Module]


def _relu(inplace: bool = False) -> nn.Module:
    return nn.ReLU()


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    """Recorded in training: one that does nothing there does nothing ever, or fails the trial."""
    return nn.Dropout(p) if training else nn.Identity()


def _max_pool(
    kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, **more: Any
) -> nn.Module:
    return nn.MaxPool2d(kernel_size, stride, padding, dilation, more.get("return_indices", False), ceil_mode)


#: What the arguments behind the features make of a function, or of a method of tensors.
_FUNCTIONS: Final[dict[Any, Maker]] = {
    torch.relu: _relu,
    functional.relu: _relu,
    functional.leaky_relu: lambda negative_slope=0.01, inplace=False: nn.LeakyReLU(negative_slope),
    torch.tanh: nn.Tanh,
    functional.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    functional.sigmoid: nn.Sigmoid,
    functional.silu: lambda inplace=False: nn.SiLU(),
    functional.gelu: lambda approximate="none": nn.GELU(approximate),
    functional.dropout: _dropout,
    functional.max_pool2d: _max_pool,
    functional.avg_pool2d: nn.AvgPool2d,
    torch.flatten: lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim),
}
_METHODS: Final[dict[str, Maker]] = {
    "relu": _relu,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "flatten": lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim),
    "contiguous": nn.Identity,
}


def unroll(module: nn.Module, feature_shape: Shape) -> nn.Module:
    """The module, or the chain of its layers (these very layers) where its own code hands features through them.

    Raises:
        NoKernelError: Its code does something else.
    """
    if not any(runs_foreign_code(part) for part in module.modules()):
        return module
    kind = type(module).__name__
    chain = nn.Sequential(*_record(module, kind))
    if not _agree(module, chain, feature_shape):
        raise NoKernelError(f"no kernel for {kind}, whose forward does more than to pass x through its layers")
    return chain


class _Recorder(fx.Tracer):
    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) is not nn.Sequential and not runs_foreign_code(m)


def _record(module: nn.Module, kind: str) -> list[nn.Module]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = _Recorder().trace(copy.deepcopy(module).train())
        return _Chain(module).layers(graph)
    except NoKernelError as error:
        raise NoKernelError(f"no kernel for {kind}, whose forward {error}") from None
    except Exception:  # of the module's code, which met a stand-in instead of numbers
        raise NoKernelError(f"no kernel for {kind}, whose forward is no chain of layers") from None


class _Chain:
    """Follows the features through a graph: every step takes what the last one made, and nothing else."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._shapes: set[fx.Node] = set()
        self._batch_sizes: set[fx.Node] = set()

    def layers(self, graph: fx.Graph) -> list[nn.Module]:
        found: list[nn.Module] = []
        current: fx.Node | None = None
        for node in graph.nodes:
            if node.op == "placeholder":
                if current is not None:
                    raise NoKernelError("takes more than the features")
                current = node
            elif node.op == "output":
                if node.args[0] is not current:
                    raise NoKernelError("returns more than the last layer's result")
            elif not self._is_about_shape(node, current):
                found.append(self._layer(node, current))
                current = node
        return found

    def _is_about_shape(self, node: fx.Node, current: fx.Node | None) -> bool:
        """Whether a step only asks for the shape of the features: ``x.shape``, ``x.size(0)``."""
        if not node.args or node.kwargs:
            return False
        call = (node.target, *node.args[1:])
        if node.args[0] is current and call in [(getattr, "shape"), ("size",)]:
            self._shapes.add(node)
            return True
        is_batch = node.args[0] is current and call == ("size", 0)
        is_batch = is_batch or (node.args[0] in self._shapes and call == (operator.getitem, 0))
        if is_batch:
            self._batch_sizes.add(node)
        return is_batch

    def _layer(self, node: fx.Node, current: fx.Node | None) -> nn.Module:
        name = _name(node)
        if node.op == "get_attr":
            raise NoKernelError(f"uses {name} outside of a layer")
        if not node.args or node.args[0] is not current:
            raise NoKernelError(f"does not give {name} what the step before made")
        rest, named = node.args[1:], dict(node.kwargs)
        if node.op == "call_method" and node.target in ("view", "reshape"):
            return self._flattening(rest, name)
        if node.op == "call_module" and not rest and not named:
            return self._module.get_submodule(str(node.target))
        makers: dict[Any, Maker] = _METHODS if node.op == "call_method" else _FUNCTIONS
        if node.op == "call_module" or node.target not in makers or node.all_input_nodes != [current]:
            raise NoKernelError(f"uses {name}")
        return makers[node.target](*rest, **named)

    def _flattening(self, sizes: tuple[Any, ...], name: str) -> nn.Module:
        """``x.view(x.size(0), -1)``, ``x.reshape(-1, 784)``. That 784 is right is seen in the trial."""
        sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
        batch_first = len(sizes) == 2 and (sizes[0] in self._batch_sizes or sizes[0] == -1)
        if not batch_first or not isinstance(sizes[1], int):
            raise NoKernelError(f"uses {name} for more than to flatten")
        return nn.Flatten()


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _agree(module: nn.Module, chain: nn.Module, feature_shape: Shape) -> bool:
    """Whether both give the same outputs and gradients in float64, on harmless features and moved parameters."""
    first, second = copy.deepcopy((module, chain))  # with the parameters that they share
    first.double(), second.double()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        seed_cpu(0)
        with torch.no_grad():
            for parameter in first.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        for training in (True, False):
            first.train(training), second.train(training)
            for records in _RECORDS:
                given = 3.0 * probe(feature_shape, records)
                if not all(map(_same, _try(first, first, given), _try(second, first, given))):
                    return False
    return True


def _try(model: nn.Module, owner: nn.Module, given: Tensor) -> list[Tensor | None]:
    """The outputs, and how they move with every parameter of ``owner``."""
    parameters = [p for p in owner.parameters() if p.requires_grad]
    seed_cpu(1)
    outputs = model(given)
    if not outputs.requires_grad:
        return [outputs]
    weights = torch.linspace(1.0, 2.0, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    return [outputs, *torch.autograd.grad((outputs * weights).sum(), parameters, allow_unused=True)]


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)
