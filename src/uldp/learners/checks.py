"""Checks that every model passes before it is trained: it can be applied, it keeps no state, it couples no records."""

from __future__ import annotations

import copy
import sys
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, nn

from uldp.errors import ModelError, first_line, user_code
from uldp.learners.seeding import seed_cpu
from uldp.limits import MAX_PARAMETERS

Shape = tuple[int, ...]


def _require(holds: bool, problem: str, value: object = None) -> None:
    if not holds:
        raise ModelError(problem, location="model", value=value)


def check_model(module: nn.Module, feature_shape: Shape | None = None) -> None:
    """Refuse a model that cannot be trained user by user: see the messages."""
    for name, layer in module.named_modules():
        _check_layer(name, layer)
    check_parameters(module)
    _require(any(p.requires_grad for p in module.parameters()), "the model has no trainable parameters")
    for name, parameter in module.named_parameters():
        sized = not isinstance(parameter, nn.parameter.UninitializedParameter)
        _require(sized, f"parameter {name!r} has no size yet; give lazy layers their sizes")
        _require(parameter.is_floating_point(), f"parameter {name!r} is {parameter.dtype}, not a real number")
    if feature_shape is not None:
        _check_behaviour(module, feature_shape)


def check_parameters(module: nn.Module) -> None:
    """Refuse a model that is too large to be sent around."""
    count = sum(0 if isinstance(p, nn.parameter.UninitializedParameter) else p.numel() for p in module.parameters())
    _require(count <= MAX_PARAMETERS, f"at most {MAX_PARAMETERS:,} parameters, not {count:,}", count)


def runs_foreign_code(layer: nn.Module) -> bool:
    """Whether a layer runs code that is neither torch's nor uldp's: its class, hooks, or what hangs on the instance."""
    kind = type(layer)
    if kind.__module__ == "torch.nn.utils.parametrize" and "forward" not in vars(kind):
        kind = kind.__mro__[1]  # torch makes such a class on the spot; the parametrizations are layers themselves
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    functions = (value for value in vars(layer).values() if callable(value))
    tensors = (type(tensor) for tensor in (*layer._parameters.values(), *layer._buffers.values()) if tensor is not None)
    return any(hooks) or not all(map(_is_ours, (kind, *functions, *tensors)))


def _is_ours(thing: Any) -> bool:
    """Whether a class or a function is found where it says it is, in torch or uldp: anybody can set ``__module__``."""
    module, name = getattr(thing, "__module__", None) or "", getattr(thing, "__qualname__", "")
    found: Any = sys.modules.get(module) if module.partition(".")[0] in ("torch", "uldp") else None
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not None and found is thing


def _check_layer(name: str, layer: nn.Module) -> None:
    kind = type(layer).__name__
    label = f"layer {name!r} ({kind})" if name else f"the model ({kind})"
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        outside = f"{label} keeps running statistics of the data outside the parameters. "
        remedy = "Use GroupNorm or LayerNorm instead, or track_running_stats=False"
        _require(not layer.track_running_stats, outside + remedy, kind)
    elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
        why = f"{label} mixes the records of a batch, so one person's records would move another's gradient"
        raise ModelError(f"{why}. Use GroupNorm or LayerNorm instead", location="model", value=kind)


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
        raise ModelError(f"the model cannot be copied ({first_line(error)})", location="model") from error
    with torch.random.fork_rng(devices=[]):
        seed_cpu(0)
        inputs, others = (torch.randn(_PROBES, *feature_shape, dtype=torch.float64) for _ in range(2))
        with torch.no_grad():
            for parameter in model.parameters():  # a gate that starts closed may open in training
                parameter.add_(0.1 * torch.randn_like(parameter))
        _check_state(model.train(), inputs, others)
        for training in (True, False):
            _check_coupling(model.train(training), inputs)


