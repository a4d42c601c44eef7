"""Messages that nobody would send, against both sessions in every phase: ``make fuzz``.

An experiment of each kind is run once and written down: before every exchange the state of all parties, the requests
and the responses. Then a session is brought to each of these places, again and again, and gets mutated messages
(:mod:`tests.fuzz.mutations`). Each of them must be refused, with an error that we declare and nothing changed; or be
taken, and then whatever follows of it (adding up, charging, stepping, saving) must end well or in a declared error.
After each series the genuine exchange must come out as if nothing had happened, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fuzz.fuzz_cases import CASES, Case, Place
from tests.fuzz.mutations import mutated

from uldp.bench.machine import PeakMemory, Say, check_names, silent
from uldp.errors import ConfigError, MessageRefused, UldpError, describe_unexpected, first_line
from uldp.protocol import messages as m
from uldp.rng import Streams
from uldp.runtimes.recording import torch_threads
from uldp.sessions.silo import ReleaseGuard

SERIES: Final = 500
"""Messages that a session gets at one place, at most."""
SOME: Final = 20
"""Messages of other cases that one is mixed with."""
MAX_FINDINGS: Final = 20


@dataclass
class CountingGuard(ReleaseGuard):
    """How often a silo was about to release something."""

    begun: int = 0

    def before_round(self, round_: int, request: str) -> None:
        self.begun += 1


@dataclass
class Outcomes:
    """What became of the messages of one case."""

    refused: int = 0
    taken: int = 0
    failed: int = 0
    """What was computed of a message ended in a declared error."""
    findings: list[str] = field(default_factory=list)

    def find(self, what: str, message: bytes) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(f"{what}: {message[:200].hex()}{'...' if len(message) > 200 else ''}")


@dataclass
class Target(ABC):
    """A party of a case at a place, and how a message is handed to it."""

    case: Case
    location: Place
    name: str

    @property
    @abstractmethod
    def due(self) -> bytes:
        """The genuine message."""

    @abstractmethod
    def reset(self) -> None:
        """Bring the party to its place."""

    @abstractmethod
    def hand(self, message: bytes) -> None:
        """Give it a message."""

    def follow(self) -> None:  # noqa: B027
        """After a message was accepted: whatever comes of it."""

    @abstractmethod
    def state(self) -> tuple[object, ...]:
        """What must not change when a message is refused; first what is saved, or requested."""

    @abstractmethod
    def genuine(self) -> bool:
        """Whether the genuine exchange comes out as it should."""


class AtServer(Target):
    """A server that waits for a silo's response."""

    def reset(self) -> None:
        self.session = self.case.server(self.location)

    @property
    def due(self) -> bytes:
        return self.location.taken[self.name]

    def hand(self, message: bytes) -> None:
        self.session.receive(self.name, message)
        self.taken = message

    def follow(self) -> None:
        session = self.session
        if zlib.crc32(self.taken) % 2:
            self._respond_alike(m.open_envelope(self.taken, self.case.plan.kinds)[1])
        self._take_the_others()
        session.collect()
        session.save()
        session.charge()
        session.advance()
        again = self.case.server()
        again.restore(session.save())
        again.requests()

    def _respond_alike(self, body: m.Message) -> None:
        """The other silos respond alike, as far as that is accepted: what one may send, all may send."""
        for name in self.session.requests():
            with suppress(MessageRefused):
                self.session.receive(name, m.encode(self.case.plan.digest, name, body))

    def _take_the_others(self) -> None:
        for name in self.session.requests():
            self.session.receive(name, self.location.taken[name])

    def state(self) -> tuple[object, ...]:
        session = self.session
        about = (
            session.model.tobytes(),
            session.ledger.entries,
            session.saturated,
            session.metrics,
            session.silos_heard,
        )
        return session.requests(), session.round, session.missing_silos, session.stage, *about

    def genuine(self) -> bool:
        self._take_the_others()
        self.session.collect()
        return self.session.save() == self.location.after


class AtSilo(Target):
    """A silo that gets a request."""

    def reset(self) -> None:
        self.watch = CountingGuard()
        self.session = self.case.silo(self.name, self.watch, self.location)
        self.response = b""

    @property
    def due(self) -> bytes:
        return self.location.requests[self.name]

    def hand(self, message: bytes) -> None:
        self.response = self.session.reply(message)

    def follow(self) -> None:
        again = self.case.silo(self.name, ReleaseGuard())
        again.restore(self.session.save())
        plan = self.case.plan
        m.decode(self.response, experiment=plan.digest, silo=self.name, limit=plan.message_limit, kinds=plan.kinds)

    def state(self) -> tuple[object, ...]:
        return self.session.save(), self.session.left_out, self.watch.begun

    def genuine(self) -> bool:
        return self.session.reply(self.due) == self.location.replies[self.name]


