"""A model card in Markdown: intended use, data, metrics, privacy and caveats, from what may be shown of a run."""

from __future__ import annotations

import re

from uldp.privacy.sentences import COUNTS_MARK, show_epsilon
from uldp.reports.page import environment
from uldp.reports.view import RunView
from uldp.reports.words import metric_name, metric_sentence, show_guess, show_metric, verdict


def model_card(view: RunView) -> str:
    """The card of one run."""
    statement = view.statement
    caveats = [f"A person with {n} records faces epsilon {show_epsilon(e)}." for n, e in statement.per_person]
    caveats += [caveat.text for caveat in statement.other_caveats()]
    caveats += [f"Corrected: {line}" for line in statement.corrections] if statement.holds else []
    text = (
        environment()
        .get_template("card.md")
        .render(
            view=view,
            statement=statement,
            verdict=verdict(statement),
            useful="" if view.no_better else metric_sentence(view.metrics, ""),
            use=_use(view),
            data=_data(view),
            columns=[tuple(map(_plain, row)) for row in view.columns()],
            metrics=[(metric_name(name), _metric(view, name)) for name in view.metrics],
            exposures=[
                (
                    one.who,
                    show_epsilon(one.epsilon) + one.mark.replace("*", "\\*"),
                    show_epsilon(one.replace_one),
                    show_guess(one.epsilon, statement.delta),
                )
                for one in statement.exposures
            ],
            counts_mark=COUNTS_MARK if any(one.counts for one in statement.exposures) else "",
            caveats=caveats,
        )
    )
    return text.rstrip() + "\n"


def _metric(view: RunView, name: str) -> str:
    """A metric's value; the loss beside that of a constant model."""
    shown = show_metric(name, view.metrics[name])
    constant = view.constant_loss if name == "loss" else None
    return shown if constant is None else f"{shown} (always predicting the base rate: {show_metric(name, constant)})"


def _use(view: RunView) -> str:
    """What the model predicts, by settings and schema."""
    task, label = view.task or {}, (view.schema or {}).get("label", {})
    inputs = f"{len(view.schema['columns'])} columns of a table" if view.schema else "features"
    shape = task.get("features")
    if shape and (not view.schema or len(shape) > 1):
        inputs = f"{' x '.join(map(str, shape))} features"
    name = f" {_plain(label['column'])}" if label.get("column") else ""
    kind = task.get("kind")
    if kind == "regression":
        what = f"a number{name}"
    elif kind == "survival":
        what = "how early a person has an event"
    else:
        classes = label.get("classes") or []
        listed = f" ({', '.join(map(_plain, classes))})" if classes else ""
        what = f"one of {task.get('classes', len(classes) or 'several')} classes{name}{listed}"
    return f"Predicts {what} from {inputs}, as the data set {_plain(view.dataset)} has them."


def _data(view: RunView) -> str:
    silos = f"{len(view.silos)} silos ({', '.join(map(_plain, view.silos))})" if view.silos else "Several silos"
    users = f", with {view.users:,} public user indices" if view.users else ""
    return (
        f"{silos}{users}. Each silo kept its own records. How many records anybody has is not public, and not in this "
        "card."
    )


def _plain(text: object) -> str:
    """A name as it may stand in Markdown: on one line, and no markup."""
    shown = " ".join(str(text).split())
    return re.sub(r"([\\`*_<\[|])", r"\\\1", shown)
