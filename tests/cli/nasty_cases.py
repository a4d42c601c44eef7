"""The table of nasty inputs: command lines, experiment files, tables and run directories that must be refused.

``nasty.py`` runs them. A case is a command line in a folder with ``e.toml`` (EXPERIMENT), the tables ``a.csv``,
``b.csv`` and ``t.csv`` (TABLE), a module ``foreign.py``, the finished run ``run`` and the silo's keys ``keys``; files
that a case brings along replace these or join them.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MARK = "773141"
"""Part of every cell of one person's record in the tables: it must never stand in a message."""

EXPERIMENT = """
[data]
silos = ["a.csv", "b.csv"]
user = "id"
label = "y"
users = 20
test = "t.csv"
[data.schema]
outside = "error"
[data.schema.label]
kind = "class"
classes = [0, 1]
[data.schema.columns.age]
kind = "number"
range = [0, 1e6]
[data.schema.columns.ward]
kind = "category"
categories = ["a", "b"]
[method]
name = "uldp-avg-w"
rounds = 1
local_epochs = 1
[privacy]
noise_multiplier = 5.0
"""
HEADER = "id,age,ward,y,note"
TABLE = f"{HEADER}\nu1,30,a,0,x\nu2,40,b,1,x\nu{MARK},{MARK},a,1,n{MARK}\nu1,60,b,0,x\n"

FOREIGN = """
import sys
from torch import nn

def leaves(shape, task): sys.exit(0)
def leaves_with_text(shape, task): sys.exit("bye")
def generator_exit(shape, task): raise GeneratorExit
def own_exit(shape, task): raise type("Own", (BaseException,), {})("two\\nlines")
def memory(shape, task): raise MemoryError
def recursion(shape, task): return recursion(shape, task)
def huge(shape, task): return nn.Linear(shape[0], 10**6 * 10**6)
def no_module(shape, task): return "a net"
def lines(shape, task): raise ValueError("one\\ntwo\\nthree")

class Leaves(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)
    def forward(self, x):
        sys.exit(0)
def leaves_later(shape, task): return Leaves()

from uldp.methods.uldp_avg import UldpAvg
class LeavingMethod(UldpAvg):
    def __post_init__(self): sys.exit(0)
class NamelessMethod: pass
"""

WIDE = "".join(f",c{number}" for number in range(100_000))
DEEP = 5000
LONG = "9" * 5000
HEX = "0x" + "f" * 5000


@dataclass(frozen=True)
class Case:
    """One command line, parts of the sentence it must be refused with, and files to put there first."""

    arguments: tuple[str, ...]
    says: tuple[str, ...] = ()
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    seconds: float = 20.0
    """The time it may take. Most take a tenth of a second; preparing a run, and a slow machine, take more."""

    def __str__(self) -> str:
        shown = (part if len(part) < 60 else f"{part[:40]}... ({len(part)} characters)" for part in self.arguments)
        return "uldp " + shlex.join(shown) + (f" with {', '.join(self.files)}" if self.files else "")


def line(command: str, *says: str, **files: str | bytes) -> Case:
    """A case from a command line as one would type it; in names of files ``__`` is a dot and ``___`` a slash."""
    names = {name.replace("___", "/").replace("__", "."): content for name, content in files.items()}
    return Case(tuple(shlex.split(command)), says, names)


def given(files: dict[str, str | bytes], command: str, *says: str) -> Case:
    """A case with files of its own."""
    return Case(tuple(shlex.split(command)), says, files)


def sealed(text: str) -> bytes:
    """A copy of a ledger, whole but for its content."""
    return b"uldp-ledger-copy-1\n" + hashlib.sha256(text.encode()).digest() + text.encode()


def setting(assignment: str, *says: str, command: str = "plan") -> Case:
    """A case of one setting."""
    return Case((command, "e.toml", "--set", assignment), says)


PREPARE = "link prepare a.csv --silo a --user id"


def asked(assignment: str, *says: str, method: str = "uldp-avg") -> Case:
    """A case of one setting of ``uldp epsilon``."""
    command = ("epsilon", "--noise-multiplier", "5", "--rounds", "5", "--method", method, "--set", assignment)
    return Case(command, says)


def experiment(old: str, new: str, *says: str, command: str = "plan") -> Case:
    """A case of an experiment file in which ``old`` is replaced."""
    assert old in EXPERIMENT
    return Case((command, "bad.toml"), says, {"bad.toml": EXPERIMENT.replace(old, new)})


def rows(*lines: str, says: tuple[str, ...] = (), command: str = "run e.toml") -> Case:
    """A case of a table with these lines below its header."""
    return line(command, *says, a__csv="\n".join([HEADER, *lines]) + "\n")


JOIN = "join e.toml --silo a --superlink 127.0.0.1:9 --keys keys"
BUILTIN = "--dataset synthetic --set data.options.records=200"

