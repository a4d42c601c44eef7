"""What can be found wrong before anything starts: files, certificates, ports, keys, clocks, versions, data."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from uldp.errors import ConfigError, UldpError
from uldp.experiment.build import PreparedExperiment
from uldp.experiment.config import Experiment
from uldp.experiment.foreign import foreign_code
from uldp.experiment.loading import silo_federation
from uldp.experiment.parties import check_deployable, prepare_server
from uldp.runs.files import private_folder
from uldp.runtimes.flower import credentials
from uldp.runtimes.flower.child import check_system
from uldp.runtimes.flower.internals import VERSION, check_installed
from uldp.runtimes.flower.processes import Address, connection_problem
from uldp.runtimes.flower.proxies import https_connection
from uldp.runtimes.policy import LedgerGuard, OwnLedger, Policy, describe_spending
from uldp.runtimes.silo_state import experiments_in, ledger_name

SOON: Final = timedelta(days=14)
MAX_SKEW: Final = 30.0
"""Seconds. Flower refuses a node whose clock differs by more than some minutes."""
MIN_FREE_BYTES: Final = 1 << 30
Known = Callable[[], PreparedExperiment]
"""What the experiment file alone says, prepared once."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. ``detail`` is what was found, with the remedy for a problem."""

    what: str
    ok: bool
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "ok": self.ok, "detail": self.detail}


@dataclass(frozen=True)
class ServerOptions:
    """What a server would be started with."""

    address: Address
    certificates: Path | None


@dataclass(frozen=True)
class SiloOptions:
    """What a silo would be started with."""

    name: str
    data: Path | None = None
    keys: Path | None = None
    ca: Path | None = None
    superlink: Address | None = None
    policy: Path | None = None
    state: Path | None = None

    def owners_policy(self) -> Policy:
        """As ``uldp join`` finds it."""
        return Policy() if self.state is None else Policy.of_silo(self.state, self.policy)


def examine(
    experiment: Experiment, server: ServerOptions | None, silos: Sequence[SiloOptions], *, rehearsal: bool
) -> list[Finding]:
    """Everything that can be said about this machine's part."""
    known = cache(lambda: prepare_server(experiment, rehearsal=True))
    with ThreadPoolExecutor(1) as aside:  # Flower is looked at in a process of its own, which takes a second
        machine = aside.submit(lambda: list(machine_findings()))
        found = list(_experiment(experiment, known, rehearsal))
        found = [*machine.result(), *found]
    if server is not None:
        found.append(port_finding(server.address))
        if missing := missing_test(experiment):
            found.append(Finding("test set", False, missing))
        if server.certificates is not None:
            found += certificate_findings(server.certificates, server.address.host)
    for silo in silos:
        found += _silo(experiment, known, silo)
    return found


def _finding(what: str, ok: bool, fine: str, problem: str) -> Finding:
    return Finding(what, ok, fine if ok else problem)


def _try_check(what: str, look: Callable[[], str]) -> Finding:
    """What ``look`` says; an error of ours is a problem, with its own remedy."""
    try:
        return Finding(what, True, look())
    except UldpError as error:
        return Finding(what, False, str(error))


class ForeignCodeRefused(ConfigError):
    """An experiment names code that is not to be run here."""


class CodeGate:
    """Lets foreign code run with ``run_code``, or if the owners of all silos have named it; never against a policy."""

    def __init__(self, policies: Sequence[Policy], *, run_code: bool) -> None:
        self._policies = policies
        self._run_code = run_code
        self.findings: list[Finding] = []

    def __call__(self, tree: Any) -> None:
        code, unchecked = foreign_code(tree), "it was not run, and what depends on it was not checked"
        if not code:
            return
        listed, allowed = ", ".join(map(str, code)), self._run_code
        allowed |= bool(self._policies) and all(policy.allows(code) for policy in self._policies)
        said = f"runs {listed}, which is not uldp's"
        if not allowed:
            remedy = "Read that code, then add --run-code, or name it in policy.allowed_code"
            said = f"the experiment {said}; {unchecked}. {remedy}"
        try:
            for policy in self._policies:
                policy.check_names(tree)
        except ConfigError as error:
            allowed, said = False, f"{error}; {unchecked}"
        self.findings = [Finding("code", allowed, said)]
        if not allowed:
            raise ForeignCodeRefused(said, location="code")


