"""``uldp epsilon`` and ``uldp sigma``: privacy calculators."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli.output import Json, print_json, print_table, reporting
from uldp.errors import ConfigError
from uldp.limits import MAX_SILOS, check_whole

if TYPE_CHECKING:
    from uldp.methods.base import Facts, Method, Observer
    from uldp.privacy.accountants import Epsilon
    from uldp.privacy.events import Composition

MethodName = Annotated[str, typer.Option("--method", help="A method by name (see `uldp methods`).")]
Rounds = Annotated[
    int | None, typer.Option("--rounds", help="T, the number of rounds. [DP-SGD: 1]", show_default=False)
]
Steps = Annotated[
    int | None,
    typer.Option("--steps", help="Steps of DP-SGD per round (uldp-group, local-sub-dp ...).", show_default=False),
]
Rate = Annotated[
    float,
    typer.Option(
        "--sample-rate",
        help="q: the probability that a user is in a round; for DP-SGD, that a record is in a step (local-sub-dp: a "
        "subject).",
    ),
]
GroupSize = Annotated[
    int | None, typer.Option("--group-size", help="k: at most so many records per user (uldp-group).")
]
Spanning = Annotated[
    int | None,
    typer.Option(
        "--spanning",
        help="s: a subject has records in at most so many silos (central-, local-sub-dp). [default: all, --silos]",
        show_default=False,
    ),
]
Items = Annotated[
    int | None,
    typer.Option("--items", help="Items are sampled, not subjects, and a silo keeps so many of one (local-sub-dp)."),
]
LargestGroup = Annotated[
    int | None, typer.Option("--largest-group", help="Z: so many items of a subject count in a step (local-sub-dp).")
]
Conversion = Annotated[
    str, typer.Option("--conversion", help="How a group is accounted: mixture (tight), lemma5 or lemma6.")
]
AccountantName = Annotated[
    str, typer.Option("--accountant", help="auto, or one by name, such as rdp for the papers' figures.")
]
Adversary = Annotated[str, typer.Option("--adversary", help="outside, server or silo.")]
AggregationName = Annotated[
    str, typer.Option("--aggregation", help="plain, masked or paillier: what the server and the silos see.")
]
Private = Annotated[
    bool, typer.Option("--private-sampling", help="Neither the server nor the silos know who was sampled (paillier).")
]
Silos = Annotated[
    int | None, typer.Option("--silos", help="|S|, for what the server and silos see. [default: 5]", show_default=False)
]
Colluding = Annotated[int, typer.Option("--colluding", help="With --adversary silo: so many silos pool what they see.")]
Dropped = Annotated[int, typer.Option("--dropped", help="So many silos sent nothing.")]
Compensate = Annotated[
    int, typer.Option("--compensate", help="Noise shares sized for so many missing or curious silos.")
]
Delta = Annotated[float, typer.Option("--delta", help="The probability with which epsilon may fail; far below 1/|U|.")]

ADVERSARIES = ("outside", "server", "silo")
CONVERSIONS = {"mixture": "auto", "lemma5": "lemma5", "lemma6": "lemma6"}
OPTIONS = {
    "method.max_silos": "--spanning",
    "method.max_items": "--items",
    "method.largest_group": "--largest-group",
    "method.record_rate": "--sample-rate",
    "method.sample_rate": "--sample-rate",
    "method.local_steps": "--steps",
    "method.rounds": "--rounds",
    "method.group_size": "--group-size",
}
"""Which option a setting was given by."""
TABLE_ROUNDS = (1, 10, 50, 100, 200)
SPANNED = (1, 2, 5, 10)


@dataclass(frozen=True)
class _Question:
    """What the options of both calculators ask about."""

    method: str
    rounds: int | None
    steps: int | None
    sample_rate: float
    group_size: int | None
    spanning: int | None
    items: int | None
    largest_group: int | None
    conversion: str
    accountant: str
    adversary: str
    aggregation: str
    private: bool
    silos: int
    colluding: int
    dropped: int
    compensate: int
    delta: float

    def __post_init__(self) -> None:
        from uldp.methods.registry import lookup

        if lookup(self.method).method.local_noise:
            raise ConfigError(
                "its clients perturb by themselves; `uldp local` says what that costs",
                place="--method",
                value=self.method,
            )
        if lookup(self.method).fixed.get("mode") == "published":
            raise ConfigError(
                "keeps no promise, whatever the noise; `--method "
                + self.method.removesuffix("-published")
                + " --claimed E --table` sets what is claimed beside what is true",
                place="--method",
                value=self.method,
            )
        choices = {"--adversary": (self.adversary, ADVERSARIES), "--conversion": (self.conversion, tuple(CONVERSIONS))}
        for option, (value, known) in choices.items():
            if value not in known:
                raise ConfigError(f"one of {', '.join(known)}, not {value!r}", place=option, value=value)
        numbers = {"--silos": (self.silos, 1), "--colluding": (self.colluding, 1), "--dropped": (self.dropped, 0)}
        for option, (number, least) in numbers.items():
            check_whole(number, least, MAX_SILOS, option)
        away = self.dropped + (self.colluding if self.adversary == "silo" else 0)
        if away > self.silos:
            raise ConfigError(f"{away} silos of {self.silos} drop out or pool", place="--silos", value=self.silos)
        if self.colluding > 1 and self.adversary != "silo":
            raise ConfigError("goes with --adversary silo", place="--colluding", value=self.colluding)
        if self.conversion != "mixture" and (not self.dp_sgd or self.accountant != "auto"):
            raise ConfigError(
                "goes with a group method (uldp-group), and without --accountant",
                place="--conversion",
                value=self.conversion,
            )

    @property
    def dp_sgd(self) -> bool:
        from uldp.methods.dp_sgd import DpSgd
        from uldp.methods.registry import lookup

        return issubclass(lookup(self.method).method, DpSgd)

    @property
    def facts(self) -> Facts:
        from uldp.aggregation import lookup_aggregation
        from uldp.methods.base import Facts

        # What is asked for does not depend on |U|, and on d only by the dither: more parameters than these would take
        # paillier days for a round.
        return Facts(users=2, silos=self.silos, dimension=10**6, dither=lookup_aggregation(self.aggregation).dither)

    @property
    def observer(self) -> Observer:
        from uldp.aggregation import lookup_aggregation
        from uldp.methods.base import Observer

        kind = lookup_aggregation(self.aggregation)
        who = {"outside": "world", "server": "server", "silo": "silos"}[self.adversary]
        return Observer(
            who,  # type: ignore[arg-type]
            self.colluding,
            self.dropped,
            sums=kind.server_sees_each_silo,
            sample=not (self.private if who == "server" else kind.hides_sample),
        )

    def built(self, noise_multiplier: float, **changes: Any) -> Method:
        """The method with these settings; options that it does not have are refused."""
        from uldp.aggregation import lookup_aggregation
        from uldp.methods.registry import lookup

        named = lookup(self.method)
        known = {field.name for field in fields(named.method)}
        settings: dict[str, Any] = {"noise_multiplier": noise_multiplier if named.method.unit is not None else 0.0}
        if self.dp_sgd:
            settings |= {"record_rate": self.sample_rate, "local_steps": self.steps or 1, "rounds": self.rounds or 1}
            if self.steps is None and self.rounds is None:
                raise ConfigError("how many steps of DP-SGD?", place="--steps")
        else:
            settings |= {"sample_rate": self.sample_rate}
            if self.rounds is None:
                raise ConfigError("how many rounds?", place="--rounds")
            settings["rounds"] = self.rounds
        for option, key, value in (
            ("--steps", "local_steps", self.steps),
            ("--group-size", "group_size", self.group_size),
            ("--spanning", "max_silos", self.spanning),
            ("--items", "max_items", self.items),
            ("--largest-group", "largest_group", self.largest_group),
        ):
            if value is not None:
                if key not in known:
                    raise ConfigError(f"{self.method} has no such setting", place=option, value=value)
                if key in named.fixed:
                    raise ConfigError(
                        f"{self.method} means {key} = {named.fixed[key]!r}; take --method uldp-group", place=option
                    )
                settings[key] = value
        if self.items is not None:
            settings["sampling"] = "items"
        elif self.largest_group is not None:
            raise ConfigError("goes with --items", place="--largest-group", value=self.largest_group)
        if self.compensate:
            settings["compensate"] = self.compensate
        if self.private:
            if "sampling" not in known or self.aggregation != "paillier":
                raise ConfigError(
                    "goes with --aggregation paillier and a method that samples users", place="--private-sampling"
                )
            settings["sampling"] = "private"
        try:
            method = named.method(**{**dict(named.fixed), **settings, **changes})
        except ConfigError as error:  # say it in the words that were typed
            raise ConfigError(error.message, place=OPTIONS.get(error.place, error.place), value=error.value) from error
        method.check(self.facts)
        lookup_aggregation(self.aggregation)().check(method, self.facts)
        return method

    def seen(self, method: Method) -> Composition:
        return method.seen_over(self.facts, self.observer, [1] * method.rounds)

    def account(self, noise_multiplier: float) -> Epsilon:
        from uldp.privacy.accountants import account

        name = CONVERSIONS[self.conversion] if self.accountant == "auto" else self.accountant
        return account(self.seen(self.built(noise_multiplier)), self.delta, name)


def _about_subjects(method: str) -> bool:
    from uldp.methods.registry import lookup
    from uldp.methods.subjects import SubjectLevel

    return issubclass(lookup(method).method, SubjectLevel)


def _silos(silos: int | None, spanning: int | None, table: bool = False) -> int:
    """|S|: as given, or as many as a subject is said to be in (a table goes to ten)."""
    if spanning is not None:
        check_whole(spanning, 0, MAX_SILOS, "--spanning")
    if silos is not None and spanning is not None and spanning > silos:
        raise ConfigError(f"at most the number of silos ({silos}), not {spanning}", place="--spanning", value=spanning)
    return silos if silos is not None else max(SPANNED[-1] if table else 5, spanning or 1)


@reporting
def epsilon(
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", help="sigma; the noise is sigma * clip.", show_default=False)
    ] = None,
    rounds: Rounds = None,
    steps: Steps = None,
    method: MethodName = "uldp-avg",
    sample_rate: Rate = 1.0,
    group_size: GroupSize = None,
    spanning: Spanning = None,
    items: Items = None,
    largest_group: LargestGroup = None,
    claimed: Annotated[
        float | None,
        typer.Option(
            "--claimed",
            help="Instead of sigma (central-, local-sub-dp): the least noise that keeps this epsilon for somebody with "
            "one item in one silo; with --largest-group Z the paper's sigma_Z.",
        ),
    ] = None,
    conversion: Conversion = "mixture",
    accountant: AccountantName = "auto",
    adversary: Adversary = "outside",
    aggregation: AggregationName = "masked",
    private_sampling: Private = False,
    silos: Silos = None,
    colluding: Colluding = 1,
    dropped: Dropped = 0,
    compensate: Compensate = 0,
    delta: Delta = 1e-5,
    table: Annotated[
        bool, typer.Option("--table", help="The paper's formula, a valid one and the tight value side by side.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="With --table: a picture of it.")] = None,
    as_json: Json = False,
) -> None:
    """Epsilon of a run, and for whom it holds."""
    from uldp.methods.subjects import SubjectLevel
    from uldp.privacy.accountants import account_replaced
    from uldp.privacy.statement import finite_or_none, show_epsilon

    asked = _Question(
        method, rounds, steps, sample_rate, group_size, spanning, items, largest_group, conversion, accountant,
        adversary, aggregation,
        private_sampling, _silos(silos, spanning, table and _about_subjects(method)), colluding, dropped,
        compensate, delta,
    )  # fmt: skip
    if out is not None and not table:
        raise ConfigError("goes with --table", place="--out", value=str(out))
    if out is not None:
        from uldp.reports.figures import check_picture

        check_picture(out)
    if (noise_multiplier is None) == (claimed is None):
        raise ConfigError("give one of --noise-multiplier and --claimed", place="command line")
    if noise_multiplier is None:
        assert claimed is not None
        noise_multiplier = claimed_noise(asked, claimed)
    if table:
        _print_side_by_side(asked, noise_multiplier, claimed, out, as_json)
        return
    if group_size is None and method == "uldp-group":
        raise ConfigError("at most how many records per user?", place="--group-size")
    spent = asked.account(noise_multiplier)
    built = asked.built(noise_multiplier)
    replaced = spent.value if built.covers_replacement else account_replaced(asked.seen(built), delta).value
    if as_json:
        print_json(
            {
                "epsilon": finite_or_none(spent.value),
                "epsilon_if_replaced": finite_or_none(replaced),
                "delta": delta,
                "accountant": spent.accountant,
                "adversary": adversary,
                "noise_multiplier": noise_multiplier,
                **({"silos_of_a_subject": built.spanned(asked.facts)} if isinstance(built, SubjectLevel) else {}),
            }
        )
        return
    who = {"outside": "whoever sees the model of every round", "server": "the server", "silo": "one silo"}[adversary]
    who = f"{colluding} silos together" if adversary == "silo" and colluding > 1 else who
    unit = built.unit or "user"
    typer.echo(
        f"epsilon {show_epsilon(spent.value)} at delta {delta:g} against {who} ({spent.accountant}, add/remove one "
        f"{unit}; {show_epsilon(replaced)} if records are replaced)"
    )
    if isinstance(built, SubjectLevel):
        typer.echo(
            f"for a subject in {built.spanned(asked.facts)} of {asked.silos} silos (--spanning, --silos), with noise "
            f"multiplier {noise_multiplier:.5g}"
        )


@reporting
def sigma(
    target: Annotated[float, typer.Option("--epsilon", help="The epsilon to stay within.")],
    rounds: Rounds = None,
    steps: Steps = None,
    method: MethodName = "uldp-avg",
    sample_rate: Rate = 1.0,
    group_size: GroupSize = None,
    spanning: Spanning = None,
    items: Items = None,
    largest_group: LargestGroup = None,
    adversary: Adversary = "outside",
    aggregation: AggregationName = "masked",
    private_sampling: Private = False,
    silos: Silos = None,
    colluding: Colluding = 1,
    dropped: Dropped = 0,
    compensate: Compensate = 0,
    delta: Delta = 1e-5,
    as_json: Json = False,
) -> None:
    """The smallest noise multiplier with which a run stays within an epsilon."""
    from uldp.methods.registry import lookup
    from uldp.privacy.calibrate import calibrate

    asked = _Question(
        method, rounds, steps, sample_rate, group_size, spanning, items, largest_group, "mixture", "auto",
        adversary, aggregation,
        private_sampling, _silos(silos, spanning), colluding, dropped, compensate, delta,
    )  # fmt: skip
    if lookup(method).method.unit is None:
        raise ConfigError(f"{method} adds no noise, so no noise reaches an epsilon", place="--method", value=method)
    # The noise must do when as many shares are missing or known as are compensated for.
    known = colluding if adversary == "silo" else 0
    worst = replace(asked, dropped=max(dropped, compensate - known))
    found = calibrate(lambda noise: worst.seen(worst.built(noise)), target, delta)
    reached = worst.account(found)
    if as_json:
        print_json(
            {"noise_multiplier": found, "epsilon": reached.value, "delta": delta, "accountant": reached.accountant}
        )
    else:
        typer.echo(f"noise multiplier {found:g} (epsilon {reached.value:.4g} at delta {delta:g}, {reached.accountant})")
        if _about_subjects(method):
            typer.echo(f"for a subject in {asked.spanning or asked.silos} of {asked.silos} silos (--spanning, --silos)")


def one_item(asked: _Question) -> _Question:
    """The same for a subject with one item in one silo: what the paper on subjects accounts for."""
    return replace(asked, spanning=1, items=None, largest_group=None)


def claimed_noise(asked: _Question, claimed: float) -> float:
    """The least noise with which the claim holds for a subject with one item in one silo.

    With Z as ``--largest-group``: the paper's sigma_Z, by group privacy and the moments accountant.
    """
    from uldp.privacy.calibrate import calibrate
    from uldp.privacy.subjects import published_noise

    if not _about_subjects(asked.method):
        raise ConfigError("goes with central-sub-dp and local-sub-dp", place="--claimed", value=claimed)
    if not 0 < claimed < math.inf:
        raise ConfigError(f"a positive number, not {claimed}", place="--claimed", value=claimed)
    single = one_item(asked)
    if asked.largest_group is None:
        return calibrate(lambda noise: single.seen(single.built(noise)), claimed, asked.delta)
    steps = (asked.steps or 1) * (asked.rounds or 1)
    return published_noise(claimed, asked.delta, asked.largest_group, asked.sample_rate, steps)


def _print_side_by_side(
    asked: _Question, noise_multiplier: float, claimed: float | None, out: Path | None, as_json: bool
) -> None:
    from uldp.privacy.statement import finite_or_none, show_epsilon

    head, columns, rows = _side_by_side(asked, noise_multiplier)
    if claimed is not None:
        columns, rows = ("claimed", *columns), [(key, (claimed, *values)) for key, values in rows]
    figure = None
    if out is not None:
        from uldp.reports.tables import table_figure

        figure = str(table_figure(head, columns, rows, out))
    if as_json:
        table = [{head: key, **dict(zip(columns, map(finite_or_none, values), strict=True))} for key, values in rows]
        print_json({"table": table, "delta": asked.delta, "figure": figure})
        return
    shown = [(str(key), *("-" if math.isnan(v) else show_epsilon(v) for v in values)) for key, values in rows]
    print_table((head, *columns), shown)
    if "published" in columns:
        typer.echo(
            "'published' is what the paper's formula or figure says; where it is the smaller one it is no bound."
        )
    else:
        typer.echo(f"noise multiplier {noise_multiplier:.5g}; 'true' counts all items and silos of the subject.")
    if figure:
        typer.echo(f"picture: {figure}")


def _side_by_side(
    asked: _Question, noise_multiplier: float
) -> tuple[str, tuple[str, ...], list[tuple[int, tuple[float, ...]]]]:
    """What stands in the first column, the other columns' names, and the rows."""
    from uldp.methods.subjects import SubjectLevel
    from uldp.methods.uldp_group import UldpGroup
    from uldp.methods.uldp_naive import UldpNaive
    from uldp.privacy.accountants import account
    from uldp.privacy.events import sampled_gaussian
    from uldp.privacy.groups import published_epsilon

    rows: list[tuple[int, tuple[float, ...]]] = []
    first = asked.built(noise_multiplier)
    if isinstance(first, SubjectLevel):
        one = one_item(asked).account(noise_multiplier).value
        for silos in sorted({*(s for s in SPANNED if s <= asked.silos), asked.spanning or 1}):
            true = replace(asked, spanning=silos).account(noise_multiplier).value
            rows.append((silos, (one, true)))
        return "silos of a subject", ("one item, one silo", "true"), rows
    if isinstance(first, UldpGroup):
        largest = asked.group_size or 64
        for size in sorted({*(2**power for power in range(30) if 2**power <= largest), largest}):
            seen = asked.seen(asked.built(noise_multiplier, group_size=size))
            values = [published_epsilon(seen, asked.delta) if size & (size - 1) == 0 else math.nan]
            values += [account(seen, asked.delta, name).value for name in ("lemma6", "lemma5", "auto")]
            rows.append((size, tuple(values)))
        return "k", ("published", "Lemma 6, valid orders", "Lemma 5", "tight"), rows
    for count in sorted({*(t for t in TABLE_ROUNDS if t < first.rounds), first.rounds}):
        seen = first.seen_over(asked.facts, asked.observer, [1] * count)
        claimed: Composition = {sampled_gaussian(noise_multiplier): count} if isinstance(first, UldpNaive) else seen
        values = [account(claimed, asked.delta, "rdp").value]
        values += [account(seen, asked.delta, name).value for name in ("rdp", "auto")]
        rows.append((count, tuple(values)))
    return "rounds", ("published", "valid, by RDP", "tight"), rows