SIZES = [
    setting("method.rounds=1000000000", "method.rounds", "1000000000"),
    setting("method.rounds=1000000000", "method.rounds", command="run"),
    setting("method.rounds=1000000000", "method.rounds", command="doctor"),
    line(f"{JOIN} --set method.rounds={10**9}", "method.rounds"),
    line(f"serve e.toml --insecure --rehearse --set method.rounds={10**9}", "method.rounds"),
    line(f"rehearse e.toml --set method.rounds={10**9}", "method.rounds"),
    line(f"compare e.toml --methods uldp-avg,uldp-sgd --set method.rounds={10**9}", "method.rounds"),
    line(f"demo --set method.rounds={10**9}", "method.rounds"),
    setting(f"method.rounds={10**25}", "method.rounds"),
    setting("method.rounds=-1", "method.rounds"),
    setting(f"method.rounds={LONG}"),
    setting(f"method.rounds={HEX}"),
    setting(f"method.local_epochs={10**9}", "method.local_epochs"),
    setting(f"method.local_epochs={10**30}", "method.local_epochs"),
    setting(f"method.batch_size={10**12}", "method.batch_size"),
    setting(f"method.max_participations={10**30}", "method.max_participations"),
    setting(f"method.ghost={10**20}", "method.ghost"),
    setting(f"method.clip={10**400}"),
    setting(f"method.clip={LONG}"),
    setting(f"method.clip={HEX}"),
    setting("method.clip=1e400", "method.clip"),
    setting("method.global_lr=1e400", "method.global_lr"),
    setting("method.local_lr=inf", "method.local_lr"),
    setting(f"privacy.noise_multiplier={10**400}"),
    setting("privacy.noise_multiplier=1e300", "privacy.noise_multiplier"),
    setting(f"privacy.dropout_tolerance={10**20}", "privacy.dropout_tolerance"),
    setting("privacy.dropout_tolerance=2", "privacy.dropout_tolerance"),
    setting("privacy.dropout_tolerance=-1", "privacy.dropout_tolerance"),
    setting("privacy.compensate=1", "privacy.dropout_tolerance"),
    setting("privacy.delta=1e-400", "privacy.delta"),
    setting(f"aggregation.min_silos={10**20}", "aggregation.min_silos"),
    setting(f"aggregation.slots={10**20}", "aggregation.slots"),
    line(f"plan e.toml --set aggregation.name=paillier --set aggregation.slots={10**20}", "aggregation.slots"),
    line(f"plan e.toml --set aggregation.name=paillier --set aggregation.max_records={10**20}", "max_records"),
    line(f"run e.toml --set aggregation.name=paillier --set aggregation.max_records={10**20}", "max_records"),
    line("plan e.toml --set aggregation.name=paillier --set aggregation.max_records=0", "max_records"),
    setting("method.momentum=1", "method.momentum"),
    setting("method.momentum=-0.1", "method.momentum"),
    setting("method.optimizer=rmsprop", "method.optimizer", "rmsprop"),
    line(f"plan e.toml --set aggregation.name=paillier --set aggregation.key_bits={10**12}", "aggregation.key_bits"),
    setting(f"run.seed={10**30}", "run.seed"),
    setting(f"run.threads={10**9}", "run.threads"),
    setting(f"run.memory_mb={10**12}", "run.memory_mb"),
    setting(f"data.users={10**12}", "data.users"),
    setting(f"data.users={LONG}"),
    line("plan e.toml --set model.name=mlp --set 'model.hidden=[" + ",".join(["4"] * 1000) + "]'", "hidden"),
    line(f"plan e.toml --set model.name=mlp --set model.hidden=[{10**9}]", "hidden"),
    line("plan e.toml --set model.name=mlp --set model.hidden=[100000,100000]", "parameters"),
    line(f"plan e.toml --set model.name=mlp --set model.hidden=[{10**30}]", "hidden"),
    line(f"plan e.toml --set model.name=mlp --set model.hidden=[{LONG}]"),
    line("plan e.toml --set model.name=mlp --set model.hidden=[0]", "hidden"),
    line("plan e.toml --set model.name=mlp --set model.dropout=1e400", "dropout"),
    line(f"plan e.toml --set model.name=creditcard --set model.width={10**7}", "parameters"),
    line(f"plan --dataset digits --set model.name=cnn --set model.channels=[{10**6},{10**6}]", "parameters"),
    line("run e.toml --set model.name=foreign:huge", "model"),
    line(f"plan {BUILTIN} --set data.users={10**12}", "data.users"),
    line(f"plan {BUILTIN} --set data.silos={10**9}", "data.silos"),
    line(f"plan {BUILTIN} --set data.silos={10**6} --set data.users=2", "data.silos"),
    line(f"plan {BUILTIN} --set data.users={10**7} --set data.silos=50", "data.silos"),
    line(f"plan {BUILTIN} --set data.users=20 --set data.silos=2000", "data.silos", "plain"),
    # It takes a machine with more memory than the limit, and minutes until that shows.
    replace(
        line(f"run {BUILTIN} --set privacy.delta=1e-9 --set data.users={10**7} --set data.silos=5", "memory"),
        seconds=400.0,
    ),
    line(f"run --dataset synthetic --set data.options.records={10**12}", "data.options.records"),
    line(f"run --dataset synthetic --set data.options.features={10**12}", "data.options"),
    line(f"run --dataset synthetic --set data.options.classes={10**12}", "data.options"),
    line(f"run --dataset synthetic --set data.options.classes={10**4} --set data.options.features=1000"),
    line(f"run --dataset synthetic --set data.options.records={LONG}"),
    line("run --dataset synthetic --set data.options.test_fraction=1e400", "test_fraction"),
    line("run --dataset synthetic --set data.options.user_exponent=1e400", "user_exponent"),
    line(f"run --dataset synthetic --set data.options.user_exponent={10**400}"),
    line(f"plan {BUILTIN} --method uldp-group-8 --set method.local_steps={10**12}", "method.local_steps"),
    line(f"plan {BUILTIN} --method uldp-group --set method.group_size={10**12}", "method.group_size"),
    line(f"plan {BUILTIN} --method local-sub-dp --set method.items={10**20}", "method.items"),
    line(f"plan {BUILTIN} --method local-sub-dp --set method.max_silos={10**20}", "method.max_silos"),
    line(
        f"plan {BUILTIN} --method local-sub-dp --set method.sampling=items --set method.max_items={10**20}",
        "method.max_items",
    ),
    line(f"plan {BUILTIN} --method central-sub-dp --set method.items={10**20}", "method.items"),
    line(f"plan {BUILTIN} --method central-sub-dp --set method.fraction={10**20}", "method.fraction"),
    line(f"plan {BUILTIN} --method central-sub-dp --set method.fraction=1e-300", "method.fraction"),
    line(f"plan {BUILTIN} --method srr-fl --set method.precision={10**9}", "method.precision"),
    line(f"plan {BUILTIN} --method srr-fl --set method.groups={10**12}", "method.groups"),
    line(f"plan {BUILTIN} --method srr-fl --set method.radius=1e300", "method"),
    line(f"plan {BUILTIN} --method srr-fl --set 'method.radius=[{','.join(['1.0'] * 10**4)}]'", "method.radius"),
]

NESTED = [
    setting(f"model.x={'[' * DEEP}{']' * DEEP}"),
    setting(f"model.x={'{a=' * DEEP}1{'}' * DEEP}"),
    setting(f"model.{'a.' * DEEP}b=1"),
    setting(f"data.schema.{'a.' * DEEP}b=1"),
    setting(f"{'a.' * DEEP}b=1"),
    setting(f"model.x={'[' * 200}{']' * 200}"),
    setting(f"data.options.x={'[' * 90}{']' * 90}"),
    line("plan deep.toml", "deep.toml", deep__toml=f"[data]\nx = {'[' * DEEP}{']' * DEEP}\n"),
    line("run deep.toml", "deep.toml", deep__toml=f"[data]\nx = {'{a=' * DEEP}1{'}' * DEEP}\n"),
    line("plan deep.toml", "deep.toml", deep__toml=f"data.{'a.' * DEEP}b = 1\n"),
    line("doctor deep.toml", "deep.toml", deep__toml=f"[data{'.a' * DEEP}]\nb = 1\n"),
    line("plan long.toml", "long.toml", long__toml=EXPERIMENT.replace("rounds = 1", f"rounds = {LONG}")),
    line("plan long.toml", long__toml=EXPERIMENT.replace("rounds = 1", f"rounds = {HEX}")),
    line("plan long.toml", long__toml=EXPERIMENT.replace("users = 20", f"users = {HEX}")),
    line("plan long.toml", long__toml=EXPERIMENT.replace("[0, 1e6]", f"[0, {HEX}]")),
    line("plan long.toml", long__toml=EXPERIMENT.replace('["a", "b"]', f'["a", {HEX}]')),
    line("resume run", "experiment.json", run___experiment__json="[" * DEEP + "]" * DEEP),
    line("resume run", "experiment.json", run___experiment__json='{"a":' * DEEP + "1" + "}" * DEEP),
    line("resume run", "experiment.json", run___experiment__json=f'{{"data": {LONG}}}'),
    line("export run --out m.pt", "experiment.json", run___experiment__json="[" * 100_000),
    line("predict run a.csv", "schema.json", run___schema__json="[" * DEEP + "]" * DEEP),
    line("total run", "ledger.jsonl", run___ledger__jsonl="[" * DEEP + "]" * DEEP + "\n"),
    line("total run", "ledger.jsonl", run___ledger__jsonl=f'{{"round": {LONG}}}\n'),
    line("resume run", "metrics.jsonl", run___metrics__jsonl='{"a":' * DEEP + "1" + "}" * DEEP + "\n"),
]

