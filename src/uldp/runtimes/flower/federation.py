"""A server or a silo of a real federation, with Flower's programs around it.

Our processes drive and remember; Flower's are started, watched, and started again when they die. A SuperLink that was
killed marks its run as failed and does not resume it: a new run is submitted, and sends again what got no response.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from uldp.errors import BudgetExhausted, ConfigError, RunError, UldpError, first_line
from uldp.experiment.build import PreparedExperiment
from uldp.experiment.config import Experiment
from uldp.runs.directory import TRANSPORT, RunDirectory
from uldp.runs.files import lock
from uldp.runtimes.flower import credentials
from uldp.runtimes.flower.child import check_system
from uldp.runtimes.flower.internals import NOT_ADMITTED, check_installed
from uldp.runtimes.flower.processes import (
    Address,
    FlowerFolder,
    NodeSide,
    Security,
    SuperLink,
    SuperNode,
    connection_problem,
)
from uldp.runtimes.flower.rotation import check_rotation_finished
from uldp.runtimes.flower.transport import ExchangeRecord, FlowerTransport
from uldp.runtimes.gauges import Gauges
from uldp.runtimes.policy import Policy, RefusedByOwner
from uldp.runtimes.release_trail import ReleaseTrail
from uldp.runtimes.result import OnRound, Result, RoundReport
from uldp.runtimes.serving import FailedResponse, Patience, ServedRun
from uldp.runtimes.silo_process import FrameServer, RefusingSilo, SiloProcess
from uldp.runtimes.silo_state import TrailSigner
from uldp.runtimes.temporary import TemporaryFolder
from uldp.sessions.server import is_closed as server_closed

Say = Callable[[str], None]
RECONNECT_SECONDS: Final = 60.0
"""How long a submitted run may take to connect before another one is submitted."""
START_SECONDS: Final = 120.0
"""How long silos are not asked because no run is there yet."""
LATE_SECONDS: Final = 30.0
"""How often it is said who is late."""
ADMISSION_SECONDS: Final = 300.0
"""How long a silo's node tries to be let in, for instance before the server has registered its key."""
SETTLED_SECONDS: Final = 30.0
"""A node that has lived so long was let in, and has started what responds to its messages."""
RESTART_SECONDS: Final = 5.0
"""How long a node that has ended stays down."""
REACH_SECONDS: Final = 20.0
"""How often a silo looks whether the server can be reached."""
REFUSAL_SECONDS: Final = 180.0
"""How long a silo whose owner refuses the experiment waits for the server to ask: twice, so that it counts."""
CLOSE_SECONDS: Final = 30.0
"""How long Flower gets at most to deliver a silo's last response."""


@dataclass(frozen=True)
class ServerEndpoint:
    """Where the server listens, and with which certificates; ``security`` is None on loopback only."""

    address: Address
    security: Security | None
    running: bool = False
    """Whether a SuperLink is there already."""

    def __post_init__(self) -> None:
        check_system()
        if self.security is not None:
            self.security.check()
        elif not self.address.loopback:
            why = "without certificates only loopback is allowed; give --certificates"
            raise ConfigError(why, location="--insecure", value=self)


def check_rehearsal(experiment: Experiment, address: Address, option: str) -> None:
    """Noise from a seed protects nobody, and a silo's own limit does not count it: it stays on one machine."""
    if experiment.run.secrets == "simulated" and not address.loopback:
        why = "a rehearsal (run.secrets = 'simulated') stays on this machine; take 127.0.0.1, or run.secrets = 'os'"
        raise ConfigError(why, location=option, value=str(address))


def node_keys(prepared: PreparedExperiment, security: Security | None) -> dict[str, str]:
    """Every silo's public node key. Without TLS Flower cannot check keys, and nodes are asked for their names."""
    if security is None:
        return {}
    given = prepared.experiment.deployment.nodes
    for silo in prepared.plan.silos:
        if silo not in given:
            why = "the silo's node key is missing; `uldp keys silo` makes it"
            raise ConfigError(why, location=f"deployment.nodes.{silo}")
    return {silo: str(given[silo]) for silo in prepared.plan.silos}


