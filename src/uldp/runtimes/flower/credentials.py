"""Keys of a silo, and certificates for trials.

A silo has two long-term keys. With the first (Ed25519) the silos know each other: the server cannot put itself in
between. With the second (ECDSA P-384) Flower's server knows the silo's node. The private authority and the server
certificate are for trials: in earnest the server's certificate comes from whoever issues certificates in your house.
"""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from uldp.crypto.keys import SigningKey
from uldp.errors import ConfigError, RunError, format_value, require
from uldp.rng import Secrets
from uldp.runs.files import private_folder, replace_file, report_disk_errors, stored_key

IDENTITY: Final = "identity.key"
NODE_KEY: Final = "node.key"
NODE_PUBLIC: Final = "node.pub"
CA: Final = "ca.crt"
CA_KEY: Final = "ca.key"
SERVER: Final = "server.pem"
SERVER_KEY: Final = "server.key"
STATE_ID: Final = "state.id"
"""In the folder of the keys and in that of the state: they belong together."""
MAX_DAYS: Final = 825
MAX_NAME: Final = 253
_PEM: Final = serialization.Encoding.PEM


@dataclass(frozen=True)
class PublicKeys:
    """What a silo may show: its two public keys, as in an experiment file."""

    silo: str
    identity: str
    node: str

    def lines(self) -> str:
        """Lines for the experiment file."""
        name = toml_key(self.silo)
        return f'[aggregation.identities]\n{name} = "{self.identity}"\n\n[deployment.nodes]\n{name} = "{self.node}"\n'


def toml_key(name: str) -> str:
    """A name as a key of a TOML file, quoted where it must be."""
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if plain else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def make_silo_keys(silo: str, folder: Path) -> PublicKeys:
    """Two new keys in ``folder``, for their owner only: both, or none.

    Keys that are there are never overwritten. Of a process that was killed in between one is left, and is used.
    """
    if not silo or not silo.isprintable() or len(silo) > MAX_NAME:
        raise ConfigError("a silo's name, as in the experiment", location="NAME", value=silo)
    files = [folder / name for name in (IDENTITY, NODE_KEY, NODE_PUBLIC)]
    with report_disk_errors(folder):
        left = [file for file in files if file.exists()]
    if len(left) == len(files):
        _refuse_existing(folder, (IDENTITY, NODE_KEY))
    private_folder(folder)
    try:
        stored_key(folder / IDENTITY)
        if folder / NODE_KEY not in left:
            key = ec.generate_private_key(ec.SECP384R1())
            secret = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
            replace_file(folder / NODE_KEY, secret)
        public = public_keys(silo, folder)
        replace_file(folder / NODE_PUBLIC, public.node.encode() + b"\n", mode=0o644)
    except BaseException:
        for file in files:
            if file not in left:
                with suppress(OSError):
                    file.unlink()
        raise
    return public


def public_keys(silo: str, folder: Path) -> PublicKeys:
    """The public halves of the keys in ``folder``."""
    return PublicKeys(silo, identity_of(folder).public.hex(), node_line(_node_key(folder / NODE_KEY).public_key()))


def identity_of(folder: Path) -> SigningKey:
    """The key by which the other silos know this one."""
    file = folder / IDENTITY
    secret = _read_private_key(file)
    if len(secret) != 32:
        raise RunError("is not a key of 32 bytes; make keys with `uldp keys silo`", location=str(file))
    return SigningKey(Secrets.from_key(secret))


def _read_private_key(file: Path) -> bytes:
    """A private key; one that others may read is refused, as ssh does."""
    try:
        secret, mode = file.read_bytes(), stat.S_IMODE(file.stat().st_mode)
    except FileNotFoundError:
        raise ConfigError("is not there; `uldp keys silo` makes it", location=str(file), value=str(file)) from None
    except OSError as error:
        raise RunError(f"{error.strerror}", location=str(file), value=str(file)) from error
    if mode & 0o077:
        why = f"others may read it (mode {mode:o}); chmod 600 {file}"
        raise ConfigError(why, location=str(file), value=f"{mode:o}")
    return secret


def tie_to_state(keys: Path, state: Path) -> None:
    """Let these keys respond from one folder of state only.

    Another folder has another ledger, and other noise for a round that was released from the first one.
    """
    if not check_tie(keys, state):
        own = stored_key(state / STATE_ID).hex()
        replace_file(keys / STATE_ID, f"{own}\n{state.resolve()}\n".encode())


def check_tie(keys: Path, state: Path) -> bool:
    """Whether these keys belong to this folder; False if they belong to none yet, refused if to another."""
    file, other = keys / STATE_ID, state / STATE_ID
    with report_disk_errors(file):
        known = file.read_text().partition("\n")[0] if file.exists() else ""
        own = other.read_bytes().hex() if other.exists() else ""
    if known and known != own:
        why = "these keys were used with another folder, whose ledger and noise are not here; give that one, or"
        why = f"{why} make new keys ({file} says which folder it is)"
        raise ConfigError(why, location="--state", value=str(state))
    return bool(known)


def _node_key(file: Path) -> ec.EllipticCurvePrivateKey:
    secret = _read_private_key(file)
    try:
        key = serialization.load_ssh_private_key(secret, password=None)
    except (ValueError, TypeError) as error:
        why = f"is not a private key ({error}); make keys with `uldp keys silo`"
        raise RunError(why, location=str(file)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RunError("is not an ECDSA key; make keys with `uldp keys silo`", location=str(file))
    return key


def node_line(key: ec.EllipticCurvePublicKey) -> str:
    """A public key as OpenSSH writes it."""
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def node_line_of(pem: bytes) -> str:
    """The same of a public key as Flower stores it."""
    key = serialization.load_pem_public_key(pem)
    return node_line(key) if isinstance(key, ec.EllipticCurvePublicKey) else ""


def make_certificates(folder: Path, hosts: Sequence[str], days: int) -> None:
    """A private authority (``ca.crt``) and a certificate of the server for ``hosts``, valid for ``days``."""
    require(1 <= days <= MAX_DAYS, "--days", days, f"1 to {MAX_DAYS} days")
    names = [_general_name(host) for host in hosts]
    _refuse_existing(folder, (CA, CA_KEY, SERVER, SERVER_KEY))
    private_folder(folder)
    authority, own = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "uldp trial authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    root = (
        certificate_builder(issuer, issuer, authority.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    server = (
        certificate_builder(subject, issuer, own.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    for file, key in ((CA_KEY, authority), (SERVER_KEY, own)):
        secret = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        replace_file(folder / file, secret)
    replace_file(folder / CA, root.public_bytes(_PEM), mode=0o644)
    replace_file(folder / SERVER, server.public_bytes(_PEM), mode=0o644)


def certificate_builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    """A certificate that is valid from now on, without extensions and not signed yet."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ a little
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    signs = dict.fromkeys(("key_cert_sign", "crl_sign"), signs_certificates)
    off = dict.fromkeys((*others, "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not signs_certificates, **signs, **off)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or len(host) > MAX_NAME or not host.isascii() or any(sign in host for sign in " :/"):
        raise ConfigError(f"a host name or an IP address, not {format_value(host)}", location="--host", value=host)
    return x509.DNSName(host)


def _refuse_existing(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        with report_disk_errors(folder):
            there = (folder / name).exists()
        if there:
            why = "is there already and is never overwritten; choose another folder (`uldp keys show` prints the public"
            raise RunError(f"{why} lines of keys that are there)", location=str(folder / name), value=name)