CODE = [
    setting("model.name=foreign:leaves", "model.name", "SystemExit", command="run"),
    setting("model.name=foreign:leaves", "model.name", "SystemExit", command="plan"),
    setting("model.name=foreign:leaves_with_text", "model.name", command="run"),
    setting("model.name=foreign:generator_exit", "model.name", "GeneratorExit", command="run"),
    setting("model.name=foreign:own_exit", "model.name", "two", command="run"),
    setting("model.name=foreign:memory", "model.name", "MemoryError", command="run"),
    setting("model.name=foreign:recursion", "model.name", "RecursionError", command="run"),
    setting("model.name=foreign:no_module", "model.name", command="run"),
    setting("model.name=foreign:lines", "model.name", "one", command="run"),
    setting("model.name=foreign:leaves_later", "model", "SystemExit", command="run"),
    setting("model.name=foreign:nothing", "model.name", command="run"),
    setting("model.name=foreign:", "model.name", command="run"),
    setting("model.name=:leaves", "model.name", command="run"),
    setting("model.name=.foreign:leaves", "model.name", command="run"),
    setting("method.name=foreign:LeavingMethod", "method", "SystemExit", command="run"),
    setting("method.name=foreign:NamelessMethod", "method.name", command="run"),
    setting("method.name=foreign:", "method.name", command="run"),
    setting("method.name=:x", "method.name", command="run"),
    line("run e.toml --set model.name=leaving:x", "model.name", "SystemExit", leaving__py="import sys; sys.exit(0)"),
    line("run e.toml --set method.name=leaving:x", "method.name", "SystemExit", leaving__py="import sys; sys.exit(0)"),
    line("plan e.toml --method leaving:x", "method.name", "SystemExit", leaving__py="raise SystemExit"),
    line("compare e.toml --methods leaving:x,uldp-avg", "method.name", leaving__py="raise GeneratorExit"),
    line("epsilon --method leaving:x --noise-multiplier 5 --rounds 5", "method.name", leaving__py="raise SystemExit"),
    line("run e.toml --set model.name=leaving:x", "model.name", leaving__py="not python at all"),
    line("run e.toml --set model.name=leaving:x", "model.name", leaving__py=b"\xff\xfe\x00"),
]

SETTINGS = [
    setting("data=5", "--set"),
    setting("data.silos=5", "data"),
    setting("data.silos=[5, 6]", "data.silos"),
    setting("data.silos=[]", "data.silos"),
    setting("data.silos=['a.csv', 'nowhere.csv']", "nowhere.csv", command="run"),
    setting("data.silos=['.', 'b.csv']", command="run"),
    setting("data.silos=['e.toml', 'b.csv']", "e.toml", command="run"),
    setting("data.silos=['/dev/zero', 'b.csv']", command="run"),
    setting("data.silos=[\"a\\u0000.csv\", 'b.csv']", command="run"),
    setting("data.user=''", "data.user", command="run"),
    setting("data.user=y", "y", command="run"),
    setting("data.label=id", "id", command="run"),
    setting("data.users=2.5", "data.users"),
    setting("data.users=true", "data.users"),
    setting("data.users=-3", "data.users"),
    setting("data.test_fraction=0.5", "data.test", command="run"),
    setting("data.holdout=1", "data.holdout"),
    setting("data.holdout=nan", "data.holdout"),
    setting("data.roster=nobody.txt", "nobody.txt", command="run"),
    setting("data.id_key=nokey", "nokey", command="run"),
    setting("data.allocation=zipf", "data.allocation"),
    setting("data.schema.columns.age.range=[5, 5]", "range"),
    setting("data.schema.columns.age.range=[1e400, 0]", "range"),
    setting("data.schema.columns.age.range=['a', 'b']", "range"),
    setting("data.schema.columns.ward.categories=[]", "categories"),
    setting("data.schema.columns.ward.categories=[['a']]", "categories"),
    setting("data.schema.columns.ward.categories=[1, 1.0]", "categories"),
    setting("data.schema.columns.ward.kind=colour", "kind"),
    setting("data.schema.columns.ward.kind=code", "would take the codes of 'ward' for sizes"),
    setting("data.schema.columns.ward.first=3", "unknown key 'first'"),
    setting("data.schema.columns={f = {kind = 'image', size = [1e9, 1], channels = 'rgb'}}", "size"),
    setting("data.schema.columns={f = {kind = 'image', size = [9], channels = 'rgb'}}", "two numbers of pixels"),
    setting("data.schema.columns={f = {kind = 'image', size = [9, 9], channels = {}}}", "'grey' or 'rgb'"),
    setting("data.silos=['keys']", "a folder without images", command="run"),
    setting("data.schema.columns=[]", "columns"),
    setting("data.schema.label.classes=[1]", "classes"),
    setting("data.schema.outside=wild", "outside"),
    setting("data.schema.statistics={mean=[1],deviation=[0]}", "statistics"),
    setting("method.name=5", "method.name"),
    setting("method.name=''", "method.name"),
    setting("method.name=" + "x" * 10_000, "method.name"),
    setting("model=5", "--set"),
    setting("model.name=5", "model.name"),
    setting("privacy=[]", "--set"),
    setting("run.device=cuda:99", "run.device", command="run"),
    setting("run.seed=1.5", "run.seed"),
    setting("run.secrets=none", "run.secrets"),
    setting("aggregation.identities={a='zz'}", "aggregation.identities"),
    setting("deployment.nodes={a='zz'}", "deployment.nodes"),
    setting("=5", "--set"),
    setting("", "--set"),
    setting("method.clip", "--set"),
    setting("method..clip=1", "--set"),
    setting("method.clip=\x1b[2J", "method.clip"),
    setting("method.clip=one\ntwo", "method.clip"),
    setting("model.name=" + "\n" * 50, "model.name"),
    experiment("[data]", "[data", "bad.toml"),
    experiment("[data]", "[data]\n[data]", "bad.toml"),
    experiment("[data]", "\x00[data]", "bad.toml"),
    experiment("users = 20", "users = 20\nusers = 21", "bad.toml"),
    experiment("[privacy]", "[privacies]", "privacies"),
    experiment('silos = ["a.csv", "b.csv"]', 'silos = ["a.csv", "b.csv"]\nsecret = "x"', "secret"),
    experiment("noise_multiplier = 5.0", "", "exactly one", command="run"),
    experiment("rounds = 1", "rounds = 1979-05-27", "method.rounds"),
    line("plan bad.toml", "bad.toml", bad__toml=b"\xff\xfe[data]"),
    line("plan bad.toml", "data", bad__toml=""),
    line("plan gone.toml", "gone.toml"),
    line("plan .", "cannot be read"),
    line("plan ''"),
    line("plan " + "x" * 5000 + ".toml"),
    line("plan a.csv", "a.csv"),
    line("run e.toml --out run", "run", "exists"),
    line("run e.toml --out e.toml", "e.toml"),
    line("run e.toml --out e.toml/x", "e.toml"),
    line("run e.toml --out " + "y" * 5000),
    line("run e.toml --runtime moon", "--runtime"),
    line("run e.toml --dataset digits", "command line"),
    line("run", "--dataset"),
    line("run --dataset digitss", "digitss"),
    line("run --dataset digits --preset mine", "--preset"),
    line("run e.toml --preset paper", "--preset"),
    line("run --dataset mnist --data-dir nowhere", "nowhere"),
    line("run e.toml --set method.clip=-1 --json", "method.clip"),
    line("plan e.toml --budget nan", "--budget"),
    line("plan e.toml --budget -1", "--budget"),
]