class AtShuffler(Target):
    """A shuffler that gets a round's updates. It remembers nothing."""

    @property
    def due(self) -> bytes:
        return self.location.replies[self.name]

    def reset(self) -> None:
        self.round = self.case.server(self.location).round + 1

    def hand(self, message: bytes) -> None:
        self.case.mixed({**self.location.replies, self.name: message}, self.round)

    def state(self) -> tuple[object, ...]:
        return ((),)

    def genuine(self) -> bool:
        return self.case.mixed(self.location.replies, self.round) == self.location.taken


def run_fuzz(messages: int, seed: int = 0, cases: Sequence[str] = (), say: Say = silent) -> dict[str, Any]:
    """Hand out so many messages, spread over all places of all cases, and count what became of them."""
    if messages < 1:
        raise ConfigError(f"at least 1, not {messages}", location="--messages", value=messages)
    check_names(cases, CASES)
    began = time.perf_counter()
    with torch_threads(1), PeakMemory() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # models of 1e308 overflow, and shall
        built = {name: Case(CASES[name]) for name in cases or CASES}
        outcomes = {name: Outcomes() for name in built}
        targets = [(name, target) for name, case in built.items() for target in _targets(case)]
        elsewhere = [one for case in built.values() for one in case.messages]
        rng = random.Random(Streams.from_seed(seed).child("fuzz").word())
        before, size = PeakMemory.present_mb(), min(SERIES, -(-messages // len(targets)))
        for done in range(0, messages, size):
            name, target = targets[done // size % len(targets)]
            pool = [*target.case.messages, *rng.sample(elsewhere, SOME)]
            _series(target, min(size, messages - done), rng, pool, outcomes[name])
            if done // size % 100 == 99:
                say(f"{done + size:,} messages, {time.perf_counter() - began:.0f} s")
    return {
        "messages": messages,
        "seed": seed,
        "places": len(targets),
        "cases": [{"name": name, **vars(outcome)} for name, outcome in outcomes.items()],
        "peak_mb": memory.peak_mb,
        "growth_mb": memory.peak_mb - before,
        "seconds": time.perf_counter() - began,
    }


def _targets(case: Case) -> Iterator[Target]:
    """Server and silos in turn, at every place."""
    for number, location in enumerate(case.places):
        names = list(location.requests)
        yield AtServer(case, location, names[number % len(names)])
        yield AtSilo(case, location, names[(number + 1) % len(names)])
        if location.taken is not location.replies:
            yield AtShuffler(case, location, names[number % len(names)])


def _series(target: Target, count: int, rng: random.Random, pool: Sequence[bytes], outcomes: Outcomes) -> None:
    """Messages for one party at one place, then the genuine exchange."""
    target.reset()
    before = target.state()
    genuine = [target.due, *pool]
    for _ in range(count):
        message = mutated(rng, genuine)
        if message == target.due:
            message += b"\0"
        if not _unchanged(target, message, before, outcomes):
            target.reset()
    try:
        if not target.genuine():
            outcomes.find("the genuine exchange comes out otherwise", target.due)
    except Exception as error:
        outcomes.find(f"the genuine exchange fails ({first_line(error)})", target.due)


def _unchanged(target: Target, message: bytes, before: tuple[object, ...], outcomes: Outcomes) -> bool:
    """Hand over a message; whether the session stands where it stood."""
    try:
        target.hand(message)
    except MessageRefused:
        outcomes.refused += 1
        if target.state() != before:
            outcomes.find("refused, and the state is another", message)
            return False
        return True
    except UldpError:  # while it was computed: a model that diverges, say
        outcomes.failed += 1
        if target.state()[0] != before[0]:
            outcomes.find("failed, and the state is another", message)
        return False
    except Exception as error:
        outcomes.find(describe_unexpected(error), message)
        return False
    outcomes.taken += 1
    try:
        target.follow()
    except UldpError:
        outcomes.failed += 1
    except Exception as error:
        outcomes.find(f"taken, then {describe_unexpected(error)}", message)
    return False


def main(words: Sequence[str]) -> int:
    """Print what became of the messages as JSON; 1 if there are findings."""
    parser = argparse.ArgumentParser(description="Send mutated messages to server and silos in every phase.")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", action="append", default=[], help="one of the cases; all by default")
    given = parser.parse_args(words)
    found = run_fuzz(given.messages, given.seed, given.case, lambda text: print(text, file=sys.stderr, flush=True))
    print(json.dumps(found, indent=2))
    return int(any(case["findings"] for case in found["cases"]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
