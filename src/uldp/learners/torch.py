"""The PyTorch learner: all users of a silo at once.

Users of like size train in chunks (``schedule``); each chunk runs through batched rules, through ``torch.func`` or
through a loop (``nets``). Chunks are spread over threads, and each chunk computes on one thread alone: that scales
better than threads within tiny products, and the number of threads then changes no bit of a result. Rows are handed
out chunk by chunk, so that memory does not grow with the number of users.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from uldp.data.federation import IntArray, Records, SiloData, Task
from uldp.errors import ConfigError, ModelError, UldpError, first_line
from uldp.learners import linear, metrics
from uldp.learners.base import ClippedSums, LocalTraining, Rows, Vector
from uldp.learners.checks import Shape, check_model, probe
from uldp.learners.compile import NoRuleError, compile_rules
from uldp.learners.losses import Loss, Targets, choose_loss
from uldp.learners.models import initial_module
from uldp.learners.nets import FuncNet, LoopNet, Net, OneNet, RulesNet
from uldp.learners.noise import Noise
from uldp.learners.records import GhostSums, RecordTensors, RowSums
from uldp.learners.rules import Moment
from uldp.learners.schedule import Batches, Chunk, chunks
from uldp.learners.threads import Item, Result, in_threads
from uldp.learners.updates import Accumulate, Update, choose_update
from uldp.rng import Streams

PATHS: Final = ("auto", "rules", "func", "loop")
DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}

#: A chunk's share of the memory budget: some chunks are computed while others wait to be fetched.
_SHARE: Final = 8
#: More than this per chunk is not faster: it only falls out of the cache.
_CHUNK_BYTES: Final = 32 * 2**20
#: Up to this many parameters a step costs its calls, not its arithmetic.
_SMALL_MODEL: Final = 512
#: From so many numbers per user on, a call is long enough for threads to run side by side: they take turns between
#: calls, and with short ones they only wait for each other.
_LONG_CALLS: Final = 16_384
#: Batches of several steps are gathered together while they are small: so many numbers.
_BLOCK: Final = 2**18
_EVALUATION_BYTES: Final = 64 * 2**20


@dataclass(frozen=True)
class _Plan:
    """What is known once the shape of the features is: how to compute, and what a record costs."""

    path: str
    loss: Loss
    outputs: int
    units: int
    flops: int
    parameters: int

    @property
    def long_calls(self) -> bool:
        return max(self.units, self.parameters) >= _LONG_CALLS

    @property
    def ladder(self) -> str:
        """How finely users are grouped by their number of records."""
        if self.parameters <= _SMALL_MODEL:
            return "coarse"
        return "fine" if self.units >= _LONG_CALLS else "middle"


@dataclass(frozen=True)
class _Tensors:
    """A silo's records as tensors."""

    features: Tensor
    labels: Tensor