PLAIN = ["u1,30,a,0,x", "u2,40,b,1,x"]
TABLES = [
    rows(*PLAIN, f"u3,-{MARK},a,0,x", says=("age", "row 3")),
    rows(*PLAIN, f"u3,old{MARK},a,0,x", says=("age", "row 3")),
    rows(*PLAIN, f"u3,3,ward{MARK},0,x", says=("ward", "row 3")),
    rows(*PLAIN, f"u3,3,a,{MARK},x", says=("y", "row 3")),
    rows(*PLAIN, f"u3,,a,0,{MARK}", says=("age", "missing")),
    rows(*PLAIN, f",3,a,0,{MARK}", says=("id",)),
    rows(*PLAIN, f"{MARK}e+11,3,a,0,x", says=("id",)),
    rows(*PLAIN, f"u3,3,a,0,x,{MARK}", says=("a.csv",)),
    rows(*PLAIN, f'u3,3,a,0,"{MARK}', says=("a.csv",)),
    rows(*PLAIN, f'u3,3,a,0,"{MARK}\nu4,5,b,1,x"', "u5,3,a,0,x", says=("a.csv", "spans lines")),
    rows(*PLAIN, f"u3,{LONG},a,0,x", says=("age",)),
    rows(*PLAIN, f"u3,nan{MARK},a,0,x", says=("age",)),
    rows(says=("a.csv", "no rows")),
    rows("u1,30,a,0,x", "u1,31,b,1,x", command="run e.toml --set 'data.silos=[\"a.csv\"]'", says=("user",)),
    line("run e.toml", "a.csv", a__csv=""),
    line("run e.toml", "a.csv", a__csv=b"\xff\xfe\x00\x01"),
    line("run e.toml", "a.csv", a__csv="id;age;ward;y\n1;2;3;4\n"),
    line("run e.toml", "a.csv", "age", a__csv=f"id,age,age,y\n1,2,{MARK},4\n"),
    line("run e.toml", "a.csv", "age", a__csv=f"id,ward,y\n{MARK},a,0\n"),
    line('run e.toml --set \'data.silos=["a.csv.gz","b.csv"]\'', "a.csv.gz", a__csv__gz=b"\x1f\x8b no gzip"),
    line('run e.toml --set \'data.silos=["a.parquet","b.csv"]\'', "a.parquet", a__parquet=b"PAR1 no parquet PAR1"),
    line(
        "run e.toml --set data.roster=r.txt --set data.users=4",
        "a.csv",
        r__txt=f"u1\nu2\nu{MARK}\nu9\n",
        a__csv=f"{HEADER}\nu8{MARK},3,a,0,x\n",
    ),
    line("run e.toml --set data.roster=r.txt --set data.users=3", "r.txt", r__txt=f"u{MARK}\nU{MARK}\nu1\n"),
    line("run e.toml --set data.id_key=k", "k", k=f"{MARK}"),
    line("predict run bad.csv", "bad.csv", bad__csv=f"age,ward\nold{MARK},a\n"),
    line("predict run bad.csv", "bad.csv", bad__csv=f"ward\nx{MARK}\n"),
    line("predict run gone.csv", "gone.csv"),
    line("predict run a.csv --out a.csv", "a.csv"),
    line("predict run a.csv --out nowhere/p.csv", "nowhere"),
    line("predict nowhere a.csv", "nowhere"),
    line("new n --silo bad.csv --user id --label y --people 9", "bad.csv", bad__csv=f'id,y\n{MARK},"x\n'),
    line(
        "run e.toml",
        "age",
        a__csv=f"id,ward,y{WIDE}\n1,a,0{',1' * 100_000}\n",
    ),
]

