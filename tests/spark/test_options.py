"""Options: what may be said, what it comes to, and what is said about what may not."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from headrace.config import Address
from headrace.config.sources import CLIENT_VARIABLE, KEY_VARIABLE
from headrace.errors import UsageError
from headrace.spark.options import (
    SERVERS_VARIABLE,
    HubOptions,
    check_source_options,
    parse_sink_options,
    parse_source_options,
)


def test_nothing_said() -> None:
    options = parse_source_options({}, stream=True)
    assert options.access.hosts == [Address("127.0.0.1", 8081)]
    assert options.fail_on_data_loss
    assert options.starting is None
    assert options.columns is None
    assert parse_sink_options({}).topic == ""


def test_everything_said_as_spark_says_it() -> None:
    options = parse_source_options(
        {
            "servers": "tube://one:1, tube://two",
            "startingoffsets": "Earliest",
            "maxoffsetspertrigger": "1000",
            "maxbytespertrigger": "5000000",
            "minbytespertrigger": "1000000",
            "maxtriggerdelay": "2m",
            "minpartitions": "7",
            "failondataloss": "FALSE",
            "topic": "a/**",
            "origin": "spp, tube",
            "where": '{"region": "eu"}',
            "columns": "seq, payload",
            "hold": "mine",
            "files": "false",
            "patience": "2.5",
            "checkpointlocation": "/somewhere",
        },
        stream=True,
    )
    assert [str(host) for host in options.access.hosts] == ["one:1", "two:8081"]
    assert options.starting == "earliest"
    assert (options.max_offsets, options.max_bytes, options.min_partitions) == (1000, 5_000_000, 7)
    assert (options.min_bytes, options.max_delay) == (1_000_000, 120.0)
    assert not options.fail_on_data_loss
    assert options.reader == options.hold
    assert options.origins == ("spp", "tube")
    assert options.predicates == {"region": {"use": 1, "strval": "eu"}}
    assert options.columns == ("seq", "payload")
    assert (options.hold, options.files) == ("mine", False)
    assert options.access.patience == 2.5
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000", 1_700_000_000_000_000),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500_000),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert parse_source_options({"startingTimestamp": text}, stream=True).starting_time == expected
    assert parse_source_options({"startingOffsetsByTimestamp": text}, stream=True).starting_time == expected
    assert parse_source_options({"endingTimestamp": text}, stream=False).ending_time == expected


def test_times_as_kafka_users_write_them() -> None:
    given = {"startingOffsetsByTimestamp": '{"orders": {"0": 1700000000000, "1": 1700000000000}}'}
    assert parse_source_options(given, stream=True).starting_time == 1_700_000_000_000_000


def test_the_hubs_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVERS_VARIABLE, "one:1,two:2")
    assert parse_source_options({}, stream=True).access.hosts == [Address("one", 1), Address("two", 2)]
    assert parse_sink_options({"servers": "three:3"}).access.hosts == [Address("three", 3)]
    monkeypatch.setenv(SERVERS_VARIABLE, " ")
    assert parse_sink_options({}).access.hosts == [Address("127.0.0.1", 8081)]


def test_readers_begin_with_different_hubs() -> None:
    access = HubOptions.to("one:1,two:2,three:3")
    orders = [access.beginning_with(first).hosts for first in range(1, 100_000, 10_000)]
    assert {order[0] for order in orders} == set(access.hosts)
    assert all(set(order) == set(access.hosts) for order in orders)
    assert HubOptions.to("one:1").beginning_with(7) == HubOptions.to("one:1")


@pytest.mark.parametrize(
    ("given", "stream", "said"),
    [
        ({"startingOfsets": "latest"}, True, "no option 'startingofsets': did you mean startingOffsets?"),
        ({"groupIdPrefix": "x"}, True, "no option 'groupidprefix': there are servers,"),
        ({"columns": "seq,topc"}, True, "columns: there is no column 'topc': did you mean topic?"),
        ({"columns": "seq,value"}, False, "there is no column 'value': there are seq, time, origin"),
        ({"columns": "seq,topic,seq"}, True, "columns has seq twice"),
        ({"columns": "seq,"}, True, "there is no column ''"),
        ({"kafka.bootstrap.servers": "x"}, True, "did you mean servers?"),
        ({"subscribe": "x"}, True, "no option 'subscribe': did you mean topic?"),
        ({"endingOffsetsByTimestamp": "1"}, False, "did you mean endingTimestamp?"),
        ({"endingTimestamp": "1"}, True, "endingTimestamp is for spark.read: a stream has no end"),
        ({"endingTimestamp": "1", "endingOffsets": "1"}, False, "exclude one another: set one"),
        ({"minOffsetsPerTrigger": "9"}, False, "is for spark.readStream"),
        ({"startingTimestamp": "1", "startingOffsetsByTimestamp": "1"}, True, "are the same: set one"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": 1, "1": 2}}'}, True, "expected one time for all topics"),
        ({"path": "one:1"}, True, "there is no path: set the options servers and topic"),
        ({"startingOffsets": "middle"}, True, "expected earliest, latest or a sequence number"),
        ({"startingOffsets": "0"}, True, "from 1 on"),
        ({"startingOffsets": "9" * 5000}, True, "from 1 on"),
        ({"startingOffsets": "12", "endingOffsets": "10"}, False, "10 is before startingOffsets = 12"),
        ({"startingOffsets": "latest"}, False, "expected earliest or a sequence number"),
        ({"startingOffsets": "1", "startingTimestamp": "1"}, True, "exclude one another: set one"),
        ({"startingTimestamp": "yesterday"}, True, "expected ms since 1970"),
        ({"startingTimestamp": "1700000000000000000"}, True, "expected ms since 1970"),
        ({"startingTimestamp": "1969-12-31T23:59:59Z"}, True, "expected ms since 1970"),
        ({"endingOffsets": "9"}, True, "a stream has no end"),
        ({"maxOffsetsPerTrigger": "9"}, False, "is for spark.readStream"),
        ({"hold": "h"}, False, "is for spark.readStream"),
        ({"maxOffsetsPerTrigger": "0"}, True, "a whole number from 1 on"),
        ({"minBytesPerTrigger": "9"}, False, "is for spark.readStream"),
        ({"maxTriggerDelay": "soon"}, True, "expected seconds, or a time such as 500ms, 60s or 15m"),
        ({"maxBytesPerTrigger": "10m"}, True, "a whole number from 1 on"),
        ({"failOnDataLoss": "no"}, True, "expected true or false"),
        ({"topic": " "}, True, "topic is empty"),
        (
            {"topic": "a*" * 17},
            True,
            "topic is no pattern: wildcards of a topic pattern: 17. A pattern has at most 16",
        ),
        ({"topic": "**" + "a" * 300}, False, "and 256 characters from the first on"),
        ({"where": "region = eu"}, True, "where: expected JSON"),
        ({"where": "[1]"}, True, "where: expected a JSON object"),
        ({"where": '{"a": {"use": 9}}'}, True, 'where: a = {"use": 9}: expected a text, or [low, high], or'),
        ({"where": '{"a": {"use": 2, "low": 2, "high": 1}}'}, True, "not above high"),
        (
            {"where": '{"a": 90}'},
            True,
            "where: a = 90: expected a text, or [low, high] (for just that number [90, 90])",
        ),
        (
            {"where": '{"a": [1]}'},
            True,
            "where: a = [1]: expected a text, or [low, high], or a predicate of the SDK",
        ),
        ({"where": '{"a": [80, null]}'}, True, "where: a = [80, null]: expected a text, or [low, high], or"),
        ({"where": '{"a": true}'}, True, "where: a = true: expected a text, or [low, high], or"),
        (
            {"where": '{"a": [true, false]}'},
            True,
            "where: a = [true, false]: expected a text, or [low, high], or",
        ),
        ({"where": f'{{"a": [{"9" * 99}]}}'}, True, "9…: expected a text"),
        ({"servers": "one:port"}, True, r"servers = 'one:port': expected host:port"),
        ({"patience": "-1"}, True, "seconds from 0 to 3600"),
        ({"key": "s3cret"}, True, "would appear in plans and logs"),
        ({"password": "s3cret"}, False, "would appear in plans and logs"),
        ({"apiKey": "s3cret"}, True, "would appear in plans and logs"),
        ({"kafka.sasl.jaas.config": "s3cret"}, True, "would appear in plans and logs"),
        ({"servers": "me:s3cret@one:1"}, True, "servers has an @"),
        ({"servers": "tube://me:s3cret@one:1"}, True, "set clientId for credentials"),
    ],
)
def test_what_cannot_be_is_told(given: dict[str, str], stream: bool, said: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_source_options(given, stream=stream)
    assert said in str(told.value)
    assert "s3cret" not in str(told.value)


def test_what_neither_reader_takes_is_told_before_it_is_known_which_it_is() -> None:
    check_source_options({"endingOffsets": "9"})
    check_source_options({"hold": "mine"})
    with pytest.raises(UsageError, match="did you mean startingOffsets"):
        check_source_options({"startingOffset": "9"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"startingOffsets": "30", "endingOffsets": "20"},
            "endingOffsets = 20 is before startingOffsets = 30",
        ),
        ({"endingOffsets": "abc"}, "endingOffsets = 'abc': expected latest or a sequence number"),
        ({"endingoffsets": "earliest"}, "endingOffsets = 'earliest': expected latest or a sequence number"),
        ({"endingOffsets": "9", "startingOffsets": "latest"}, "expected earliest or a sequence number"),
        ({"endingOffsets": "9", "hold": "mine"}, "endingOffsets is for spark.read"),
    ],
)
def test_what_only_a_batch_takes_is_told_as_to_a_batch(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_source_options(given)


def test_one_of_several_is_told_as_it_can_be_said() -> None:
    with pytest.raises(UsageError) as told:
        parse_source_options({"where": '{"region": ["a", "ü"]}'}, stream=True)
    said = str(told.value)
    assert said.startswith('where: region = ["a", "ü"]: expected a text')
    again = said[said.index('{"use"') :]
    assert json.loads(again) == {"use": 3, "extra": '{"in": ["a", "ü"]}'}
    parse_source_options({"where": f'{{"region": {again}}}'}, stream=True)


def test_a_range_may_be_empty() -> None:
    """From what follows the last one read to the last there is: nothing, and nobody's mistake."""
    options = parse_source_options({"startingOffsets": "11", "endingOffsets": "10"}, stream=False)
    assert (options.starting, options.ending) == (11, 10)