def machine_findings() -> Iterator[Finding]:
    """Of the machine alone."""
    from uldp.runs.directory import versions

    def flower() -> str:
        check_system()
        check_installed()
        return f"version {VERSION}"

    yield Finding("versions", True, ", ".join(f"{name} {number}" for name, number in versions().items()))
    yield _try_check("Flower", flower)
    free = shutil.disk_usage(".").free
    found = f"{free / 2**30:.1f} GB are free here"
    yield _finding("disk", free >= MIN_FREE_BYTES, found, f"{found}; free some space")


def _experiment(experiment: Experiment, known: Known, rehearsal: bool) -> Iterator[Finding]:
    def deployable() -> str:
        check_deployable(experiment, rehearsal=rehearsal)
        return f"{experiment.method_name}, {experiment.aggregation.name}"

    yield _try_check("experiment", deployable)
    try:
        plan = known().plan
    except UldpError as error:
        yield Finding("silos", False, str(error))
        return
    yield Finding("digest", True, f"{plan.digest[:12]}, for all parties the same")
    yield Finding("silos", True, ", ".join(plan.silos))
    for section, given, needed in (
        ("aggregation.identities", experiment.aggregation.identities, plan.aggregation.needs_key_agreement),
        ("deployment.nodes", experiment.deployment.nodes, True),
    ):
        if not given and not needed:
            yield Finding(section, True, f"{experiment.aggregation.name} needs none")
            continue
        odd = sorted(set(plan.silos) ^ set(given))
        problem = f"one key for each silo and no other; see {''.join(map(repr, odd[:1]))}. `uldp keys silo` makes them"
        yield _finding(section, not odd, f"{len(given)} public keys", problem)


def missing_test(experiment: Experiment) -> str:
    """What to say about a test file that is not here; empty if it is, or none is wanted."""
    test = experiment.data.test
    if experiment.data.dataset is not None or test is None or (experiment.base / test).exists():
        return ""
    missing = f"data.test: no file {str(experiment.base / test)!r}"
    return f"{missing}; the server measures the model on it, so put it there, or there will be no metrics"


def port_finding(address: Address) -> Finding:
    """Listen there for a moment: a port may be taken, forbidden, or of another machine."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen()
    except OSError as error:
        why = error.strerror or str(error)
        return Finding("port", False, f"cannot listen at {address} ({why}); stop that program, or choose another")
    return Finding("port", True, f"{address} is free")


def certificate_findings(folder: Path, host: str) -> list[Finding]:
    """The server's certificate: there, valid, for this host, by this authority, with this key."""
    try:
        roots = x509.load_pem_x509_certificates((folder / credentials.CA).read_bytes())
        own, *chain = x509.load_pem_x509_certificates((folder / credentials.SERVER).read_bytes())
        key = serialization.load_pem_private_key((folder / credentials.SERVER_KEY).read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        return [Finding("certificates", False, f"{folder}: {error}; `uldp keys certificates` makes some for trials")]
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    fits = key.public_key().public_bytes(*form) == own.public_key().public_bytes(*form)
    # A server that listens everywhere is reached by its own programs on loopback.
    needed = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    names = _names(own)
    listed = ", ".join(names)
    wildcard = f"*.{needed.partition('.')[2]}" if "." in needed else needed
    named = bool({needed.lower(), wildcard.lower()} & {name.lower() for name in names})
    return [
        *(_validity("authority", root) for root in roots),
        *(_validity("between", link) for link in chain),
        _validity("certificate", own),
        _finding("its authority", _is_signed(own, chain, roots), "signed by ca.crt", "not by ca.crt"),
        _finding("its key", fits, "fits", "server.key does not belong to server.pem"),
        _finding("its names", named, listed, f"{needed} is not among {listed or 'none'}; make a new one"),
        _private(folder / credentials.SERVER_KEY),
    ]


def _is_signed(own: x509.Certificate, chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate]) -> bool:
    """Whether one of ``roots`` signed it, or somebody in ``chain`` whom one of them signed."""

    def is_issuer(by: x509.Certificate) -> bool:
        try:
            own.verify_directly_issued_by(by)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    further = [link for link in chain if link != own]
    return any(map(is_issuer, roots)) or any(is_issuer(link) and _is_signed(link, further, roots) for link in further)


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _validity(what: str, certificate: x509.Certificate) -> Finding:
    now, end = datetime.now(UTC), certificate.not_valid_after_utc
    if not certificate.not_valid_before_utc <= now <= end:
        return Finding(what, False, f"valid to {end:%Y-%m-%d}, not today; renew it, or set the clock")
    return Finding(what, True, f"valid to {end:%Y-%m-%d}" + (", which is soon" if end - now < SOON else ""))