RUNS = [
    line("resume nowhere", "nowhere"),
    line("resume e.toml", "e.toml"),
    line("resume .", "experiment.json"),
    line("resume run --runtime moon", "--runtime"),
    line("resume run", "experiment.json", run___experiment__json="{"),
    line("resume run", "experiment.json", run___experiment__json="[]"),
    line("resume run", run___experiment__json="{}"),
    line("resume run", "experiment.json", run___experiment__json='{"base": 5}'),
    line("resume run", "experiment.json", run___experiment__json='{"name": []}'),
    line("resume run", "experiment.json", run___experiment__json=b"\xff\x00"),
    line("resume run", "checkpoint", run___private___checkpoint__bin="x"),
    line("resume run", "ledger", run___ledger__jsonl=""),
    line("resume run", "ledger", run___ledger__jsonl="{\n{\n"),
    line("resume run", "metrics", run___metrics__jsonl="x\ny\n"),
    line("export nowhere", "nowhere"),
    line("export run --out run/model.npz", "exists"),
    line("export run --out nowhere/m.pt", "nowhere"),
    line("export run --out m.pt", "model.npz", run___model__npz=b"PK\x03\x04 no archive"),
    line("export run --out m.pt", "model.npz", run___model__npz=b""),
    line("predict run a.csv", "model.npz", run___model__npz=b"x"),
    line("predict run a.csv", "schema.json", run___schema__json="{"),
    line("predict run a.csv", "schema.json", run___schema__json="[]"),
    line("report", "RUNS"),
    line("report nowhere", "nowhere"),
    line("report e.toml", "e.toml"),
    line("report keys", "keys"),
    line("report run --out r.pdf", ".html"),
    line("report run --out nowhere/r.html", "nowhere"),
    line("report run --out r.html", "exists", r__html="x"),
    line("report run --out r.html", "exists", r__md="x"),
    line("report run run --out r.html", "twice"),
    line("report run --registry", "no guarantee"),
    line("report run --holder --out run/r.html", "private"),
    line("report run", "experiment.json", run___experiment__json="{"),
    line("report run", "run", run___experiment__json="{}"),
    line("report run", "run", run___experiment__json='{"method": {"rounds": "many"}}'),
    line("report run", "run", run___experiment__json='{"method": {"rounds": 1}, "data": 5}'),
    line("report run", "0.0.1", run___versions__json='{"uldp": "0.0.1"}'),
    line("report run", "result.json", run___result__json="[]"),
    line("report run", "run", run___result__json='{"rounds": "many"}'),
    line("report run", "run", run___result__json='{"dataset": "d", "method": "m", "rounds": 1, "users": "many"}'),
    line("report run", "run", run___result__json='{"dataset": "d", "method": "m", "rounds": 1, "silos": 5}'),
    line("report run", "statement.json", run___statement__json="[]"),
    line("report run", "metrics.jsonl", run___metrics__jsonl=""),
    line("report run", "metrics.jsonl", run___metrics__jsonl='{"round": 1, "metrics": 5}\n'),
    line("report run", "ledger", run___ledger__jsonl='{"round": 1}\n'),
    line("report run", "model.npz", run___model__npz=b"x"),
    line("report run", "schema.json", run___schema__json='{"columns": 5}'),
    line("report run", "task.json", run___task__json="5"),
    line("report run", "audit.json", run___audit__json="{}"),
    line("audit run --rounds 2", "run"),
    line("audit run --records new", "run"),
    line("total", "FOLDERS"),
    line("total nowhere", "nowhere"),
    line("total e.toml"),
    line("total run --delta 2", "delta"),
    line("total run --delta nan", "delta"),
    line("total run --delta -1", "delta"),
    line("total run", "ledger.jsonl", run___ledger__jsonl=""),
    line("total run", "ledger", run___ledger__jsonl='{"round": 1}\n'),
    line("total run", run___ledger__jsonl='{"round": "x", "event": "gaussian", "content": 1}\n'),
    line("total run", "result.json", run___result__json="[]"),
    line("total run", "result.json", run___result__json='{"rounds": "many"}'),
    line("total run", "statement.json", run___statement__json="[]"),
]

