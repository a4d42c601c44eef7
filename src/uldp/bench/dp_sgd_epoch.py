"""``uldp bench train --case dp-sgd-epoch``: one epoch of DP-SGD on the zoo's CNN, ours against Opacus.

Both sides do all of DP-SGD: draw a Poisson batch, clip each record's gradient, add noise to the sum, take a step. Ours
is the silo's part of ``record-dp``, with noise from a cryptographic stream. Opacus runs in each of its modes (of the
gradient of every record by itself, or ghost clipping), with noise from torch's generator. Its data loader, which
fetches record by record, is left out: batches are taken from one tensor.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from uldp.bench.machine import Case, Say, TrainingJob, plural, silent, thread_options, time_call
from uldp.bench.versus import Variant, Versus, variants_note
from uldp.data.federation import Task
from uldp.learners.base import Vector
from uldp.methods.record_dp import RecordDp
from uldp.privacy.releases import PublicFacts
from uldp.rng import Secrets, Streams
from uldp.runtimes.recording import torch_threads

MODES: Final = ("hooks", "functorch", "ew", "ghost")
MISSING: Final = "Opacus is not installed; install it with: pip install 'uldp[bench]'"
_SHAPE: Final = (1, 28, 28)
_TASK: Final = Task(classes=10)


@dataclass(frozen=True)
class Epoch:
    """The work: ``records`` in batches of ``batch`` on average."""

    records: int = 12_000
    batch: int = 256
    clip: float = 1.0
    noise_multiplier: float = 1.0
    dropout: float = 0.5

    @property
    def steps(self) -> int:
        return math.ceil(self.records / self.batch)

    @property
    def method(self) -> RecordDp:
        """DP-SGD with Opacus' sample rate and divisor: 1 / steps, and the mean size of a batch in whole records."""
        return RecordDp(
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            local_steps=self.steps,
            local_lr=0.05,
            record_rate=1 / self.steps,
            batch_size=self.records // self.steps,
        )


def make_problem(epoch: Epoch) -> TrainingJob[Epoch]:
    return TrainingJob.random("dp-sgd", epoch, (epoch.records, 1), _SHAPE, _TASK, "cnn", {"dropout": epoch.dropout})


def run_case(say: Say = silent, epoch: Epoch = Epoch()) -> Case:  # noqa: B008
    problem = make_problem(epoch)
    found = importlib.util.find_spec("opacus") is not None
    versus = Versus(
        name="dp-sgd-epoch",
        ours=lambda: run_ours(problem),
        flops=float(epoch.records * problem.learner.training(_SHAPE).flops),
        threads=torch.get_num_threads(),
        variants=[
            Variant(f"{mode}, {plural(threads, 'thread')}", partial(_opacus_seconds, problem, mode, threads))
            for mode in MODES
            for threads in thread_options()
        ],
        missing="" if found else MISSING,
        repeats=3,
    )
    case = versus.run(say)
    case["note"] = (
        f"{epoch.records:,} records in {epoch.steps} Poisson batches of about {epoch.batch}, noise and step on both "
        f"sides, {case['threads']} threads; Opacus: {variants_note(case)}; best of {versus.repeats} runs of each side"
        if found
        else f"{epoch.records:,} records, {case['threads']} threads; {MISSING}"
    )
    return case


def run_ours(problem: TrainingJob[Epoch]) -> Vector:
    """The change of the model in an epoch."""
    streams, secrets = Streams.from_seed(0), Secrets.from_os()
    method = problem.work.method
    release = method.release(PublicFacts(problem.work.records, 1, problem.learner.dimension))
    ((_, rows),) = release.rows(method, problem.x, problem.data, problem.learner, streams, secrets)
    change: Vector = rows[0]
    return change


def _opacus_seconds(problem: TrainingJob[Epoch], mode: str, threads: int, part: float) -> float:
    with torch_threads(threads), torch.random.fork_rng(devices=[]):
        opacus = Opacus(problem, mode)
        opacus.run(1)
        return time_call(lambda: opacus.run(round(part * problem.work.steps)))


class Opacus:
    """The problem, made private by Opacus in one of its modes."""

    def __init__(self, problem: TrainingJob[Epoch], mode: str) -> None:
        from opacus import PrivacyEngine

        method = problem.work.method
        self._features, self._labels = torch.from_numpy(problem.data.features), torch.from_numpy(problem.data.labels)
        _, self._rate = method.release(PublicFacts(2, 1, 0)).everywhere()
        records = torch.utils.data.TensorDataset(self._features, self._labels)
        self._module = copy.deepcopy(problem.learner.module).train()
        nn.utils.vector_to_parameters(torch.from_numpy(problem.x).float(), self._module.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that its random numbers are not secure
            made: Any = PrivacyEngine().make_private(
                module=self._module,
                optimizer=torch.optim.SGD(self._module.parameters(), lr=method.local_lr),
                data_loader=torch.utils.data.DataLoader(records, batch_size=problem.work.batch),
                noise_multiplier=method.noise_multiplier,
                max_grad_norm=method.clip,
                grad_sample_mode=mode,
            )
        self._private, self._optimizer = made[:2]
        self._loss = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def run(self, steps: int) -> Vector:
        """Take a number of steps; returns the change of the model."""
        before = nn.utils.parameters_to_vector(self._module.parameters()).detach().clone()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about hooks, once in every process
            for _ in range(steps):
                chosen = torch.nonzero(torch.rand(len(self._labels)) < self._rate).squeeze(1)
                self._optimizer.zero_grad()
                self._loss(self._private(self._features[chosen]), self._labels[chosen]).backward()
                self._optimizer.step()
        change = nn.utils.parameters_to_vector(self._module.parameters()).detach() - before
        return change.double().numpy()