class TorchLearner:
    """Trains ``module`` for many users at once; see :class:`~uldp.learners.base.Learner`.

    ``memory_mb`` bounds the working memory of training, ``threads`` defaults to torch's own number. ``path`` is
    "auto" except in tests: batched rules where the layers have them, else ``torch.func``, else a loop.
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
    ) -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"unknown dtype {dtype!r}. Known: {', '.join(DTYPES)}", place="run.dtype", value=dtype)
        if path not in PATHS:
            raise ConfigError(f"unknown path {path!r}. Known: {', '.join(PATHS)}", place="path", value=path)
        if memory_mb < 1:
            raise ConfigError(f"at least 1, not {memory_mb}", place="run.memory_mb", value=memory_mb)
        if threads is not None and threads < 1:
            raise ConfigError(f"at least 1, not {threads}", place="run.threads", value=threads)
        check_model(module)
        self._original = module
        self._task = task
        self._dtype = DTYPES[dtype]
        self._device = _checked_device(device)
        self._module = copy.deepcopy(module).to(device=self._device, dtype=self._dtype)
        self._names = [name for name, p in module.named_parameters() if p.requires_grad]
        self._sizes = [p.numel() for p in module.parameters() if p.requires_grad]
        self._memory = memory_mb * 2**20
        self._path = path
        self._threads = threads
        self._plans: dict[Shape, _Plan] = {}

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """How many parameters each of the model's tensors has."""
        return tuple(self._sizes)

    @property
    def architecture(self) -> str:
        """A digest of the layers, parameters and buffers: names, kinds and shapes.

        Not of how layers print themselves: that may hold addresses in memory, and changes with PyTorch.
        """
        module = self._original
        layers = [(name, type(layer).__name__) for name, layer in module.named_modules()]
        parameters = [(name, tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()]
        buffers = [(name, tuple(buffer.shape)) for name, buffer in module.named_buffers()]
        return hashlib.sha256(repr((layers[1:], parameters, buffers)).encode()).hexdigest()

    @property
    def dimension(self) -> int:
        return sum(self._sizes)

    def path(self, feature_shape: Shape) -> str:
        """How records of this shape are trained: "rules", "func" or "loop"."""
        return self._plan(feature_shape).path

    def flops_per_record(self, feature_shape: Shape) -> int:
        """Floating-point operations of one record's forward and backward pass: 2 per product, three products."""
        return self._plan(feature_shape).flops

    def initial(self, streams: Streams) -> Vector:
        """x_0; for a module that was not made by ``build_model``, the parameters that it came with."""
        module = initial_module(self._original, streams)
        parts = [p.detach().reshape(-1).double() for p in module.parameters() if p.requires_grad]
        return torch.cat(parts).cpu().numpy()

    # --- training -------------------------------------------------------------------------------------------

    def user_deltas(
        self, x: Vector, data: SiloData, local: LocalTraining, streams: Streams
    ) -> Iterator[tuple[IntArray, Rows]]:
        if not len(data):
            return
        plan, records, start = self._begin(x, data)
        states = 4 if local.optimizer == "adam" else 1

        def train(chunk: Chunk) -> tuple[IntArray, Rows]:
            return self._safely(chunk, lambda part: self._train(plan, part, start, records, local, streams))

        work = chunks(data.users, local.batch_size, plan.ladder, lambda width: self._capacity(plan, width, states))
        yield from self._spread(plan, train, work)

    def user_gradients(self, x: Vector, data: SiloData, streams: Streams) -> Iterator[tuple[IntArray, Rows]]:
        if not len(data):
            return
        plan, records, start = self._begin(x, data)
        # A loss that couples records needs all of a user's at once; a width of its own, whoever else is there.
        most = self._gradient_width(plan) if plan.loss.additive else 2**40

        def accumulate(chunk: Chunk) -> tuple[IntArray, Rows]:
            return self._safely(chunk, lambda part: self._gradients(plan, part, start, records, streams))

        work = chunks(data.users, most, plan.ladder, lambda width: self._capacity(plan, width, 2))
        yield from self._spread(plan, accumulate, work)

    def clipped_sums(self, data: SiloData, clip: float) -> ClippedSums:
        if not len(data):
            return lambda x, records, step, streams: np.zeros(self.dimension)
        plan, tensors, _ = self._begin(np.zeros(self.dimension), data)
        records = RecordTensors(data, tensors.features, tensors.labels, plan.loss)
        capacity = self._capacity(plan, 1, 2)
        sums: GhostSums | RowSums
        if plan.path == "rules" and self._device.type == "cpu":
            if linear.known(self._module, plan.loss):
                table = linear.LinearSums(tensors.features.numpy(), data.labels, plan.loss, plan.outputs)
                return lambda x, chosen, step, streams: table(x, chosen, clip)
            compiled = compile_rules(self._module, tuple(tensors.features.shape[1:]))
            if not compiled.images:
                sums = GhostSums(records, compiled, self._vector(np.zeros(self.dimension)), capacity)
                return lambda x, chosen, step, streams: sums(self._vector(x), chosen, clip, step, streams)

        def make(x: Tensor, users: int) -> Net:
            return self._net(plan, x, tensors, users)

        sums = RowSums(records, make, self.dimension, capacity, not plan.long_calls)
        return lambda x, chosen, step, streams: sums(self._vector(x), chosen, clip, step, streams)

    def silo_delta(self, x: Vector, data: SiloData, local: LocalTraining, streams: Streams) -> Vector:
        if not len(data):
            return np.zeros(self.dimension)
        plan, records, start = self._begin(x, data)
        alone = np.zeros(len(data), dtype=np.int64)
        ordinary = self._path == "auto" and plan.path == "rules" and self._device.type == "cpu"
        if ordinary and linear.applies(self._module, plan.loss, local):
            noise = Noise(streams.child("silo"), np.zeros(1, dtype=np.int64))
            return linear.train(start.numpy(), records.features.numpy(), data.labels, plan.loss, local, noise)
        (chunk,) = chunks(alone, local.batch_size, plan.ladder, capacity=lambda width: 1, places=1)

        def train(part: Chunk) -> tuple[IntArray, Rows]:
            return self._train(plan, part, start, records, local, streams.child("silo"))

        # Small calls on several threads cost more in waiting than they gain, and much more on a busy machine.
        small = ordinary and not plan.long_calls
        ((_, rows),) = in_threads(train, [chunk], 1) if small else [train(chunk)]
        delta: Vector = rows[0].astype(np.float64)
        return delta

    def _safely(self, chunk: Chunk, work: Callable[[Chunk], tuple[IntArray, Rows]]) -> tuple[IntArray, Rows]:
        """``work`` on the chunk. A model may raise on one user's records: that user's row is then not a number.

        The error itself must not leave the silo: it would tell about that user (decision 0003).
        """
        try:
            return work(chunk)
        except (MemoryError, UldpError):
            raise
        except Exception:
            if chunk.real == 1:
                return chunk.users[:1], np.full((1, self.dimension), np.nan, dtype=np.float32)
            rows: Rows = np.concatenate([self._safely(chunk.only(place), work)[1] for place in range(chunk.real)])
            return chunk.users[: chunk.real], rows

    def _begin(self, x: Vector, data: SiloData) -> tuple[_Plan, _Tensors, Tensor]:
        plan = self._plan(tuple(data.features.shape[1:]))
        features = _tensor(data.features).to(self._device, self._dtype)
        labels = plan.loss.labels(_tensor(data.labels), self._dtype)
        return plan, _Tensors(features, labels.to(self._device)), self._vector(x)

    def _train(
        self,
        plan: _Plan,
        chunk: Chunk,
        x: Tensor,
        records: _Tensors,
        local: LocalTraining,
        streams: Streams,
    ) -> tuple[IntArray, Rows]:
        """Q epochs for the users of a chunk."""
        with torch.no_grad():
            noise = Noise(streams, chunk.users)
            batches = Batches(chunk, noise)
            net = self._net(plan, x, records, len(chunk.users))
            update = choose_update(local)
            rows = torch.empty((chunk.real, self.dimension), dtype=self._dtype, device=self._device)
            phases = list(chunk.phases(local.epochs))
            staying = [active for _, active in phases[1:]] + [0]
            for (steps, active), left in zip(phases, staying, strict=True):
                # Users who are done may go on as ghosts beside the last one: their rows are already stored.
                places = min(max(active, 2), len(chunk.users))
                net.focus(places)
                self._run(net, batches, records, steps, places, noise, update)
                net.store_deltas(left, rows[left:active])
            return chunk.users[: chunk.real], rows.cpu().numpy()

    def _run(
        self,
        net: Net,
        batches: Batches,
        records: _Tensors,
        steps: range,
        places: int,
        noise: Noise,
        update: Update,
    ) -> None:
        """Steps during which the same users train."""
        if batches.constant:
            ((inputs, targets),) = self._inputs(net, records, *batches.block(range(1), places))
            for step in steps:
                net.step(inputs, targets, Moment(noise, step), update)
            return
        size = max(1, min(32, _BLOCK // (places * batches.width * records.features[0].numel())))
        for first in range(steps.start, steps.stop, size):
            block = range(first, min(first + size, steps.stop))
            made = self._inputs(net, records, *batches.block(block, places))
            for step, (inputs, targets) in zip(block, made, strict=True):
                net.step(inputs, targets, Moment(noise, step), update)

    def _gradients(
        self, plan: _Plan, chunk: Chunk, x: Tensor, records: _Tensors, streams: Streams
    ) -> tuple[IntArray, Rows]:
        """The gradient of each user's mean loss, summed up over parts of the user's records."""
        with torch.no_grad():
            noise = Noise(streams, chunk.users)
            net = self._net(plan, x, records, len(chunk.users))
            update = Accumulate()
            counts = torch.from_numpy(chunk.counts).to(self._device, self._dtype)
            for first, index, mask in Batches(chunk, noise).parts(chunk.width):
                ((inputs, targets),) = self._inputs(net, records, index[None], mask[None], counts)
                net.step(inputs, targets, Moment(noise, 0, first), update)
            rows = torch.empty((chunk.real, self.dimension), dtype=self._dtype, device=self._device)
            net.store_states(rows)
            return chunk.users[: chunk.real], rows.cpu().numpy()

    def _inputs(
        self,
        net: Net,
        records: _Tensors,
        index: IntArray,
        mask: npt.NDArray[np.bool_],
        counts: Tensor | None = None,
    ) -> Iterator[tuple[Tensor, Targets]]:
        """What the net needs for each of some steps; index and mask are (steps, users, width)."""
        places = torch.from_numpy(index).to(self._device)
        present = _tensor(mask).to(self._device, self._dtype).flatten(0, 1)
        share = None if counts is None else present.sum(1) / counts
        features = records.features[places]
        targets = Targets(records.labels[places].flatten(0, 1), present, share)
        steps, users = index.shape[:2]
        for step in range(steps):
            inputs = net.prepare(features[step])
            yield inputs, targets if steps == 1 else targets.part(step * users, (step + 1) * users)

    def _net(self, plan: _Plan, x: Tensor, records: _Tensors, users: int) -> Net:
        if plan.path == "rules":
            compiled = compile_rules(self._module, tuple(records.features.shape[1:]))
            if compiled.images and users == 1 and self._path == "auto":
                return OneNet(self._module, plan.loss, x, users)
            return RulesNet(compiled, plan.loss, x, users)
        return {"func": FuncNet, "loop": LoopNet}[plan.path](self._module, plan.loss, x, users)

    def _capacity(self, plan: _Plan, width: int, states: int) -> int:
        """How many users fit a chunk. Follows from the configuration only, never from free memory."""
        per_user = (self.dimension * (2 + states) + 2 * width * plan.units) * self._dtype.itemsize
        return max(1, min(self._memory // _SHARE, _CHUNK_BYTES) // per_user)

    def _gradient_width(self, plan: _Plan) -> int:
        """How many records of one user are taken at a time: a power of two that fits half a chunk."""
        fitting = min(self._memory // _SHARE, _CHUNK_BYTES) // (4 * plan.units * self._dtype.itemsize)
        return int(min(2 ** max(3, int(fitting).bit_length() - 1), 4096))

    def _spread(self, plan: _Plan, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """work(item) for all items, in their order, on several threads where that is possible."""
        if plan.path == "loop" or self._device.type != "cpu":
            # The loop seeds torch's one generator; a device schedules its work by itself.
            return map(work, items)
        threads = self._threads or torch.get_num_threads()
        return in_threads(work, items, threads if plan.long_calls else 1)

    # --- using the model --------------------------------------------------------------------------------------

    @property
    def description(self) -> str:
        """The layers, for people."""
        return str(self._original)

    def state_dict(self, x: Vector) -> dict[str, Tensor]:
        """The parameters x under the names that the module gives them, as ``nn.Module.load_state_dict`` wants them."""
        parts = torch.split(torch.from_numpy(x).to(self._dtype), self._sizes)
        shapes = {name: p.shape for name, p in self._original.named_parameters() if p.requires_grad}
        trained = {name: part.reshape(shapes[name]).clone() for name, part in zip(self._names, parts, strict=True)}
        return {**self._original.state_dict(), **trained}

    def evaluate(self, x: Vector, records: Records) -> Mapping[str, float]:
        if not len(records):
            return {}
        outputs = self._outputs(x, records.features)
        loss = self._plan(tuple(records.features.shape[1:])).loss
        labels = loss.labels(_tensor(records.labels), torch.float64)
        mask = torch.ones(1, len(records), dtype=torch.float64)
        value = float(loss(outputs.unsqueeze(0), labels.unsqueeze(0), mask))
        return metrics.score(self._task, self._predictions(outputs), records.labels, value)

    @property
    def measures(self) -> tuple[tuple[str, float], ...]:
        if self._task.kind == "classification":
            return (("loss", 1.0), ("accuracy", 1.0))
        if self._task.kind == "regression":
            return (("loss", 1.0), ("mae", abs(self._task.label_scale)))
        return ()  # a survival loss couples records: a sum over silos is no loss of them together

    def measured(self, x: Vector, records: Records) -> Vector:
        if not len(records):
            return np.zeros((0, len(self.measures)))
        try:
            return self._measured(x, records)
        except (MemoryError, UldpError):
            raise
        except Exception:
            # A model may raise on one record: that one is not a number, and the error stays here (decision 0003).
            if len(records) == 1:
                return np.full((1, len(self.measures)), np.nan)
            middle = len(records) // 2
            halves = (slice(0, middle), slice(middle, None))
            parts = [Records(records.features[half], records.labels[half]) for half in halves]
            return np.concatenate([self.measured(x, part) for part in parts])

    def _measured(self, x: Vector, records: Records) -> Vector:
        outputs = self._outputs(x, records.features)
        loss = self._plan(tuple(records.features.shape[1:])).loss
        labels = loss.labels(_tensor(records.labels), torch.float64)
        # Every record as if it were somebody's only one: then a user's mean loss is that record's.
        alone = torch.ones(len(records), 1, dtype=torch.float64)
        losses = loss(outputs.unsqueeze(1), labels.unsqueeze(1), alone).numpy()
        predictions = self._predictions(outputs)
        if self._task.kind == "classification":
            return np.stack([losses, predictions.argmax(1) == records.labels], axis=1)
        return np.stack([losses, np.abs(predictions - records.labels)], axis=1)

    def predict(self, x: Vector, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return self._predictions(self._outputs(x, features))

    def _predictions(self, outputs: Tensor) -> npt.NDArray[np.float64]:
        if self._task.kind != "classification":
            return outputs.squeeze(1).numpy()
        if outputs.shape[1] == 1:
            chance = torch.sigmoid(outputs)
            return torch.cat([1.0 - chance, chance], 1).numpy()
        return torch.softmax(outputs, 1).numpy()

    def _outputs(self, x: Vector, features: npt.NDArray[np.float32]) -> Tensor:
        """(records, outputs) in float64, dropout off, some records at a time."""
        plan = self._plan(tuple(features.shape[1:]))
        parts = self._vector(x).split_with_sizes(self._sizes)
        shapes = [p.shape for p in self._module.parameters() if p.requires_grad]
        parameters = {n: part.view(s) for n, part, s in zip(self._names, parts, shapes, strict=True)}
        size = max(1, min(self._memory, _EVALUATION_BYTES) // (2 * plan.units * self._dtype.itemsize))
        module = self._module.eval()
        outputs = [torch.zeros((0, plan.outputs), dtype=torch.float64)]
        with torch.no_grad():
            for first in range(0, len(features), size):
                part = _tensor(features[first : first + size])
                result = functional_call(module, parameters, (part.to(self._device, self._dtype),))
                outputs.append(result.double().cpu())
        return torch.cat(outputs)

    def _vector(self, x: Vector) -> Tensor:
        if x.shape != (self.dimension,):
            raise ModelError(f"{x.shape} parameters for a model of {self.dimension}", place="model")
        return _tensor(x).to(self._device, self._dtype)

    # --- how to compute ---------------------------------------------------------------------------------------

    def _plan(self, feature_shape: Shape) -> _Plan:
        if feature_shape not in self._plans:
            self._plans[feature_shape] = self._make_plan(feature_shape)
        return self._plans[feature_shape]

    def _make_plan(self, feature_shape: Shape) -> _Plan:
        check_model(self._module, feature_shape)
        with torch.no_grad():
            sample = probe(feature_shape, 1).to(self._device, self._dtype)
            outputs = int(copy.deepcopy(self._module).eval()(sample).shape[1])
        loss = choose_loss(self._task, outputs)
        # Without rules we do not see the activations: as many as parameters is a cautious guess.
        units, products = max(2 * self.dimension, sample.numel()), self.dimension
        reason = ""
        if self._path in ("auto", "rules"):
            try:
                compiled = compile_rules(self._module, feature_shape)
                return _Plan("rules", loss, outputs, compiled.units, 6 * compiled.products, self.dimension)
            except NoRuleError as error:
                if self._path == "rules":
                    raise ModelError(f"{error}; use path 'auto'", place="model") from error
        if self._path in ("auto", "func"):
            try:
                refuse_look_ups(self._module)
                self._try_func(loss, feature_shape)
                return _Plan("func", loss, outputs, units, 6 * products, self.dimension)
            except Exception as error:
                reason = first_line(error)
                if self._path == "func":
                    raise ModelError(f"the model cannot be vectorised ({reason})", place="model") from error
            warnings.warn(
                f"the model cannot be trained for many users at once ({reason}); one user after the other is slow. "
                "An nn.Sequential of standard layers is fastest",
                UserWarning,
                stacklevel=2,
            )
        return _Plan("loop", loss, outputs, units, 6 * products, self.dimension)

    def _try_func(self, loss: Loss, feature_shape: Shape) -> None:
        """One step of two users with two records; raises what the model raises."""
        x = torch.cat([p.detach().reshape(-1) for p in self._module.parameters() if p.requires_grad])
        net = FuncNet(self._module, loss, x, 2)
        inputs = probe(feature_shape, 4).to(self._device, self._dtype).view(2, 2, *feature_shape)
        labels = loss.labels(torch.zeros(2, 2, device=self._device), self._dtype)
        noise = Noise(Streams.from_seed(0), np.arange(2))
        net.step(
            inputs,
            Targets(labels, torch.ones_like(inputs.flatten(2)[..., 0])),
            Moment(noise, 0),
            Accumulate(),
        )


def refuse_look_ups(module: nn.Module) -> None:
    """``vmap`` lays the users' tables end to end: an index beyond one user's table would read the next user's."""
    for layer in module.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            raise ModelError(f"{type(layer).__name__} looks up by index", place="model")


def _checked_device(device: str) -> torch.device:
    try:
        found = torch.device(device)
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {device!r} cannot be used ({reason})", place="run.device", value=device) from error
    return found


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    """The array as a tensor, without a copy where torch allows it (it dislikes read-only memory)."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