class _Supervisor(ABC):
    """A thread that keeps programs of Flower running until :meth:`end`."""

    join_seconds: float

    def __init__(self, say: Say) -> None:
        self._say = say
        self._stop = threading.Event()

    @contextmanager
    def attach(self) -> Iterator[Self]:
        """Begin, and look after it until the block ends."""
        self._begin()
        thread = threading.Thread(target=self._supervise, name=type(self).__name__, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.end()
            thread.join(timeout=self.join_seconds)

    def end(self) -> None:
        self._stop.set()

    def _begin(self) -> None:  # noqa: B027
        """What must succeed before anything is supervised."""

    @abstractmethod
    def _supervise(self) -> None:
        """Supervise until :meth:`end`, in a thread of its own."""


class ServerSupervisor(_Supervisor):
    """Keeps a SuperLink and a run alive below a transport, and says who is late."""

    join_seconds = 90.0

    def __init__(self, superlink: SuperLink, transport: FlowerTransport, keys: Mapping[str, str], say: Say) -> None:
        super().__init__(say)
        self._superlink = superlink
        self._transport = transport
        self._keys = keys
        self._submitted = time.monotonic()
        self._reported_at = time.monotonic()

    def _begin(self) -> None:
        self._superlink.start()
        self._transport.set_nodes(self._superlink.register(self._keys))
        self._submit()

    @property
    def trouble(self) -> str:
        """What is wrong with Flower's programs at this moment, as a sentence; empty if nothing is."""
        if not self._superlink.running:
            return "the SuperLink has ended; it is started again"
        return "" if self._transport.is_connected else "no run of Flower is connected"

    def _submit(self) -> None:
        self._superlink.submit(self._transport.new_token())
        self._submitted = time.monotonic()

    def _supervise(self) -> None:
        while not self._stop.wait(1.0):
            try:
                self._restart_ended_processes()
                late = self._transport.pending(LATE_SECONDS)
                if late and time.monotonic() - self._reported_at > LATE_SECONDS:
                    self._reported_at = time.monotonic()
                    absent = self._transport.absent
                    named = [f"{silo} (not there)" if silo in absent else silo for silo in late]
                    self._say(f"waiting for {', '.join(named)}")
            except Exception as error:  # whatever it is: the server must not wait without anybody to look after Flower
                try:
                    self._superlink.check_room()
                except RunError as full:  # the run stops, as it does when its own files cannot be written
                    self._transport.fail(full)
                    return
                why = str(error) if isinstance(error, UldpError) else first_line(error)
                self._say(f"Flower cannot be started again: {why}; trying on")
                self._stop.wait(RESTART_SECONDS)

    def _restart_ended_processes(self) -> None:
        if not self._superlink.running:
            self._say("the SuperLink has ended; starting it again")
            self._superlink.stop()
            self._superlink.start()
            self._submit()
        elif min(self._transport.seconds_without_run, time.monotonic() - self._submitted) > RECONNECT_SECONDS:
            self._say("no run of Flower is there; submitting another")
            self._submit()


def serve(
    prepared: PreparedExperiment,
    directory: RunDirectory,
    where: ServerEndpoint,
    *,
    patience: Patience,
    on_round: OnRound,
    say: Say,
    gauges: Gauges | None = None,
) -> Result:
    """Run the server's part of an experiment, begun or resumed, and leave the run directory of a simulation."""
    watched = gauges or Gauges()
    watched.set("uldp_rounds", prepared.plan.rounds)
    check_rehearsal(prepared.experiment, where.address, "--address")

    def report_failures(failed: Mapping[str, FailedResponse]) -> None:
        for silo, why in failed.items():
            if not why.late:  # those are the supervisor's
                watched.add("uldp_refusals_total", silo)
                say(f"silo {silo}: {why.reason.removeprefix(f'silo {silo}: ')}")

    def note(exchange: ExchangeRecord) -> None:
        """One line, for an owner who wants to know what the transport costs: times are not for others."""
        stage, rounds = serving.stage
        directory.append_private("traffic.jsonl", {"stage": stage, "rounds_done": rounds, **asdict(exchange)})

    with ExitStack() as until:
        transport = FlowerTransport(limit=prepared.plan.message_limit, on_exchange=note)
        until.callback(transport.close)
        watched.ask(transport.measures)

        def note_round(report: RoundReport) -> object:
            trail.catch_up()
            watched.set("uldp_round", report.round)
            watched.set("uldp_epsilon", report.epsilon)
            return on_round(report)

        serving = ServedRun(
            prepared, directory, transport, patience=patience, on_round=note_round, on_trouble=report_failures
        )
        checkpoint = directory.state.load_checkpoint() if directory.finished else None
        if directory.finished and (checkpoint is None or server_closed(checkpoint.server)):
            return serving.run()  # for show: the result is written, and all silos were asked to close
        check_installed()
        keys = node_keys(prepared, where.security)
        until.enter_context(directory.lock())  # before anything is started that another process has started too
        trail = ReleaseTrail(directory)
        trail.catch_up()
        home = FlowerFolder(directory.private / TRANSPORT, (where.address.host,))
        superlink = SuperLink(home, where.address, where.security, transport.address, running=where.running)
        until.callback(superlink.end)
        until.callback(transport.close)  # the run hears of the end before Flower does
        supervisor = until.enter_context(ServerSupervisor(superlink, transport, keys, say).attach())
        watched.watch(lambda: supervisor.trouble)
        transport.wait_for_run(START_SECONDS)
        result = serving.run()
        trail.catch_up()
        say(f"audit trail: head {trail.head}")
        return result


@dataclass(frozen=True)
class ServerConnection:
    """How a silo reaches the server: without an authority ``ca`` on loopback only."""

    superlink: Address
    keys: Path | None
    ca: Path | None
    state: Path
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        check_system()
        if self.ca is None and not self.superlink.loopback:
            raise ConfigError("without an authority only loopback is allowed; give --ca", location="--insecure")
        if self.ca is not None and not self.ca.is_file():
            why = "there is no certificate of the authority; ask the server's people for ca.crt"
            raise ConfigError(why, location=str(self.ca), value=str(self.ca))


def join(prepared: PreparedExperiment, joining: ServerConnection, say: Say, gauges: Gauges | None = None) -> None:
    """Respond for one silo until the experiment is over."""
    check_installed()
    check_rehearsal(prepared.experiment, joining.superlink, "--superlink")
    experiment, keys = prepared.experiment, joining.keys
    own = None if keys is None else credentials.identity_of(keys)
    identity = own if experiment.aggregation.identities else None
    if joining.ca is not None:
        _check_node_key(experiment, prepared.silo, keys)
    with ExitStack() as until:
        if keys is not None:
            taken = "another process uses these keys; stop it first"
            until.enter_context(lock(keys / "lock", taken, str(keys)))
            check_rotation_finished(keys)
            credentials.check_tie(keys, joining.state)
        # Paths of sockets must be short, and folders of state need not be.
        folder = until.enter_context(TemporaryFolder("silo"))
        address = f"unix:{folder.path / 'silo'}"
        signer = None if keys is None or own is None else TrailSigner(own, keys)
        process = SiloProcess(prepared, joining.state, address, identity=identity, policy=joining.policy, signer=signer)
        silo = until.enter_context(process)
        if keys is not None:  # last: a start that failed has released nothing
            credentials.tie_to_state(keys, joining.state)
        node = until.enter_context(Node(joining, silo, address, say).attach())
        if gauges is not None:
            gauges.ask(process.measures)
            gauges.watch(lambda: node.problem)
        try:
            silo.serve()
        finally:
            node.end()
    if node.trouble is not None:
        raise node.trouble


@contextmanager
def telling_refusals(silo: str, joining: ServerConnection, say: Say) -> Iterator[None]:
    """Where the silo's owner refuses the experiment, inside, the server hears that: the silo is not just absent.

    The server learns that it is so, and not why. Where it cannot be reached at once, it learns nothing.
    """
    try:
        yield
    except (RefusedByOwner, BudgetExhausted) as refusal:
        with suppress(UldpError, OSError):
            if not connection_problem(joining.superlink, joining.ca):
                say(f"{refusal}. The server is informed, for {REFUSAL_SECONDS:g} s at most")
                _tell_refusal(silo, joining, say)
        raise


def _tell_refusal(silo: str, joining: ServerConnection, say: Say) -> None:
    check_installed()
    with ExitStack() as until:
        if joining.keys is not None:
            until.enter_context(lock(joining.keys / "lock", "another process uses these keys", str(joining.keys)))
        folder = until.enter_context(TemporaryFolder("silo"))
        address = f"unix:{folder.path / 'silo'}"
        refusing = RefusingSilo(silo, address)
        until.enter_context(Node(replace(joining, state=folder.path), refusing, address, say).attach())
        end = threading.Timer(REFUSAL_SECONDS, refusing.stop)
        end.daemon = True
        end.start()
        until.callback(end.cancel)
        refusing.serve()


def _check_node_key(experiment: Experiment, silo: str, keys: Path | None) -> None:
    """With another silo's key a node would be let in as that silo, or not at all."""
    if keys is None:
        raise ConfigError("are needed over TLS; `uldp keys silo` makes them", location="--keys")
    agreed = str(experiment.deployment.nodes.get(silo, ""))
    if agreed and agreed.split()[:2] != credentials.public_keys(silo, keys).node.split()[:2]:
        why = f"the node key in there is another than deployment.nodes.{silo}; compare the files"
        raise ConfigError(why, location="--keys", value=str(keys))


@dataclass
class ConnectionWatch:
    """Says when the server cannot be reached, and when it can again: Flower's node would be silent about it."""

    superlink: Address
    ca: Path | None
    say: Say
    problem: str = ""
    """Why the server could not be reached when that was tried last, at ``tried``."""
    tried: float = 0.0

    def probe(self) -> None:
        """Try to connect, every now and then."""
        if time.monotonic() - self.tried < REACH_SECONDS:
            return
        before, self.problem = self.problem, connection_problem(self.superlink, self.ca)
        self.tried = time.monotonic()
        if self.problem and self.problem != before:
            self.say(f"cannot reach {self.superlink} (trying on): {self.problem}")
        elif before and not self.problem:
            self.say(f"{self.superlink} responds now")


class Node(_Supervisor):
    """Keeps a silo's SuperNode alive, and ends it when the silo's session is closed."""

    join_seconds = 30.0

    def __init__(self, joining: ServerConnection, silo: FrameServer, address: str, say: Say) -> None:
        super().__init__(say)
        self._silo = silo
        self._home = FlowerFolder(joining.state / "flower")
        key = None if joining.ca is None or joining.keys is None else joining.keys / credentials.NODE_KEY
        self._side = NodeSide(joining.superlink, joining.ca, key, {"silo": silo.name, "socket": address})
        self._watch = ConnectionWatch(joining.superlink, joining.ca, say)
        self.trouble: RunError | None = None

    @property
    def problem(self) -> str:
        """Why the server cannot be reached, as a sentence; empty if it can."""
        return self._watch.problem and f"the server cannot be reached: {self._watch.problem}"

    def _failure_reason(self, node: SuperNode) -> str:
        if self.problem:
            return self.problem
        said = node.log_tail()
        if NOT_ADMITTED in said:
            return (
                "the server does not let it in, as for a minute after a restart, or before it has registered the "
                "silos; if that goes on, another process is there with this silo's node key, or deployment.nodes has "
                "another key"
            )
        return said

    def _supervise(self) -> None:
        # Linux ends a child with the thread that started it: the node lives in this one.
        try:
            self._keep_running()
        except Exception as error:  # whatever it is: a silo without a node responds to nobody, and must not look alive
            self.trouble = RunError(f"Flower's node cannot be kept running: {first_line(error)}", location="join")
        finally:
            self._silo.stop()

    def _keep_running(self) -> None:
        """Keep a node running until the silo's session is closed, or there is no hope."""
        node: SuperNode | None = None
        well, said = time.monotonic(), ""
        try:
            while not self._stop.is_set():
                try:
                    node = SuperNode(self._home, self._side)
                    well = max(well, self._wait_for_end(node))
                    if self._stop.is_set() or self._silo.closed:
                        return
                    why = self._failure_reason(node)
                    node.stop()
                except (UldpError, OSError) as error:  # the disk is full, or a program is gone
                    why = str(error)
                if time.monotonic() - well > ADMISSION_SECONDS:
                    where = str(self._side.superlink)
                    self.trouble = RunError(f"Flower's node does not stay up: {why}", location=where)
                    return
                if why != said:
                    self._say(f"Flower's node has ended and is started again: {why}")
                said = why
                self._stop.wait(RESTART_SECONDS)
        finally:
            if node is not None:
                node.stop()

    def _wait_for_end(self, node: SuperNode) -> float:
        """Wait until a node has ended, or is not needed any more; when it was last well."""
        started, well, delivered = time.monotonic(), 0.0, node.delivery_count
        while not node.has_ended and not self._stop.wait(0.5):
            self._watch.probe()
            if self._silo.closed:
                # Let the node bring the last response to the server: it is the first delivery after the others.
                end = time.monotonic() + CLOSE_SECONDS
                while node.delivery_count <= delivered and not node.has_ended and time.monotonic() < end:
                    if self._stop.wait(0.1):
                        break
                break
            delivered = node.delivery_count
            if time.monotonic() - started > SETTLED_SECONDS:
                well = time.monotonic()
        return well
