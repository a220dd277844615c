from __future__ import annotations

import json
import socket

from tests.cli.conftest import Command, Run
from tests.hubprocess import HubProcess
from tests.ports import lasting_port

from headrace.conform import PROTOCOLS, cases_of


def test_a_hub_passes(command: Command, hub: HubProcess) -> None:
    done = command("conform", "spp", hub.doors["spp"], "--timeout", "30")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    names = [case.name for case in cases_of("spp")]
    assert (facts["protocol"], facts["address"]) == ("spp", hub.doors["spp"])
    assert (facts["passed"], facts["failed"], facts["not_run"]) == (len(names), 0, 0)
    assert [each["case"] for each in facts["cases"]] == names


def test_one_line_for_each_case_and_a_summary(shown: Run, hub: HubProcess) -> None:
    result = shown("conform", "tube", f"ws://{hub.doors['tube_ws']}", "--timeout", "30")
    assert result.exit_code == 0, result.stdout
    *lines, summary = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["passed", case.name] for case in cases_of("tube")]
    assert summary == f"{len(lines)} passed, 0 failed, 0 not run"


def test_other_doors_are_named(run: Run, hub: HubProcess) -> None:
    doors = ("--sdk", hub.doors["sdk"], "--timeout", "30", "--door", "router")
    result = run("conform", "attribute", hub.doors["router"], *doors, "--case", "push-arrives")
    assert result.exit_code == 0, result.stdout
    result = run("conform", "sdk", hub.doors["sdk"], "--publisher", hub.doors["publisher"], "--case", "push")
    assert json.loads(result.stdout)["cases"][0]["outcome"] == "passed"


def test_a_failure_says_everything(shown: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        arguments = ("conform", "sdk", address, "--timeout", "0.1", "--case", "heartbeat", "--case", "push")
        result = shown(*arguments)
        facts = json.loads(shown(*arguments, "--json").stdout)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("failed   heartbeat  The golden heartbeat is answered")
    assert lines[1:5] == [
        "         sent: 23 31 32 0d 0a 2a 31 0d 0a 24 32 0d 0a 68 62 0d 0a",
        "         expected: +h as the next reply: 2b 68 0d 0a",
        "         came: nothing, and then silence",
        '         the document: **From the connector**: "Heartbeat reply: +h CR LF"',
    ]
    assert lines[5].endswith("(it needs a publisher door: --publisher HOST:PORT)")
    assert lines[6] == "0 passed, 1 failed, 1 not run"
    assert (facts["failed"], facts["cases"][0]["came"]) == (1, "nothing, and then silence")


def test_nobody_is_there(run: Run) -> None:
    address = f"127.0.0.1:{lasting_port()}"
    result = run("conform", "parcel", address)
    assert result.exit_code == 1
    assert result.stderr == f"headrace: {address}: connection refused\n"


def test_the_cases_are_listed_without_a_server(run: Run, shown: Run) -> None:
    for protocol in PROTOCOLS:
        listed = json.loads(run("conform", protocol, "--list").stdout)
        assert [each["case"] for each in listed] == [case.name for case in cases_of(protocol)]
    assert len(shown("conform", "spp", "--list").stdout.splitlines()) == len(cases_of("spp"))
    listed = json.loads(run("conform", "spp", "--list", "--document").stdout)
    assert {each["basis"] for each in listed} == {"document"}
    listed = json.loads(run("conform", "attribute", "127.0.0.1:5500", "--list").stdout)
    assert {each["group"] for each in listed} == {"", "status"}


def test_usage_errors(run: Run) -> None:
    for arguments, sentence in (
        (["spp"], "which server?"),
        (["spp", "nowhere"], "expected HOST:PORT"),
        (["spp", "ws://127.0.0.1:1"], "or ws://HOST:PORT for a tube"),
        (["attribute", "127.0.0.1:1"], "which door is 127.0.0.1:1?"),
        (["spp", "127.0.0.1:1", "--case", "nonsense"], "spp has no case 'nonsense'"),
        (["sdk", "127.0.0.1:1", "--publisher", "x"], "is not the address of a publisher door"),
        (["smtp", "127.0.0.1:1"], "smtp"),
    ):
        result = run("conform", *arguments)
        assert result.exit_code == 2, arguments
        assert sentence in result.stderr