CALCULATORS = [
    line(f"epsilon --noise-multiplier 5 --rounds {10**9}", "--rounds"),
    line(f"epsilon --noise-multiplier 5 --rounds {10**25}", "--rounds"),
    line(f"epsilon --noise-multiplier 5 --rounds {LONG}"),
    line("epsilon --noise-multiplier 5 --rounds 0", "--rounds"),
    line("epsilon --noise-multiplier 5 --rounds five", "--rounds"),
    line("epsilon --noise-multiplier 5", "--rounds"),
    line("epsilon --rounds 5", "--noise-multiplier"),
    line("epsilon --noise-multiplier nan --rounds 5", "--noise-multiplier"),
    line("epsilon --noise-multiplier inf --rounds 5", "--noise-multiplier"),
    line("epsilon --noise-multiplier 1e-300 --rounds 5"),
    line("epsilon --noise-multiplier 1e300 --rounds 5"),
    line("epsilon --noise-multiplier 5 --rounds 5 --delta 1e-400", "delta"),
    line("epsilon --noise-multiplier 5 --rounds 5 --delta nan", "--delta"),
    asked("method.sample_rate=nan", "method.sample_rate"),
    asked("method.sample_rate=1e-300", "method.sample_rate"),
    asked("method.sample_rate=[0.1]", "method.sample_rate"),
    asked("method.sample_rate=true", "method.sample_rate"),
    asked(f"method.sample_rate={LONG}"),
    asked(f"method.sample_rate={'[' * DEEP}{']' * DEEP}"),
    asked(f"method.{'a.' * DEEP}b=1", "--set"),
    asked("method.sample_rate.x=1", "method.sample_rate"),
    asked(f"method.rounds={10**9}", "method.rounds"),
    asked(f"method.max_participations={10**30}", "method.max_participations"),
    asked("method.max_participations=5", "method.max_participations"),
    asked("method.sampling=private", "method.sample_rate"),
    asked("method.clip=-1", "method.clip"),
    asked("method.clip=1e400", "method.clip"),
    asked("method.nonsense=1", "nonsense"),
    asked("method.noise_multiplier=1", "noise_multiplier"),
    asked("method.dropout_tolerance=1", "dropout_tolerance"),
    asked("method.name=uldp-naive", "name"),
    asked("method.weighting=none", "method.weighting"),
    asked("method=5", "--set"),
    asked("data.users=5", "--set", "data"),
    asked("run.seed=5", "--set", "run"),
    asked("privacy.epsilon=1", "--set", "privacy.epsilon"),
    asked("privacy.delta=0.5", "--set", "privacy.delta"),
    asked("nonsense", "--set"),
    asked("=5", "--set"),
    asked("", "--set"),
    asked("\x1b[2J.\n=5", "--set"),
    line(f"epsilon --noise-multiplier 5 --rounds 5 --silos {10**20}", "--silos"),
    line(f"epsilon --noise-multiplier 5 --rounds 5 --silos {LONG}"),
    line("epsilon --noise-multiplier 5 --rounds 5 --silos 0", "--silos"),
    line(f"epsilon --noise-multiplier 5 --rounds 5 --dropped {10**20}", "--dropped"),
    line(f"epsilon --noise-multiplier 5 --rounds 5 --adversary silo --colluding {10**20}", "--colluding"),
    asked(f"privacy.dropout_tolerance={10**20}", "privacy.dropout_tolerance"),
    asked("privacy.dropout_tolerance=5", "privacy.dropout_tolerance", "5 silos"),
    asked("privacy.dropout_tolerance=-1", "privacy.dropout_tolerance"),
    asked("privacy.dropout_tolerance=1.5", "privacy.dropout_tolerance"),
    asked("privacy.dropout_tolerance=true", "privacy.dropout_tolerance"),
    asked("privacy.dropout_tolerance=many", "privacy.dropout_tolerance"),
    asked("privacy.dropout_tolerance.x=1", "privacy.dropout_tolerance"),
    line("epsilon --noise-multiplier 5 --rounds 5 --adversary world", "--adversary"),
    line("epsilon --noise-multiplier 5 --rounds 5 --adversary silo --colluding 3 --dropped 3", "--silos"),
    line("epsilon --noise-multiplier 5 --rounds 5 --aggregation magic", "magic"),
    line("epsilon --noise-multiplier 5 --rounds 5 --aggregation shuffled", "aggregation"),
    line("epsilon --noise-multiplier 5 --rounds 5 --sample-rate 0.1", "--sample-rate"),
    line("epsilon --noise-multiplier 5 --rounds 5 --compensate 1", "--compensate"),
    line("epsilon --noise-multiplier 5 --rounds 5 --method default", "fedavg"),
    line("epsilon --noise-multiplier 5 --rounds 5 --method local-sub-dp-published", "uldp published"),
    line("epsilon --noise-multiplier 5 --rounds 5 --method foreign:LeavingMethod", "SystemExit"),
    line("epsilon --noise-multiplier 5 --rounds 5 --method uldp-avg --accountant analytic", "--accountant", "gaussian"),
    line(f"epsilon --noise-multiplier 5 --rounds 5 --accountant {'x' * 5000}", "--accountant"),
    line("epsilon --noise-multiplier 5 --rounds 5 --method uldp-group --accountant pld", "--accountant"),
    line("epsilon --noise-multiplier 5 --rounds 5 --accountant abacus", "abacus"),
    line("epsilon --noise-multiplier 5 --rounds 5 --out x.png", "--out"),
    line("epsilon --noise-multiplier 5 --rounds 5 --table --out e.toml/x.png", "e.toml"),
    line("epsilon --noise-multiplier 5 --rounds 5 --table --out x.doc", ".doc"),
    asked(f"method.local_steps={10**12}", "method.local_steps", method="uldp-group-8"),
    asked(f"method.group_size={10**12}", "method.group_size", method="uldp-group"),
    asked("method.group_size=0", "method.group_size", method="uldp-group"),
    asked("method.group_size=max", "method.group_size", method="uldp-group"),
    asked("method.group_size=largest", "method.group_size", method="uldp-group"),
    asked("method.group_size=4", "method.group_size", "uldp-group-8", method="uldp-group-8"),
    asked("method.record_rate=0", "method.record_rate", method="record-dp"),
    asked(f"method.max_silos={10**12}", "method.max_silos", method="local-sub-dp"),
    asked("method.max_silos=6", "method.max_silos", "5 silos", method="local-sub-dp"),
    asked("method.max_items=3", "method.max_items", method="local-sub-dp"),
    asked("method.fraction=0.01", "method.fraction", method="central-sub-dp"),
    line(
        f"epsilon --method local-sub-dp --noise-multiplier 5 --rounds 5 --set method.sampling=items "
        f"--set method.max_items={10**12}",
        "method.max_items",
    ),
    line("epsilon --method local-sub-dp --claimed -1 --rounds 5", "--claimed"),
    line("epsilon --method local-sub-dp --noise-multiplier 1e-9 --rounds 5", "--noise-multiplier"),
    line("published"),
    line("published ''", "ALGORITHM"),
    line("published uldp-avg", "ALGORITHM", "uldp-avg"),
    line("published local-sub-dp-published", "ALGORITHM"),
    line(f"published {'x' * 5000}", "ALGORITHM"),
    line("published local-sub-dp extra", "extra"),
    line("published local-sub-dp --method uldp-avg", "--method"),
    line("published local-sub-dp --dataset marbles", "marbles"),
    line("published local-sub-dp --dataset mnist --data-dir nowhere", "nowhere"),
    line("published local-sub-dp --seed -1", "--seed"),
    line(f"published local-sub-dp --seed {10**30}", "--seed"),
    line("published local-sub-dp --seed x", "--seed"),
    line("published local-sub-dp --set epsilon=nan --json", "epsilon"),
    line("published local-sub-dp --set epsilon=0", "epsilon"),
    line("published local-sub-dp --set epsilon=inf", "epsilon"),
    line("published local-sub-dp --set epsilon=1e-300", "epsilon"),
    line("published local-sub-dp --set epsilon=1e300"),
    line(f"published local-sub-dp --set epsilon={LONG}", "--set"),
    line("published local-sub-dp --set epsilon=[1]", "epsilon"),
    line("published local-sub-dp --set epsilon", "--set"),
    line("published local-sub-dp --set =5", "--set"),
    line("published local-sub-dp --set ''", "--set"),
    line("published local-sub-dp --set delta=0", "delta"),
    line("published local-sub-dp --set delta=1e-400", "delta"),
    line(f"published local-sub-dp --set rounds={10**9}", "rounds"),
    line("published local-sub-dp --set rounds=1.5", "rounds"),
    line(f"published local-sub-dp --set local_steps={10**12}", "local_steps"),
    line(f"published central-sub-dp --set batch_size={10**12}", "batch_size"),
    line("published central-sub-dp --set batch_size=0", "batch_size"),
    line("published central-sub-dp --set clip=1e300", "clip"),
    line("published central-sub-dp --set clip=wide", "clip"),
    line("published central-sub-dp --set global_lr=1e400", "global_lr"),
    line("published central-sub-dp --set global_lr=1e308 --set rounds=3", "finite"),
    line("published local-sub-dp --set local_lr=1e308 --set rounds=3", "finite"),
    line("published central-sub-dp --set nonsense=1", "nonsense"),
    line("published central-sub-dp --set algorithm=local-sub-dp", "algorithm"),
    line("published central-sub-dp --set method.rounds=5", "method.rounds"),
    line("published central-sub-dp --set privacy.epsilon=5", "privacy.epsilon"),
    line("published central-sub-dp --set run.secrets=os", "run.secrets"),
    line("published central-sub-dp --set data.users=1", "data.users"),
    line(f"published central-sub-dp --set data.silos={10**9}", "data.silos"),
    line("published central-sub-dp --set 'data.silos=[\"a.csv\"]'", "data.silos"),
    line("published central-sub-dp --set data.options.test_fraction=0", "test_fraction"),
    line("published central-sub-dp --set model.name=foreign:leaves", "SystemExit"),
    line("published central-sub-dp --set model.name=bert", "bert"),
    line("sigma --epsilon 1e-300 --delta 1e-9 --rounds 5", "noise"),
    line("sigma --epsilon nan --rounds 5", "--epsilon"),
    line("sigma --epsilon inf --rounds 5", "--epsilon"),
    line("sigma --epsilon 1 --rounds 5 --method fedavg", "--method", "fedavg"),
    line("sigma --epsilon 1 --rounds 5 --set privacy.dropout_tolerance=9", "privacy.dropout_tolerance"),
    line("sigma --epsilon 1 --rounds 5 --set privacy.noise_multiplier=2", "--set"),
    line("sigma --epsilon 1 --rounds 5 --set method.sample_rate=2", "method.sample_rate"),
    line("sigma --rounds 5", "--epsilon"),
    line(f"sigma --epsilon 1 --rounds {10**9}", "--rounds"),
    line(f"sigma --epsilon 1 --rounds 5 --method uldp-group-8 --set method.local_steps={10**12}", "method.local_steps"),
    line("sigma --epsilon 1 --rounds 5 --json --delta 7", "--delta"),
    line(f"local --epsilon-weight 1 --weights {10**12}", "--weights"),
    line(f"local --epsilon-weight 1 --rounds {10**30}", "--rounds"),
    line(f"local --epsilon-weight 1 --clients {10**12}", "--clients"),
    line("local --epsilon-weight nan", "--epsilon-weight"),
    line("local --epsilon-weight 1 --mechanism magic", "--mechanism"),
    line("local --epsilon-weight 1 --delta 0", "--delta"),
    line("local --weights 5", "--epsilon-weight"),
]