def test_the_sink_has_fewer() -> None:
    with pytest.raises(UsageError, match="no option 'where': there are servers"):
        parse_sink_options({"where": "{}"})
    with pytest.raises(UsageError, match="no option 'startingoffsets'"):
        parse_sink_options({"startingOffsets": "latest"})
    assert parse_sink_options({"topic": "out"}).topic == "out"


def test_a_write_that_may_be_repeated_has_a_version() -> None:
    options = parse_sink_options({"txnappid": "counts", "txnversion": "0"})
    assert (options.application, options.version) == ("counts", 0)
    assert parse_sink_options({"txnversion": "7"}).application is None
    for given, said in (
        ({"txnAppId": "counts"}, "set txnVersion too"),
        ({"txnAppId": "counts", "txnVersion": "-1"}, "expected a whole number from 0 on"),
        ({"txnAppId": "x" * 256, "txnVersion": "1"}, "at most 255 characters"),
        ({"txnAppId": "write-mine", "txnVersion": "1"}, "not beginning with 'write-'"),
    ):
        with pytest.raises(UsageError, match=said):
            parse_sink_options(given)
    with pytest.raises(UsageError, match="a stream's checkpoint has its own"):
        parse_sink_options({"txnVersion": "1"}, stream=True)


def test_a_key_is_read_where_it_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    access = parse_source_options({"clientId": "spark-1", "keyFile": str(file)}, stream=True).access
    assert access.credentials({}) == ("spark-1", "s3cret")
    assert b"s3cret" not in pickle.dumps(access)
    assert HubOptions().credentials({}) is None
    environ = {CLIENT_VARIABLE: "spark-2", KEY_VARIABLE: "other"}
    assert HubOptions().credentials(environ) == ("spark-2", "other")
    assert access.credentials(environ) == ("spark-1", "s3cret")