def check_scores(module: nn.Module, feature_shape: Shape) -> None:
    """Refuse a classifier that ends in a sigmoid or softmax: the loss applies it, and twice is hardly ever meant.

    Seen by what the model does, whatever its layers are called: its outputs stay between 0 and 1 even with parameters
    thirty times as large. Those of a dead ReLU stay there too, but do not vary.

    Raises:
        ModelError: The outputs are probabilities.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        seed_cpu(0)
        model, inputs = copy.deepcopy(module).double().eval(), torch.randn(8, *feature_shape, dtype=torch.float64)
        if not _are_shares(_seeded_try(model, inputs)):
            return
        for parameter in model.parameters():
            parameter.mul_(30.0).add_(torch.randn_like(parameter))
        scores = torch.cat([_seeded_try(model, size * inputs) for size in (0.01, 1.0, 3.0)])
    if _are_shares(scores) and float(scores.nan_to_num(0.0).max() - scores.nan_to_num(1.0).min()) > 1e-3:
        raise ModelError(
            "its outputs lie between 0 and 1 whatever the records are, as behind a sigmoid or softmax. The loss takes "
            "scores and applies one itself: leave the model's own out (predict_proba gives probabilities)",
            location="model",
        )


def _are_shares(outputs: Tensor) -> bool:
    """Whether all lie between 0 and 1. A softmax that overflows gives NaN, which speaks neither for it nor against."""
    return not bool(((outputs < 0) | (outputs > 1)).any())


def _check_state(model: nn.Module, inputs: Tensor, others: Tensor) -> None:
    """Nothing that one call leaves behind may reach the next: neither in buffers nor in Python attributes."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        before = _seeded_try(model, inputs)
        _seeded_try(model, others)
        after = _seeded_try(model, inputs)
    for name, buffer in model.named_buffers():
        changes = f"buffer {name!r} changes during training: it would carry data past the clipping"
        same = torch.equal(buffer, buffers.get(name, buffer.new_empty(0)))
        _require(same, f"{changes}. Keep state in parameters only", name)
    found, wanted = f"shape {tuple(before.shape)}", f"({len(inputs)}, outputs)"
    shaped = before.ndim == 2 and len(before) == len(inputs)
    _require(shaped, f"for {len(inputs)} records the model returns {found}, not {wanted}")
    _require(before.is_floating_point(), f"the model returns {before.dtype}, not real numbers")
    _require(bool(torch.isfinite(before).all()), "the model returns NaN or infinity for ordinary inputs")
    remembers = "the model remembers earlier records: called twice with the same ones it gives different results"
    _require(torch.equal(before, after), f"{remembers}. Keep state in parameters only")


def _check_coupling(model: nn.Module, inputs: Tensor) -> None:
    """The output for a record must not move with any other record of the batch."""
    coupled = False
    for record in (0, len(inputs) - 1):
        given = inputs.clone().requires_grad_()
        with torch.enable_grad():
            output = _seeded_try(model, given)[record].sum()
            _require(output.requires_grad, "the model's output does not depend on its parameters")
            (moves,) = torch.autograd.grad(output, given, allow_unused=True)
        if moves is not None:
            moves[record] = 0.0
            coupled |= bool((moves != 0).any())
    with torch.no_grad():
        if not model.training:
            together = _seeded_try(model, inputs)
            alone = [_seeded_try(model, inputs[i : i + 1]) for i in range(len(inputs))]
            same = all(part.shape == together[:1].shape for part in alone)
            _require(same, "the model returns another shape for one record than for several")
            coupled |= not torch.allclose(together, torch.cat(alone), rtol=1e-6, atol=1e-9, equal_nan=True)
    depends = "the result for one record depends on the other records of the batch"
    _require(not coupled, f"{depends}: one person's records would move another's gradient")


def _seeded_try(model: nn.Module, inputs: Tensor) -> Tensor:
    seed_cpu(1)
    shape = tuple(inputs.shape[1:])
    with user_code(ModelError, f"the model cannot be applied to {len(inputs)} record(s) of shape {shape}", "model"):
        outputs = model(inputs)
    if not isinstance(outputs, Tensor):
        raise ModelError(f"the model returns {type(outputs).__name__}, not a tensor", location="model")
    return outputs