def _private(file: Path) -> Finding:
    mode = stat.S_IMODE(file.stat().st_mode)
    said = f"mode {mode:o}"
    return _finding(file.name, not mode & 0o077, said, f"{said}; others may read it: chmod 600 {file}")


def _silo(experiment: Experiment, known: Known, silo: SiloOptions) -> Iterator[Finding]:
    def data() -> str:
        federation = silo_federation(experiment, silo.name, silo.data, None)
        data = federation.silos[known().plan.silos.index(silo.name)]
        return f"{len(data)} records of {len(set(data.users.tolist()))} users fit the experiment"

    def policy() -> str:
        silo.owners_policy().check(experiment, known().plan, known().no_guarantee)
        return str(silo.owners_policy()).removeprefix("policy: ")

    yield _try_check(f"data of {silo.name}", data)
    yield _try_check("policy", policy)
    if silo.state is not None and silo.state.exists():
        yield _try_check("state", lambda: _state(experiment, known(), silo, silo.state or Path()))
    if silo.keys is None:
        return
    yield from _keys(experiment, silo.name, silo.keys)
    ca = silo.ca or silo.keys / credentials.CA
    authority = _authority(ca)
    yield authority
    if silo.superlink is not None and authority.ok:
        yield _clock(silo.superlink, ca)


def _state(experiment: Experiment, known: PreparedExperiment, silo: SiloOptions, folder: Path) -> str:
    """The silo's folder: for its owner only, of these keys, and with room in its budget."""
    private_folder(folder)
    if silo.keys is not None:
        credentials.check_tie(silo.keys, folder)
    ledger = OwnLedger(folder / ledger_name(rehearsal=experiment.run.secrets == "simulated"), silo.owners_policy())
    begun = {one.digest: one for one in experiments_in(folder)} if (folder / "experiments").is_dir() else {}
    mine = begun.get(known.plan.digest)
    if mine is not None and (mine.over or mine.round):
        stands = "and is over" if mine.over else f"round {mine.round} was the last"
        return f"{describe_spending(ledger)}; this experiment was begun, {stands}"
    LedgerGuard.of(ledger, known.plan, "", known.no_guarantee).check(None, known.plan.rounds)
    return describe_spending(ledger)


def _keys(experiment: Experiment, silo: str, folder: Path) -> Iterator[Finding]:
    try:
        public = credentials.public_keys(silo, folder)
    except UldpError as error:
        yield Finding(f"keys of {silo}", False, str(error))
        return
    for section, given, own in (
        ("aggregation.identities", experiment.aggregation.identities, public.identity),
        ("deployment.nodes", experiment.deployment.nodes, public.node),
    ):
        problem = "is another key than the one here; compare the files"
        if silo in given:  # else it was said above, if that is a problem
            yield _finding(f"{section}.{silo}", given[silo] == own, "is this key", problem)
    for name in (credentials.IDENTITY, credentials.NODE_KEY):
        yield _private(folder / name)


def _authority(file: Path) -> Finding:
    try:
        return _validity("authority", x509.load_pem_x509_certificates(file.read_bytes())[0])
    except OSError as error:
        why = error.strerror
    except ValueError:
        why = "holds no certificate"
    return Finding("authority", False, f"{file}: {why}; ask the server's people for ca.crt")


def _clock(superlink: Address, ca: Path) -> Finding:
    """Reach the server over TLS, and compare the clocks."""
    if trouble := connection_problem(superlink, ca):
        return Finding("server", False, f"{superlink}: {trouble}")
    try:
        context = ssl.create_default_context(cafile=str(ca))
        connection = https_connection(superlink.host, superlink.port, context, 5.0)
        connection.request("GET", "/")
        said = connection.getresponse().headers.get("Date")
        connection.close()
    except (OSError, http.client.HTTPException) as error:
        return Finding("server", False, f"{superlink}: {error}; is a SuperLink there?")
    if said is None:
        return Finding("server", True, "responds over TLS; it does not send its time")
    skew = abs(time.time() - parsedate_to_datetime(said).timestamp())
    found = f"responds over TLS, clocks differ by {skew:.0f} s"
    return _finding("server", skew <= MAX_SKEW, found, f"{found}; set them")
