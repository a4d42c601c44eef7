"""``uldp bench train --case user-round``: one user-level round of an MLP, ours against Apple's pfl.

Both sides train every user's model from the same x, clip its change, add the changes up, add Gaussian noise and step.
Ours is ULDP-AVG with one silo: the integer sum, the exact discrete noise from a cryptographic stream and the server's
step included. pfl simulates a central iteration of federated averaging with a cohort of all users, central clipping
and its Gaussian mechanism, in one process with one or all threads, or in as many workers as there are threads.

pfl runs in an environment of its own beside ours, which ``make bench-pfl`` creates.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch

from uldp.bench.machine import Case, Say, TrainingJob, plural, run_process, silent, thread_options
from uldp.bench.versus import Variant, Versus, variants_note
from uldp.data.federation import Task
from uldp.learners.base import Vector
from uldp.methods.base import State
from uldp.methods.uldp_avg import UldpAvg
from uldp.privacy.releases import PublicFacts
from uldp.privacy.releases.sums import IntegerSum, add_noise
from uldp.rng import Secrets, Streams

PYTHON: Final = Path(sys.prefix).parent / ".venv-pfl" / "bin" / "python"
WORKER: Final = Path(__file__).with_name("pfl_worker.py")
MISSING: Final = "pfl is not installed; install it with: make bench-pfl"
WIDTH: Final = 30
_TASK: Final = Task(classes=2)


@dataclass(frozen=True)
class UserRound:
    """The work: the number of users of one silo, and of records per user."""

    users: int = 1000
    records_per_user: int = 22
    epochs: int = 30
    noise_multiplier: float = 1.0
    clip: float = 1.0

    @property
    def method(self) -> UldpAvg:
        return UldpAvg(
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            local_epochs=self.epochs,
            local_lr=0.01,
            batch_size=64,
        )


def make_problem(work: UserRound) -> TrainingJob[UserRound]:
    size, model = (work.users, work.records_per_user), {"width": WIDTH, "dropout": 0.0}
    return TrainingJob.random("user-round", work, size, (WIDTH,), _TASK, "creditcard", model)


def run_case(say: Say = silent, work: UserRound = UserRound()) -> Case:  # noqa: B008
    problem = make_problem(work)
    most = torch.get_num_threads()
    variants = [
        Variant(f"one process, {plural(n, 'thread')}", partial(_pfl_seconds, problem, n, 1)) for n in thread_options()
    ]
    if most > 1:
        variants.append(Variant(f"{most} workers", partial(_pfl_seconds, problem, 1, most)))
    versus = Versus(
        name="user-round",
        ours=lambda: run_ours(problem),
        flops=float(len(problem.data) * work.epochs * problem.learner.training((WIDTH,)).flops),
        threads=most,
        variants=variants,
        missing="" if PYTHON.exists() else MISSING,
        trial=0.1,
    )
    case = versus.run(say)
    case["note"] = (
        f"{work.users:,} users with {work.records_per_user} records each, {problem.learner.dimension:,} parameters, no "
        f"dropout, {work.epochs} epochs, clip, noise and step on both sides, {most} threads; "
    ) + (MISSING if versus.missing else f"pfl 0.6: {variants_note(case)}; best of {versus.repeats} runs of each side")
    return case


def run_ours(problem: TrainingJob[UserRound]) -> Vector:
    """The model after the round."""
    method, facts = problem.work.method, PublicFacts(problem.work.users, 1, problem.learner.dimension)
    streams, secrets, release = Streams.from_seed(0), Secrets.from_os(), method.release(facts)
    weights = release.weights(np.bincount(problem.data.users, minlength=facts.users), None)
    summed = IntegerSum(release.encoding, facts.dimension, weights)
    for users, rows in release.rows(method, problem.x, problem.data, problem.learner, streams, secrets):
        summed.add(users, rows)
    noisy = add_noise(summed.total, release.silo_noise_std, secrets.child("noise").stream())
    return method.server(State(problem.x), release.encoding.decode(noisy), facts.in_round(1, 1)).x


def run_pfl(problem: TrainingJob[UserRound], users: int, threads: int = 1, workers: int = 1) -> tuple[float, Vector]:
    """Seconds of a central iteration with the first ``users`` users, and the model after it."""
    work, method = problem.work, problem.work.method
    records = users * work.records_per_user
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder, "problem.npz"), Path(folder, "result.npz")
        np.savez(
            given,
            features=problem.data.features[:records],
            labels=problem.data.labels[:records],
            bounds=np.arange(0, records + 1, work.records_per_user),
            x=problem.x.astype(np.float32),
            width=WIDTH,
            outputs=2,
            clip=work.clip,
            noise_multiplier=work.noise_multiplier,
            epochs=work.epochs,
            lr=method.local_lr,
            batch_size=method.batch_size,
            threads=threads,
        )
        many = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)) if workers > 1 else ()
        # The worker's folder holds modules of ours, which must not be found in place of others.
        environment = {"PYTHONSAFEPATH": "1", "PYTHONPATH": "", "OMP_NUM_THREADS": str(threads)}
        command = [str(PYTHON), *many, str(WORKER), str(given), str(result)]
        run_process(command, "user-round", environment, "; remove .venv-pfl and install it again with: make bench-pfl")
        with np.load(result) as found:
            return float(found["seconds"]), found["x"].astype(np.float64)


def _pfl_seconds(problem: TrainingJob[UserRound], threads: int, workers: int, part: float) -> float:
    return run_pfl(problem, round(part * problem.work.users), threads, workers)[0]
