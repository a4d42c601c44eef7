"""Noise from a seed stays on one machine: no silo's own limit counts it."""

import pytest

from uldp.errors import ConfigError
from uldp.experiment.config import Experiment
from uldp.runtimes.flower.federation import check_rehearsal
from uldp.runtimes.flower.processes import Address


@pytest.mark.parametrize("host", ["10.0.0.1", "server.example", "0.0.0.0"])
def test_a_rehearsal_does_not_leave_the_machine(host):
    tree = {"data": {"dataset": "digits"}, "method": {"name": "uldp-avg"}, "privacy": {"noise_multiplier": 5.0}}
    rehearsal = Experiment.from_tree({**tree, "run": {"secrets": "simulated"}})
    with pytest.raises(ConfigError, match=r"--superlink: a rehearsal .* stays on this machine"):
        check_rehearsal(rehearsal, Address.parse(f"{host}:8000", "--superlink"), "--superlink")
    check_rehearsal(rehearsal, Address.parse("127.0.0.1:8000", "--superlink"), "--superlink")
    check_rehearsal(
        Experiment.from_tree({**tree, "run": {"secrets": "os"}}), Address.parse(f"{host}:8000", "x"), "--superlink"
    )
