"""What others watch of a party: lines of JSON with fixed fields, and measures on loopback; never about a person."""

import http.client
import json
import logging
import math
import socket
from pathlib import Path

import pytest
from tests.federation.federation_support import World, experiment, parties

from uldp.errors import ConfigError, DataError, RunError
from uldp.runtimes.event_log import DATA_ERROR, EVENTS, FIELDS, EventLog
from uldp.runtimes.flower.processes import free_port
from uldp.runtimes.flower.transport import FlowerTransport
from uldp.runtimes.gauges import MEASURES, Gauges, GaugeServer, whole_minute
from uldp.runtimes.result import RoundReport

ALWAYS = ("time", "level", "party", "event", "message")


@pytest.fixture
def lines():
    return []


@pytest.fixture
def log(lines):
    return EventLog("silo-1", "json", lines.append)


@pytest.fixture
def logger(log):
    """The log of a silo's process, written as ``join --log json`` writes it."""
    found, handler = logging.getLogger("uldp.silo"), log.handler()
    found.addHandler(handler)
    found.setLevel(logging.INFO)
    yield found
    found.removeHandler(handler)
    found.setLevel(logging.NOTSET)


def read(lines):
    trees = [json.loads(line) for line in lines]
    for tree in trees:
        assert set(ALWAYS) <= set(tree) <= set(FIELDS) and tree["event"] in EVENTS
    return trees


def test_a_whole_run_logs_fixed_fields_and_no_count_of_records(tmp_path, lines, logger):
    made = World(tmp_path, experiment())
    made.serving().run()
    made.close()
    trees = read(lines)
    heads = [tree["head"] for tree in trees if tree["event"] == "released"]
    assert len(heads) == len(set(heads)) >= 9
    records = len(parties(made.built)[1]["silo-1"].data("silo-1"))
    assert not any(f" {records} " in tree["message"] for tree in trees)


def test_a_round_of_the_server_is_a_line_without_seconds(log, lines):
    log.round(RoundReport(2, 3, {"accuracy": 0.5}, 1.25, 77.7, ("c",)))
    log.round(RoundReport(3, 3, {}, math.inf, 1.0))
    first, second = read(lines)
    assert (first["round"], first["rounds"], first["epsilon"]) == (2, 3, 1.25)
    assert "77.7" not in lines[0] and "without c" in first["message"]
    assert second["epsilon"] is None


def test_for_people_the_lines_are_as_before(lines):
    log = EventLog("server", "text", lines.append)
    log.round(RoundReport(2, 3, {"accuracy": 0.5}, 1.25, 77.7, ("c",)))
    log.event("note", "no test file", level="warning")
    assert lines[0].startswith("round 2/3  accuracy 0.5  epsilon 1.25") and lines[0].endswith("77.7 s  without c")
    assert lines[1] == "warning: no test file"
    with pytest.raises(ConfigError, match="--log: text or json, not 'xml'"):
        EventLog("server", "xml", lines.append)


def test_what_may_name_a_record_is_left_out(log, lines, logger):
    with pytest.raises(DataError), log.log_errors():
        raise DataError("line 17: age 203 is outside", location="a.csv")
    with pytest.raises(RunError), log.log_errors():
        raise RunError("No space left on device", location="state")
    with pytest.raises(KeyboardInterrupt), log.log_errors():
        raise KeyboardInterrupt
    logger.error("silo a: %s", "patient 17", extra={"owner_only": True})
    try:
        raise ValueError("patient 17")
    except ValueError:
        logger.exception("silo a: patient 17", extra={"owner_only": True})
    trees = read(lines)
    assert trees[0]["message"] == DATA_ERROR and "No space" in trees[1]["message"]
    assert trees[2]["event"] == "stopped"
    assert "ValueError" in trees[4]["message"]
    assert "17" not in "".join(tree["message"] for tree in trees) and "Traceback" not in "".join(lines)


