"""Checks that every model passes before it is trained: it can be applied, it keeps no state, it couples no records."""

from __future__ import annotations

import copy
from math import prod
from typing import Final

import torch
from torch import Tensor, nn

from uldp.errors import ModelError, first_line, own_code
from uldp.learners.seeding import seed_cpu
from uldp.limits import MAX_PARAMETERS

Shape = tuple[int, ...]


def check_model(module: nn.Module, feature_shape: Shape | None = None) -> None:
    """Refuse a model that cannot be trained user by user: see the messages."""
    for name, layer in module.named_modules():
        _check_layer(name, layer)
    check_parameters(module)
    if not any(p.requires_grad for p in module.parameters()):
        raise ModelError("the model has no trainable parameters", location="model")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ModelError(f"parameter {name!r} has no size yet; give lazy layers their sizes", location="model")
        if not parameter.is_floating_point():
            raise ModelError(f"parameter {name!r} is {parameter.dtype}, not a real number", location="model")
    if feature_shape is not None:
        _check_behaviour(module, feature_shape)


def check_parameters(module: nn.Module) -> None:
    """Refuse a model that is too large to be sent around."""
    count = sum(0 if isinstance(p, nn.parameter.UninitializedParameter) else p.numel() for p in module.parameters())
    if count > MAX_PARAMETERS:
        raise ModelError(f"at most {MAX_PARAMETERS:,} parameters, not {count:,}", location="model", value=count)


def _check_layer(name: str, layer: nn.Module) -> None:
    kind = type(layer).__name__
    label = f"layer {name!r} ({kind})" if name else f"the model ({kind})"
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(
        layer, nn.modules.instancenorm._InstanceNorm
    ):
        raise ModelError(
            f"{label} mixes the records of a batch, so one person's records would move another's gradient. "
            "Use GroupNorm or LayerNorm instead",
            location="model",
            value=kind,
        )
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        raise ModelError(
            f"{label} keeps running statistics of the data outside the parameters. "
            "Use GroupNorm or LayerNorm instead, or track_running_stats=False",
            location="model",
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
                location="model",
                value=name,
            )
    if before.ndim != 2 or len(before) != len(inputs):
        raise ModelError(
            f"for {len(inputs)} records the model returns shape {tuple(before.shape)}, not ({len(inputs)}, outputs)",
            location="model",
        )
    if not before.is_floating_point():
        raise ModelError(f"the model returns {before.dtype}, not real numbers", location="model")
    if not torch.isfinite(before).all():
        raise ModelError("the model returns NaN or infinity for ordinary inputs", location="model")
    if not torch.equal(before, after):
        raise ModelError(
            "the model remembers earlier records: called twice with the same ones it gives different results. "
            "Keep state in parameters only",
            location="model",
        )


def _check_coupling(model: nn.Module, inputs: Tensor) -> None:
    """The output for a record must not move with any other record of the batch."""
    coupled = False
    for record in (0, len(inputs) - 1):
        given = inputs.clone().requires_grad_()
        with torch.enable_grad():
            output = _seeded_try(model, given)[record].sum()
            if not output.requires_grad:
                raise ModelError("the model's output does not depend on its parameters", location="model")
            (moves,) = torch.autograd.grad(output, given, allow_unused=True)
        if moves is not None:
            moves[record] = 0.0
            coupled |= bool((moves != 0).any())
    with torch.no_grad():
        if not model.training:
            together = _seeded_try(model, inputs)
            alone = [_seeded_try(model, inputs[i : i + 1]) for i in range(len(inputs))]
            if any(part.shape != together[:1].shape for part in alone):
                raise ModelError("the model returns another shape for one record than for several", location="model")
            coupled |= not torch.allclose(together, torch.cat(alone), rtol=1e-6, atol=1e-9, equal_nan=True)
    if coupled:
        raise ModelError(
            "the result for one record depends on the other records of the batch: "
            "one person's records would move another's gradient",
            location="model",
        )


def _seeded_try(model: nn.Module, inputs: Tensor) -> Tensor:
    seed_cpu(1)
    return _try(model, inputs)


def _try(model: nn.Module, inputs: Tensor) -> Tensor:
    shape = tuple(inputs.shape[1:])
    with own_code(ModelError, f"the model cannot be applied to {len(inputs)} record(s) of shape {shape}", "model"):
        outputs = model(inputs)
    if not isinstance(outputs, Tensor):
        raise ModelError(f"the model returns {type(outputs).__name__}, not a tensor", location="model")
    return outputs