OTHERS = [
    line("new ''", "NAME"),
    line("new .toml", "NAME"),
    line("new ' '", "NAME"),
    line("new e", "e.toml", "exists"),
    line("new nowhere/x", "nowhere"),
    line("new " + "z" * 5000),
    line("new x/", "NAME"),
    line("new run/"),
    line("new n --dataset marbles", "marbles"),
    line("new n --silo a.csv --user id --label y --people 1", "--people"),
    line(f"new n --silo a.csv --user id --label y --people {10**30}", "--people"),
    line(f"new n --silo a.csv --user id --label y --people {LONG}"),
    line("new n --silo a.csv --user nobody --label y --people 9", "nobody"),
    line("new n --silo a.csv --user id --label id --people 9", "--label"),
    line("new n --silo gone.csv --user id --label y --people 9", "gone.csv"),
    line("new n --silo a.csv", "--user"),
    line("methods extra", "extra"),
    line("methods --jsn", "--jsn"),
    line("datasets extra", "extra"),
    line("datasets --colour", "--colour"),
    line("demo --dataset marbles", "marbles"),
    line("demo --out run", "run", "exists"),
    line("demo --set method.clip=-1"),
    line("demo --set method.local_epochs=0"),
    line("demo --set method.clip=1e400"),
    line("compare e.toml --methods ''", "--methods"),
    line("compare e.toml --methods uldp-avg,uldp-avg", "--methods"),
    line("compare e.toml --methods uldp-avgg", "uldp-avgg"),
    line("compare e.toml --repeats 0", "--repeats"),
    line(f"compare e.toml --repeats {10**9}", "--repeats"),
    line(f"compare e.toml --repeats 3 --set run.seed={2**63}", "run.seed"),
    line("compare e.toml --set method.name=uldp-avg", "method.name"),
    line("compare e.toml --out run", "run"),
    line("data describe marbles", "marbles"),
    line(f"data describe digits --users {10**12}", "users"),
    line(f"data describe digits --silos {10**12}", "silos"),
    line("data describe digits --users 0", "users"),
    line("data describe digits --seed -1", "seed"),
    line(f"data describe digits --seed {LONG}"),
    line("data describe digits --allocation pile", "allocation"),
    line("data describe digits --out e.toml/x.png", "e.toml"),
    line("data describe digits --out x.doc", ".doc"),
    line("data describe mnist --data-dir nowhere", "nowhere"),
    line("data check marbles", "marbles"),
    line("data fetch marbles", "marbles"),
    line("attack inference --clients 0", "--clients"),
    line(f"attack inference --clients {10**12}", "--clients"),
    line(f"attack inference --rounds {10**12}", "--clients"),
    line(f"attack inference --trials {10**12}", "--trials"),
    line("attack inference --epsilon x", "--epsilon"),
    line("attack inference --epsilon nan", "--epsilon"),
    line("attack inference --mechanism magic", "--mechanism"),
    line("attack inference --adversary nobody", "--adversary"),
    line(f"attack inference --groups {10**12}", "--groups"),
    line(f"attack inference --precision {10**12}", "--precision"),
    line("attack inference --radius 1e300", "radius"),
    line("attack inference --center nan", "center"),
    line("attack inference --weight 9", "--weight"),
    line("attack inference --spread -1", "--spread"),
    line("attack inference --seed -1", "seed"),
    line("attack inference --out e.toml/x.png", "e.toml"),
    line("attack inference --epsilon " + ",".join(str(1 + i / 1000) for i in range(5000)), "--epsilon"),
    line("bench train --case nothing", "nothing"),
    line("bench protocol --case nothing", "nothing"),
    line("bench protocol --quick --workers 0", "--workers"),
    line(f"bench protocol --quick --workers {10**9}", "--workers"),
    line("bench srr --case nothing", "nothing"),
    line("bench transport --exchanges 0", "--exchanges"),
    line(f"bench transport --exchanges {10**12}", "--exchanges"),
    line("bench nothing", "nothing"),
    line("keys silo a --out keys", "keys"),
    line("keys silo '' --out k2"),
    line("keys silo 'a\nb' --out k2"),
    line("keys silo " + "n" * 5000 + " --out k2"),
    line("keys silo a --out e.toml/k", "e.toml"),
    line("keys silo a", "--out"),
    line("keys show a --keys nowhere", "nowhere"),
    line("keys rotate a --keys nowhere", "nowhere"),
    line("keys rotate a --keys run", "identity.key"),
    line("keys rotate a", "--keys"),
    line("keys rotate '' --keys nowhere --json", "nowhere"),
    given({"keys/state.id": "00"}, "keys rotate a --keys keys --state s", "another folder"),
    line("keys show a --keys run"),
    line("keys certificates --out c --host h --days 0", "--days"),
    line(f"keys certificates --out c --host h --days {10**12}", "--days"),
    line("keys certificates --out c --host ''"),
    line("keys certificates --out c --host " + "h" * 5000),
    line("keys certificates --out c", "--host"),
    line("doctor gone.toml", "gone.toml"),
    line("doctor e.toml --address nowhere", "--address"),
    line("doctor e.toml --address 127.0.0.1:99999999", "--address"),
    line("doctor e.toml --superlink :::::", "--superlink"),
    line("doctor e.toml --set method.clip=-1", "method.clip"),
    line("doctor"),
    line("serve"),
    line("serve e.toml", "--certificates"),
    line("serve gone.toml --insecure", "gone.toml"),
    line("serve e.toml --insecure", "run.secrets"),
    line("serve e.toml --insecure --rehearse --address nowhere", "--address"),
    line("serve e.toml --insecure --rehearse --patience nan", "--patience"),
    line("serve e.toml --insecure --rehearse --patience -1", "--patience"),
    line("serve e.toml --insecure --rehearse --on-missing sulk", "--on-missing"),
    line("serve e.toml --certificates nowhere --rehearse", "nowhere"),
    line("serve --resume nowhere --insecure", "nowhere"),
    line("serve e.toml --insecure --rehearse --log xml", "--log"),
    line("serve e.toml --insecure --rehearse --continue", "--continue"),
    line("serve --resume run --insecure --continue", "--continue"),
    line("serve e.toml --insecure --rehearse --continue --out run --set method.rounds=7", "other settings"),
    line("serve e.toml --insecure --rehearse --continue --out keys", "keys"),
    line("serve e.toml --insecure --rehearse --metrics 0", "--metrics"),
    line("serve e.toml --insecure --rehearse --metrics 70000", "--metrics"),
    line("serve e.toml --insecure --rehearse --metrics x", "--metrics"),
    line(f"{JOIN} --ca keys/node.pub --rehearse --log yaml", "--log"),
    line(f"{JOIN} --ca keys/node.pub --rehearse --metrics -5", "--metrics"),
    line("serve e.toml --insecure --rehearse --out run", "run"),
    line("serve e.toml --insecure --rehearse --set model.name=foreign:leaves", "SystemExit"),
    line("join", "FILE"),
    line("join e.toml --silo a --superlink 127.0.0.1:9", "--keys"),
    line("join e.toml --silo a --superlink nowhere --keys keys", "--superlink"),
    line("join e.toml --silo c --superlink 127.0.0.1:9 --keys keys --rehearse", "--silo"),
    line(f"{JOIN}", "run.secrets"),
    line("join gone.toml --silo a --superlink 127.0.0.1:9 --keys keys", "gone.toml"),
    line(f"{JOIN} --rehearse --data gone.csv", "gone.csv"),
    line(f"{JOIN} --rehearse --policy gone.toml", "gone.toml"),
    line(
        f"{JOIN} --policy p.toml",
        "p.toml",
        p__toml="x = " + "[" * DEEP,
    ),
    line(f"{JOIN} --policy p.toml", "p.toml", p__toml=f"x = {LONG}"),
    line(f"{JOIN} --rehearse --holdout a.csv", "--holdout"),
    line(
        f"{JOIN} --rehearse --set model.name=foreign:leaves",
        "SystemExit",
    ),
    line("leave nowhere", "nowhere"),
    line("leave e.toml", "e.toml"),
    line("leave run --experiment zzz", "run"),
    line("leave", "STATE"),
    line("status", "FOLDER"),
    line("status nowhere", "nowhere"),
    line("status e.toml", "e.toml"),
    line("status keys", "neither a run directory"),
    line("status run --policy"),
    given({"s/experiments/x": "", "s/policy.toml": "max_epsilon = -1"}, "status s", "s/policy.toml"),
    given({"s/experiments/x": "", "s/ledger.jsonl": "{}\n"}, "status s", "ledger.jsonl"),
    given({"s/experiments/x": "", "s/ledger.jsonl": '{"events": 1}\n'}, "status s --json", "ledger.jsonl"),
    given({"r/experiment.json": "["}, "status r", "experiment.json"),
    given({"r/experiment.json": "{}", "r/metrics.jsonl": '{"round": 1}\n'}, "status r", "metrics"),
    line("trail", "FOLDER"),
    line("trail nowhere", "nowhere"),
    line("trail run", "no audit trail"),
    line("trail run --head nonsense", "--head"),
    line("trail run --head 1:zz --json", "--head"),
    given({"s/trail.jsonl": "{}\n" + '{"number": 1}\n'}, "trail s", "line 1"),
    given({"s/trail.jsonl": '{"number": 1}\n'}, "trail s", "entry 1"),
    given({"s/trail.jsonl": "[1]\n"}, "trail s --json", "trail.jsonl"),
    given({"s/trail.jsonl": b"\xff\xfe\n"}, "trail s", "trail.jsonl"),
    given({"s/trail.jsonl": "[" * 10**5 + "\n"}, "trail s"),
    given({"s/trail.jsonl": "", "k/trail.head": b"\xff" * 10**6}, "trail s --keys k", "trail.head"),
    given({"s/trail.jsonl": "", "k/trail.head": "9:" + "a" * 64}, "trail s --keys k", "rolled back"),
    given({"s/x": "", "k/trail.head": "9:" + "a" * 64}, "trail s --keys k", "rolled back"),
    line("backup", "STATE"),
    line("backup nowhere --out c", "nowhere"),
    line("backup run --out run/ledger.jsonl", "run"),
    line("backup e.toml --out c", "e.toml"),
    given({"s/ledger.jsonl": "{}\n"}, "backup s --out c", "ledger.jsonl"),
    given({"s/ledger.jsonl": ""}, "backup s --out e.toml", "--out"),
    given({"s/ledger.jsonl": ""}, "backup s --out nowhere/c", "nowhere"),
    line("restore", "FILE"),
    line("restore nowhere --state s", "nowhere"),
    line("restore e.toml --state s", "no copy"),
    line("restore run --state s", "run"),
    given({"c": b"uldp-ledger-copy-1\n" + bytes(99)}, "restore c --state s --json", "damaged"),
    given({"c": sealed('{"ledger.jsonl": 7}')}, "restore c --state s", "damaged"),
    given({"c": sealed("[]")}, "restore c --state s", "damaged"),
    given({"c": sealed('{"../../x": "00"}')}, "restore c --state s", "another version"),
    given({"c": sealed('{"ledger.jsonl": "7b7d0a"}')}, "restore c --state s", "ledger.jsonl"),
    given({"c": sealed('{"ledger.jsonl": ""}')}, "restore c --state s", "--keys"),
    given({"c": sealed('{"ledger.jsonl": ""}')}, "restore c --state e.toml --unchecked", "e.toml"),
    line("link prepare", "TABLE"),
    line(f"{PREPARE} --out o --on note --key e.toml", "64 hexadecimal digits"),
    line(f"{PREPARE} --out o --on note --key gone", "gone"),
    line(f"{PREPARE} --out o --on nothing --key k", "no column 'nothing'", k="ab" * 32),
    line(f"{PREPARE} --out o --on note:day --key k", "--on", k="ab" * 32),
    line(f"{PREPARE} --out o --on note+note --key k", "twice", k="ab" * 32),
    line(f"{PREPARE} --out o --on note --key k --dates %Y", "--dates", k="ab" * 32),
    line(f"{PREPARE} --out e.toml --on note --key k", "exists already", k="ab" * 32),
    line(f"{PREPARE} --out o --on note --key k --silo ../a", "--silo", k="ab" * 32),
    line(f"{PREPARE} --out o --on note --key k --user who", "no user column", k="ab" * 32),
    line(f"{PREPARE} --out o --on note --key k --experiment gone.toml", "gone.toml", k="ab" * 32),
    line("link match --out p", "FILES"),
    line("link match gone --out p", "gone"),
    line("link match e.toml run --out p", "e.toml"),
    given({"x": "[" * 10**5}, "link match x x --out p --json", "uldp link prepare"),
    line("link accept a.csv", "PROPOSAL"),
    line("link accept a.csv e.toml --user id --key k --out l", "uldp link match", k="ab" * 32),
    setting("data.ids.keep=vowels", "data.ids.keep"),
    setting("data.ids.sort=1", "data.ids"),
    setting("data.ids.prefixes=['']", "data.ids.prefixes"),
    setting("data.ids=7", "data.ids"),
    setting("data.ids.links=gone", "gone"),
    line("rehearse", "command line"),
    line("rehearse gone.toml", "gone.toml"),
    line("rehearse e.toml --aggregation magic", "magic"),
    line("rehearse e.toml --out run", "run"),
    line("rehearse e.toml --method nobody", "nobody"),
    line("nonsense", "nonsense"),
    line("--nonsense", "--nonsense"),
    line("run --set", "--set"),
    line("run e.toml extra", "extra"),
]

CASES: tuple[Case, ...] = (*SIZES, *NESTED, *CODE, *SETTINGS, *TABLES, *RUNS, *CALCULATORS, *OTHERS)