def test_a_key_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no key in HEADRACE_KEY"):
        HubOptions(client_id="me").credentials({})
    with pytest.raises(UsageError, match="set clientId"):
        HubOptions(key_file=str(tmp_path / "none")).credentials({})
    with pytest.raises(UsageError, match="cannot be read"):
        HubOptions(client_id="me", key_file=str(tmp_path / "none")).credentials({})


def test_access_is_handed_on_as_options() -> None:
    given = {
        "servers": "tube+tls://a:1,tube+tls://b:2", "clientId": "spark-1", "keyFile": "/k", "patience": "5",
        "tls.ca": "/ca", "tls.cert": "/cert", "tls.key": "/key",
    }  # fmt: skip
    access = parse_source_options(given, stream=True).access
    assert access.options == given
    assert parse_source_options(access.options, stream=False).access == access


def test_executors_get_the_names_of_the_files_that_the_drivers_environment_names() -> None:
    environ = {"HEADRACE_CA": "/ca", "HEADRACE_CERT": "/cert", "HEADRACE_PIN": "/pin"}
    access = HubOptions.to("tube+tls://a:1").with_tls_files(environ)
    # An authority is preferred to a pin, as everywhere.
    assert dict(access.tls_files) == {"ca": "/ca", "cert": "/cert"}
    assert HubOptions.to("a:1").with_tls_files({"HEADRACE_PIN": "/pin"}).tls_files == (("pin", "/pin"),)
    # Files alone do not turn TLS on: they may be for dispatchers.
    plain = HubOptions.to("a:1").with_tls_files(environ)
    assert parse_source_options(plain.options, stream=True).access.servers == "a:1"