def test_a_foreign_text_is_one_line_of_json(log, lines):
    log.say("no\nmore\x1b[2J" + "x" * 9000)
    assert len(lines) == 1 and "\n" not in lines[0] and len(lines[0]) < 3000
    assert read(lines)[0]["message"].isprintable()


def get(port, path, host="127.0.0.1"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Host": host})
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_measures_and_health_are_served_on_loopback_only():
    gauges, port, trouble = Gauges(), free_port(), []
    gauges.set("uldp_round", 2)
    gauges.add("uldp_refusals_total", 'a"b\n')
    gauges.ask(lambda: [("uldp_epsilon", "", math.inf)])
    gauges.watch(lambda: "".join(trouble))
    with GaugeServer(gauges, port):
        status, text = get(port, "/metrics")
        assert status == 200 and "\nuldp_round 2.0\n" in text and "\nuldp_epsilon +Inf\n" in text
        assert 'uldp_refusals_total{silo="a\\"b\\n"} 1.0' in text
        assert get(port, "/health") == (200, '{"ok": true, "trouble": null}\n')
        trouble.append("no run of Flower is connected")
        assert get(port, "/health")[0] == 503 and "no run of Flower" in get(port, "/health")[1]
        assert get(port, "/metrics", "evil.example")[0] == 403
        assert get(port, "/")[0] == 404
        with pytest.raises(ConfigError, match="--metrics: cannot listen"):
            GaugeServer(gauges, port)
        for address in _addresses():
            with pytest.raises(OSError):
                socket.create_connection((address, port), timeout=2)
    for wrong in (0, -1, 1 << 16):
        with pytest.raises(ConfigError, match="--metrics: a port"):
            GaugeServer(gauges, wrong)


@pytest.mark.parametrize("error", [BrokenPipeError, ValueError("of a record")])
def test_a_request_that_fails_leaves_no_line_beside_the_log(capfd, error):
    def fail():
        raise error

    gauges, port = Gauges(), free_port()
    gauges.ask(fail)
    with GaugeServer(gauges, port):
        with pytest.raises(http.client.RemoteDisconnected):
            get(port, "/metrics")
        assert get(port, "/health")[0] == 200
    assert capfd.readouterr().err == ""


def _addresses():
    """Addresses of this machine that are not loopback."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        return []
    return [entry[4][0] for entry in found if not entry[4][0].startswith("127.")]


def test_a_silo_and_a_server_measure_what_is_listed_and_nothing_else(tmp_path):
    made = World(tmp_path, experiment())
    made.serving().run()
    process = made.silo("silo-1")
    found = {name: value for name, _, value in process.measures()}
    assert found["uldp_round"] == found["uldp_rounds"] == 3.0 and found["uldp_epsilon"] > 0
    assert set(found) <= set(MEASURES) and found["uldp_last_contact_timestamp_seconds"] % 60 == 0
    made.close()
    with FlowerTransport({"a": 1, "b": 2}) as transport:
        transport.exchange({"a": b"1"}, 0.05)
        assert {(name, silo) for name, silo, _ in transport.measures()} == {
            ("uldp_silo_absent", "a"),
            ("uldp_silo_absent", "b"),
        }
    assert whole_minute(119.9) == 60


def test_prometheus_can_read_it():
    """Every line is a comment or a name, labels and a number; names come once, with their kind before them."""
    gauges = Gauges()
    for name in MEASURES:
        gauges.set(name, 1.0, "a")
    text = gauges.text()
    assert text.endswith("\n")
    for name in MEASURES:
        assert text.count(f"# TYPE {name} ") == text.count(f"# HELP {name} ") == 1
    for line in text.splitlines():
        assert line.startswith("# ") or (float(line.rpartition(" ")[2]) == 1.0 and line.partition("{")[0] in MEASURES)


def test_the_page_for_operators_lists_every_field_event_and_measure():
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for names in (FIELDS, EVENTS, MEASURES):
        for name, meaning in names.items():
            words = meaning if isinstance(meaning, str) else meaning[1]
            assert f"| `{name}` | {words} |" in page
