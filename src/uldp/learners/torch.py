"""The learner: a user's model is trained by compiled kernels, or by autograd where a layer has no kernel.

Either way one user at a time: a row depends on that user's records, on x and on the streams alone, bit for bit
(decision 0004). With kernels, blocks of users are spread over threads, and rows are handed out block by block, so that
memory does not grow with the number of users.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from uldp.data.federation import IntArray, Records, SiloData, Task
from uldp.errors import ConfigError, ModelError, UldpError, foreign_exceptions, require
from uldp.learners import evaluation, metrics
from uldp.learners.base import ClippedSums, LocalTraining, Rows, Vector
from uldp.learners.checks import Shape, check_model, check_scores, probe, runs_foreign_code
from uldp.learners.groups import group_users, record_names
from uldp.learners.kernels.support import unavailable_reason
from uldp.learners.loop import Loop
from uldp.learners.losses import Loss, choose_loss
from uldp.learners.models import initial_module, linear_outputs
from uldp.learners.moments import user_moments
from uldp.learners.prior import Prior
from uldp.learners.randomness import TrainingRandomness
from uldp.rng import Streams

if TYPE_CHECKING:
    from uldp.learners.kernels.runner import Groups, Runner, TrainingTable

PATHS: Final = ("auto", "kernels", "loop")
DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}

MARGIN: Final = 1e-5
"""Kernels clip to (1 - MARGIN) times the clip, so that rounding in float64 never exceeds it: that of one record's norm,
and that of sums of up to three million records, which round differently when one record is missing."""
#: From so many operations per record up, torch is faster than the kernels. The rule must not look at the number of
#: records: a row must not depend on other users.
_LARGE: Final = 5 * 10**7
_EVALUATION_BYTES: Final = 64 * 2**20
_REMEDY: Final = (
    "Write the model as an nn.Sequential of layers that have kernels (nn.Linear, nn.ReLU, nn.Conv2d, ...; "
    "uldp.learners.blocks.Residual for x + f(x)), or with a forward that only passes x from one to the next"
)


def architecture(module: nn.Module) -> str:
    """A digest of the layers, parameters and buffers: names, kinds and shapes.

    Not of how layers print themselves: that may hold addresses in memory, and changes with PyTorch.
    """
    layers = [(name, type(layer).__name__) for name, layer in module.named_modules()]
    parameters = [(name, tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()]
    buffers = [(name, tuple(buffer.shape)) for name, buffer in module.named_buffers()]
    return hashlib.sha256(repr((layers[1:], parameters, buffers)).encode()).hexdigest()


class SlowTrainingWarning(UserWarning):
    """A model is trained by autograd, one user after the other: some layer has no kernel, or the machine has none."""


@dataclass(frozen=True)
class TrainingPath:
    """How records of one shape are trained, and what a record costs.

    ``runner`` runs the kernels, if there are any; ``trainer`` is the same where kernels are the fastest way to train
    and to predict, else None. ``slow`` says why users are trained by the loop where nobody asked for it.
    """

    loss: Loss
    outputs: int
    units: int
    flops: int
    runner: Runner | None
    trainer: Runner | None
    slow: str = ""
    layers: tuple[type, ...] = ()
    """Classes of third-party layers, whose code the loop runs on records. Kernels run none of it."""

    @property
    def path(self) -> str:
        return "loop" if self.trainer is None else "kernels"


class TorchLearner:
    """Trains ``module`` for every user of a silo; see :class:`~uldp.learners.base.Learner`.

    ``memory_mb`` bounds the working memory of evaluation, ``threads`` defaults to torch's own number. ``path`` is
    "auto" except in tests: kernels where all layers have them, else a loop over users.
    """

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        memory_mb: int = 256,
        path: str = "auto",
        threads: int | None = None,
        prior: Prior | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"unknown dtype {dtype!r}. Known: {', '.join(DTYPES)}", location="run.dtype", value=dtype)
        if path not in PATHS:
            raise ConfigError(f"unknown path {path!r}. Known: {', '.join(PATHS)}", location="path", value=path)
        require(memory_mb >= 1, "run.memory_mb", memory_mb, "at least 1")
        require(threads is None or threads >= 1, "run.threads", threads, "at least 1")
        check_model(module)
        self._original = module
        self.architecture = architecture(module)
        self._task = task
        self._dtype = DTYPES[dtype]
        self._device = _find_device(device)
        self._module = copy.deepcopy(module).to(device=self._device, dtype=self._dtype)
        self._names = [name for name, p in module.named_parameters() if p.requires_grad]
        self.layer_sizes = tuple(p.numel() for p in module.parameters() if p.requires_grad)
        """How many parameters each of the model's tensors has."""
        self.linear_outputs = linear_outputs(module) if task.kind != "survival" else 0
        """How many outputs the model W f + b has; 0 if it is not of this form, or predicts survival."""
        self._memory = memory_mb * 2**20
        self._path = path
        self._threads = threads
        self._prior = prior
        self._paths: dict[Shape, TrainingPath] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A pickle, or a deep copy, without paths: the kernels' workspaces hold the records of the last user."""
        return {**self.__dict__, "_paths": {}}

    @property
    def module(self) -> nn.Module:
        """The model that was given, untouched by training."""
        return self._original

    @property
    def dimension(self) -> int:
        return sum(self.layer_sizes)

    def initial(self, streams: Streams) -> Vector:
        """x_0; for a module that was not made by ``build_model``, its own parameters."""
        module = initial_module(self._original, streams)
        parts = [p.detach().reshape(-1).double() for p in module.parameters() if p.requires_grad]
        x = torch.cat(parts).cpu().numpy()
        return x if self._prior is None else self._prior.apply(x, module, self._task)

    # --- training -------------------------------------------------------------------------------------------

    def user_deltas(
        self, x: Vector, data: SiloData, local: LocalTraining, streams: Streams
    ) -> Iterator[tuple[IntArray, Rows]]:
        if not len(data):
            return
        path = self.training(tuple(data.features.shape[1:]))
        if path.trainer is not None:
            table, groups = _group_records(data, data.users, streams)
            yield from path.trainer.deltas(self._check_length(x), table, groups, local)
            return
        loop = Loop(self._module, path.loss)
        yield from self._one_by_one(
            path, x, data, streams, lambda start, f, y, randomness: loop.delta(start, f, y, local, randomness)
        )

    def user_gradients(self, x: Vector, data: SiloData, streams: Streams) -> Iterator[tuple[IntArray, Rows]]:
        if not len(data):
            return
        path = self.training(tuple(data.features.shape[1:]))
        if path.trainer is not None:
            table, groups = _group_records(data, data.users, streams)
            yield from path.trainer.gradients(self._check_length(x), table, groups)
            return
        loop = Loop(self._module, path.loss)
        yield from self._one_by_one(path, x, data, streams, loop.gradient)

    def user_moments(self, data: SiloData, centre: Vector | None) -> Iterator[tuple[IntArray, Rows]]:
        if len(data):
            outputs = self.training(tuple(data.features.shape[1:])).outputs
            yield from user_moments(data, self._task, outputs, centre, self.dimension)

    def clipped_sums(self, data: SiloData, clip: float) -> ClippedSums:
        if not len(data):
            return lambda x, records, step, streams: np.zeros(self.dimension)
        path = self.training(tuple(data.features.shape[1:]))
        if not path.loss.additive:
            why = f"the {path.loss.name} compares records with each other, so a single record has no gradient"
            raise ConfigError(f"{why}; take a method that clips per user", location="method.name")
        names, bound = record_names(data.users), clip * (1 - MARGIN)
        if path.runner is None:
            features, labels = self._tensors(path, data)
            loop = Loop(self._module, path.loss)

            def by_loop(x: Vector, records: IntArray, step: int, streams: Streams) -> Vector:
                chosen, randomness = torch.from_numpy(records), TrainingRandomness(streams, names[records])
                return loop.clipped_sum(self._vector(x), features[chosen], labels[chosen], clip, step, randomness)

            return by_loop
        runner, table = path.runner, _table(data.features, data.labels)

        def by_kernels(x: Vector, records: IntArray, step: int, streams: Streams) -> Vector:
            keys = TrainingRandomness(streams, names[records]).keys()
            return runner.clipped_sum(self._check_length(x), table, records.astype(np.int64), keys, step, bound)

        return by_kernels

    def silo_delta(self, x: Vector, data: SiloData, local: LocalTraining, streams: Streams) -> Vector:
        if not len(data):
            return np.zeros(self.dimension)
        path = self.training(tuple(data.features.shape[1:]))
        below = streams.child("silo")
        if path.trainer is not None:
            table, groups = _group_records(data, np.zeros(len(data), dtype=np.int64), below)
            ((_, rows),) = path.trainer.deltas(self._check_length(x), table, groups, local)
        else:
            features, labels = self._tensors(path, data)
            randomness = TrainingRandomness(below, np.zeros(1, dtype=np.int64))
            rows = Loop(self._module, path.loss).delta(self._vector(x), features, labels, local, randomness)[None]
        delta: Vector = rows[0].astype(np.float64)
        return delta

    def _one_by_one(
        self,
        path: TrainingPath,
        x: Vector,
        data: SiloData,
        streams: Streams,
        row: Callable[[Tensor, Tensor, Tensor, TrainingRandomness], Rows],
    ) -> Iterator[tuple[IntArray, Rows]]:
        """Each user's row by itself. If a model raises on one user's records, that row is NaN.

        The error itself must not leave the silo: it would reveal something about that user (decision 0003).
        """
        features, labels = self._tensors(path, data)
        start = self._vector(x)
        who, starts, counts, rows = group_users(data.users)
        for user, first, count in zip(who, starts, counts, strict=True):
            own = torch.from_numpy(rows[first : first + count])
            try:
                update = row(start, features[own], labels[own], TrainingRandomness(streams, np.array([user])))
            except (MemoryError, UldpError):
                raise
            except Exception:
                update = np.full(self.dimension, np.nan, dtype=np.float32)
            yield np.array([user]), update[None]

    def _tensors(self, path: TrainingPath, data: SiloData) -> tuple[Tensor, Tensor]:
        features = _tensor(data.features).to(self._device, self._dtype)
        return features, path.loss.labels(_tensor(data.labels), self._dtype).to(self._device)

    # --- using the model --------------------------------------------------------------------------------------

    def state_dict(self, x: Vector) -> dict[str, Tensor]:
        """The parameters x under the names that the module gives them, as ``nn.Module.load_state_dict`` wants them."""
        parts = torch.split(torch.from_numpy(x).to(self._dtype), list(self.layer_sizes))
        shapes = {name: p.shape for name, p in self._original.named_parameters() if p.requires_grad}
        trained = {name: part.reshape(shapes[name]).clone() for name, part in zip(self._names, parts, strict=True)}
        return {**self._original.state_dict(), **trained}

    def evaluate(self, x: Vector, records: Records) -> Mapping[str, float]:
        if not len(records):
            return {}
        with foreign_exceptions(self._original, location="model"):
            outputs = self._outputs(x, records.features)
        loss = self.training(tuple(records.features.shape[1:])).loss
        value = evaluation.mean_loss(loss.name, outputs, records.labels)
        unbalanced = self._prior is not None and self._prior.unbalanced(self._task)
        return metrics.score(self._task, self._predictions(outputs), records.labels, value, unbalanced=unbalanced)

    @property
    def mean_metrics(self) -> tuple[tuple[str, float], ...]:
        if self._task.kind == "classification":
            return (("loss", 1.0), ("accuracy", 1.0))
        if self._task.kind == "regression":
            return (("loss", 1.0), ("mae", abs(self._task.label_scale)))
        return ()  # a survival loss compares records with each other: the silos' losses do not add up

    def record_metrics(self, x: Vector, records: Records) -> Vector:
        if not len(records):
            return np.zeros((0, len(self.mean_metrics)))
        try:
            return self._record_metrics(x, records)
        except (MemoryError, UldpError):
            raise
        except Exception:
            # If a model raises on one record, its metrics are NaN, and the error stays here (decision 0003).
            if len(records) == 1:
                return np.full((1, len(self.mean_metrics)), np.nan)
            middle = len(records) // 2
            halves = (slice(0, middle), slice(middle, None))
            parts = [Records(records.features[half], records.labels[half]) for half in halves]
            return np.concatenate([self.record_metrics(x, part) for part in parts])

    def _record_metrics(self, x: Vector, records: Records) -> Vector:
        outputs = self._outputs(x, records.features)
        loss = self.training(tuple(records.features.shape[1:])).loss
        losses = evaluation.record_losses(loss.name, outputs, records.labels)
        predictions = self._predictions(outputs)
        if self._task.kind == "classification":
            return np.stack([losses, predictions.argmax(1) == records.labels], axis=1)
        return np.stack([losses, np.abs(predictions - records.labels)], axis=1)

    def predict(self, x: Vector, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        with foreign_exceptions(self._original, location="model"):
            return self._predictions(self._outputs(x, features))

    def _predictions(self, outputs: Vector) -> Vector:
        return evaluation.probabilities(outputs) if self._task.kind == "classification" else outputs[:, 0]

    def _outputs(self, x: Vector, features: npt.NDArray[np.float32]) -> Vector:
        """(records, outputs) in float64, dropout off, some records at a time."""
        path = self.training(tuple(features.shape[1:]))
        if path.trainer is not None:
            return path.trainer.outputs(self._check_length(x), _table(features, np.zeros(len(features))))
        parts = self._vector(x).split_with_sizes(list(self.layer_sizes))
        shapes = [p.shape for p in self._module.parameters() if p.requires_grad]
        parameters = {n: part.view(s) for n, part, s in zip(self._names, parts, shapes, strict=True)}
        size = max(1, min(self._memory, _EVALUATION_BYTES) // (2 * path.units * self._dtype.itemsize))
        module = self._module.eval()
        outputs = [torch.zeros((0, path.outputs), dtype=torch.float64)]
        with torch.no_grad():
            for first in range(0, len(features), size):
                part = _tensor(features[first : first + size])
                result = functional_call(module, parameters, (part.to(self._device, self._dtype),))
                outputs.append(result.double().cpu())
        return torch.cat(outputs).numpy()

    def _check_length(self, x: Vector) -> Vector:
        if x.shape != (self.dimension,):
            raise ModelError(f"{x.shape} parameters for a model of {self.dimension}", location="model")
        return x

    def _vector(self, x: Vector) -> Tensor:
        return _tensor(self._check_length(x)).to(self._device, self._dtype)

    # --- how to compute ---------------------------------------------------------------------------------------

    @property
    def caveat(self) -> str:
        """Why a row may have other bits when it is computed again; empty on the CPU."""
        if self._device.type == "cpu":
            return ""
        return (
            f"Per-user updates were computed on {self._device.type}, whose kernels need not give the same bits twice, "
            "so the bound on the sum holds up to float rounding, not exactly."
        )

    def training(self, feature_shape: Shape) -> TrainingPath:
        """How records of this shape are trained: by kernels or by the loop, why, and at what cost."""
        if feature_shape not in self._paths:
            self._paths[feature_shape] = self._choose_path(feature_shape)
        return self._paths[feature_shape]

    def _choose_path(self, feature_shape: Shape) -> TrainingPath:
        check_model(self._module, feature_shape)
        with torch.no_grad():
            sample = probe(feature_shape, 1).to(self._device, self._dtype)
            outputs = int(copy.deepcopy(self._module).eval()(sample).shape[1])
        loss = choose_loss(self._task, outputs)
        if self._task.kind == "classification":
            check_scores(self._original, feature_shape)
        slow = ""
        layers = tuple(dict.fromkeys(type(layer) for layer in self._module.modules() if runs_foreign_code(layer)))
        if self._path != "loop":
            runner, reason = self._runner(feature_shape, loss)
            if runner is not None:
                program, flops = runner.program, 6 * runner.program.products
                large = flops >= _LARGE and self._path == "auto"
                trainer, run = (None, layers) if large else (runner, ())
                return TrainingPath(loss, outputs, program.units, flops, runner, trainer, layers=run)
            if self._path == "kernels":
                raise ModelError(f"{reason}; use path 'auto'", location="model")
            slow = (
                f"the model cannot be trained by kernels ({reason}); one user after the other by autograd takes some "
                f"hundred times as long. {_REMEDY}"
            )
            warnings.warn(slow, SlowTrainingWarning, stacklevel=2)
        # The activations are unknown: as many as parameters is a cautious guess.
        units = max(2 * self.dimension, sample.numel())
        return TrainingPath(loss, outputs, units, 6 * self.dimension, None, None, slow, layers)

    def _runner(self, feature_shape: Shape, loss: Loss) -> tuple[Runner | None, str]:
        """What runs the model's program, or why there is none."""
        if self._device.type != "cpu":
            return None, f"there are none for {self._device.type}"
        if unavailable_reason():
            return None, unavailable_reason()
        from uldp.learners.kernels import objectives
        from uldp.learners.kernels.forms import NoKernelError
        from uldp.learners.kernels.program import compile_program
        from uldp.learners.kernels.runner import Runner

        try:
            program = compile_program(self._module, feature_shape, objectives.NUMBERS[loss.name])
        except NoKernelError as error:
            return None, str(error)
        dtype = np.float64 if self._dtype == torch.float64 else np.float32
        return Runner(program, dtype, self._threads), ""


def _table(features: npt.NDArray[np.float32], labels: npt.NDArray[Any]) -> TrainingTable:
    from uldp.learners.kernels.runner import TrainingTable

    return TrainingTable.of(features, labels)


def _group_records(data: SiloData, users: IntArray, streams: Streams) -> tuple[TrainingTable, Groups]:
    """A silo's records for the kernels, grouped by user."""
    from uldp.learners.kernels.runner import Groups

    who, starts, counts, rows = group_users(users)
    return _table(data.features, data.labels), Groups(
        who, starts, counts, rows, TrainingRandomness(streams, who).keys()
    )


def _find_device(device: str) -> torch.device:
    try:
        found = torch.device(device)
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError) as error:
        why = f"device {device!r} cannot be used ({str(error).splitlines()[0]})"
        raise ConfigError(why, location="run.device", value=device) from error
    return found


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    """The array as a tensor, without a copy unless its memory is read-only, which torch does not support."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
