from __future__ import annotations

import contextlib
import dataclasses
import json
import pickle
import platform
import re
from fractions import Fraction
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import DOORS, Address, PeerAddress, Secret, Settings, load, reference
from headrace.config.declaring import host_name
from headrace.config.sources import variable_of
from headrace.config.value_types import show_size
from headrace.config.value_types import size as size_kind
from headrace.errors import ConfigError, UsageError

SECTIONS = (
    "the sections are listen, log, services, fyrehose, auth, access, matching, dispatcher, pipeline, node,"
    " upstream, cluster, tls, limits"
)
DOCS = Path(__file__).parent.parent / "docs" / "configuration.md"
CLIENT = "0123456789abcdef01234567"
OTHER = "ffffffffffffffffffffffff"


@pytest.fixture
def toml(tmp_path: Path):
    """Write a configuration file and give its path."""

    def write(text: str) -> Path:
        path = tmp_path / "headrace.toml"
        path.write_text(text)
        return path

    return write


def refusal(*sets: str, path: Path | None = None, **environ: str) -> str:
    """The sentence with which settings are refused."""
    with pytest.raises(ConfigError) as caught:
        load(path, environ=environ, sets=sets)
    return str(caught.value)


class TestDefaults:
    def test_nothing_given(self) -> None:
        settings = load(environ={})
        assert settings == Settings()
        assert {settings.source(key) for key in settings.as_dict()} == {"default"}

    def test_doors(self) -> None:
        ports = {
            "fyrehose": 2323,
            "spp": 3002,
            "parcel": 7878,
            "sdk": 7253,
            "router": 7353,
            "dispatcher": 6000,
            "publisher": 8000,
            "status": 5500,
            "tube_ws": 8080,
            "tube_tcp": 8081,
            "http": 8470,
        }
        listen = Settings().listen
        assert {door: getattr(listen, door) for door in DOORS} == {
            door: Address("127.0.0.1", port) for door, port in ports.items()
        }

    def test_promised_values(self) -> None:
        settings = Settings()
        assert (settings.log.fsync, settings.log.fsync_interval) == ("interval", 0.05)
        assert settings.log.segment_seconds == 60
        assert (settings.services.auto, settings.services.max) == (False, 100_000)
        assert (settings.fyrehose.subscriber_seconds, settings.fyrehose.request_limit) == (5, 1024)
        assert settings.limits.slow_seconds == 30
        assert (settings.auth.required, settings.auth.preauth, settings.auth.sha1) == (False, False, False)
        assert settings.matching.engine == "hub"
        assert settings.limits.connections_per_address >= 1024
        assert settings.limits.message_bytes == 8 << 20
        assert settings.limits.drain_seconds == 10

    @pytest.mark.parametrize(
        ("host", "name"),
        [
            ("mill-1", "mill-1"),
            ("", "headrace"),
            ("a\nb", "headrace"),
            ("ü" * 33, "ü" * 32),
            ("x" * 70, "x" * 64),
        ],
    )
    def test_a_node_is_named_after_its_host(
        self, monkeypatch: pytest.MonkeyPatch, host: str, name: str
    ) -> None:
        monkeypatch.setattr(platform, "node", lambda: host)
        assert host_name() == name
        assert load(environ={}).node.name == name

    def test_are_frozen(self) -> None:
        settings = Settings()
        with pytest.raises(dataclasses.FrozenInstanceError):
            settings.log.fsync = "never"  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError):
            settings.log = settings.log  # type: ignore[misc]
        with pytest.raises(TypeError):
            settings.auth.clients[CLIENT] = Secret("k")  # type: ignore[index]


class TestPlaces:
    def test_the_file(self, toml) -> None:
        path = toml(
            f"""
            [listen]
            spp = "off"
            http = "[::1]:0"
            [log]
            fsync = "always"
            segment_bytes = "64MiB"
            retain_seconds = 3600
            [fyrehose]
            allow = ["192.0.2.7", "10.0.0.0/8"]
            [auth.clients]
            {CLIENT} = "k1"
            [cluster]
            peers = ["mill-1", "mill-2:7879"]
            """
        )
        settings = load(path, environ={})
        assert settings.listen.spp is None
        assert settings.listen.http == Address("::1", 0)
        assert (settings.log.fsync, settings.log.segment_bytes) == ("always", 64 << 20)
        assert settings.log.retain_seconds == 3600.0
        assert settings.fyrehose.allow == (IPv4Network("192.0.2.7/32"), IPv4Network("10.0.0.0/8"))
        assert settings.auth.clients == {CLIENT: Secret("k1")}
        assert settings.cluster.peers == (Address("mill-1", 7878), Address("mill-2", 7879))
        assert settings.source("log.fsync") == str(path)
        assert settings.source(f"auth.clients.{CLIENT}") == str(path)
        assert settings.source("log.retain_bytes") == "default"

    def test_the_environment_names_the_file(self, toml) -> None:
        path = toml('log.fsync = "never"')
        assert load(environ={"HEADRACE_CONFIG": str(path)}).log.fsync == "never"
        assert load(environ={"HEADRACE_CONFIG": ""}).log.fsync == "interval"

    def test_a_path_given_wins_over_the_environment(self, toml) -> None:
        path = toml('log.fsync = "never"')
        assert load(path, environ={"HEADRACE_CONFIG": "/nowhere"}).log.fsync == "never"

    def test_the_environment(self) -> None:
        settings = load(
            environ={
                "HEADRACE_LOG__FSYNC": "always",
                "HEADRACE_LISTEN__TUBE_TCP": "0.0.0.0:1",
                "HEADRACE_FYREHOSE__ALLOW": "192.0.2.7, 10.0.0.0/8",
                f"HEADRACE_AUTH__CLIENTS__{CLIENT.upper()}": "k1",
                "PATH": "/bin",
            }
        )
        assert settings.log.fsync == "always"
        assert settings.listen.tube_tcp == Address("0.0.0.0", 1)
        assert settings.fyrehose.allow == (IPv4Network("192.0.2.7/32"), IPv4Network("10.0.0.0/8"))
        assert settings.auth.clients == {CLIENT: Secret("k1")}
        assert settings.source("log.fsync") == "HEADRACE_LOG__FSYNC"

    @pytest.mark.parametrize(
        "variable",
        [
            "HEADRACE_SOAK",
            "HEADRACE_SERVICE_HOST",
            "HEADRACE_SERVICE_PORT",
            "HEADRACE_SERVICE_PORT_TUBE_TCP",
            "HEADRACE_PORT",
            "HEADRACE_PORT_2323_UDP",
            "HEADRACE_PORT_8081_TCP_ADDR",
            "HEADRACE_HUB_PORT_8081_TCP_ADDR",
        ],
    )
    def test_variables_that_are_not_ours(self, variable: str) -> None:
        assert load(environ={variable: "tcp://10.0.0.1:8081"}) == Settings()

    def test_a_later_set_wins(self) -> None:
        settings = load(environ={}, sets=["log.fsync=always", "log.fsync = never"])
        assert settings.log.fsync == "never"
        assert settings.source("log.fsync") == "--set"

    def test_options_override(self) -> None:
        settings = load(environ={}, sets=["node.name=a"])
        changed = settings.override(
            {"node.name": "b", "node.data": Path("d"), "cluster.peers": "x:1,y", "listen.spp": None},
            source="--peers",
        )
        assert (changed.node.name, changed.node.data) == ("b", Path("d"))
        assert changed.cluster.peers == (Address("x", 1), Address("y", 7878))
        assert changed.listen.spp is None
        assert changed.source("cluster.peers") == "--peers"
        assert settings.node.name == "a"
        with pytest.raises(ConfigError, match=re.escape("cluster.peers[1] = 'y:0' (from --peers)")):
            settings.override({"cluster.peers": ["x", "y:0"]}, source="--peers")

    def test_clients_add_up(self, toml) -> None:
        settings = load(
            toml(f'[auth.clients]\n{CLIENT} = "file"\n{OTHER} = "file"'),
            environ={f"HEADRACE_AUTH__CLIENTS__{OTHER}": "variable"},
            sets=[f"auth.clients={{{'a' * 24} = 'set'}}"],
        )
        keys = {name: key.reveal() for name, key in settings.auth.clients.items()}
        assert keys == {CLIENT: "file", OTHER: "variable", "a" * 24: "set"}
        assert settings.source(f"auth.clients.{OTHER}") == f"HEADRACE_AUTH__CLIENTS__{OTHER}"

    def test_what_jobs_are_told_adds_up(self, toml) -> None:
        """As TOML has it: a name with a dot in it, or a table in the table."""
        settings = load(
            toml(
                """
                [pipeline.params]
                starting = "latest"
                archive.interval = 10
                "archive.size" = 5
                [pipeline.params.verify]
                fail_on_data_loss = true
                """
            ),
            environ={"HEADRACE_PIPELINE__PARAMS__ARCHIVE__FAIL_ON_DATA_LOSS": "false"},
            sets=["pipeline.params.archive.interval=0.5", "pipeline.params.path=/srv/a b"],
        )
        assert settings.pipeline.params == {
            "starting": "latest",
            "archive.interval": "0.5",
            "archive.size": "5",
            "verify.fail_on_data_loss": "true",
            "archive.fail_on_data_loss": "false",
            "path": "/srv/a b",
        }
        assert settings.source("pipeline.params.archive.size").endswith(".toml")

    @pytest.mark.parametrize("key", ["a.b.c", "", "Archive.path", "a b"])
    def test_what_no_job_can_be_told(self, key: str) -> None:
        with pytest.raises(
            ConfigError, match=re.escape("expected a parameter's name, or job.name, and its value")
        ):
            load(environ={}, sets=[f"pipeline.params.{key}=1"])

    @pytest.mark.parametrize("value", ["[1]", "'a\\tb'", "'" + "a" * 5000 + "'"])
    def test_what_jobs_cannot_be_told(self, toml, value: str) -> None:
        with pytest.raises(ConfigError, match=r"pipeline\.params\.path"):
            load(toml(f"pipeline.params.path = {value.replace(chr(39), chr(34))}"), environ={})

    def test_lists_are_replaced(self, toml) -> None:
        path = toml('cluster.peers = ["a", "b"]')
        assert load(path, environ={}, sets=["cluster.peers=c"]).cluster.peers == (Address("c", 7878),)
        assert load(path, environ={}, sets=["cluster.peers="]).cluster.peers == ()
        assert load(path, environ={}, sets=["cluster.peers=[]"]).cluster.peers == ()

    @given(
        st.fixed_dictionaries(
            {},
            optional={place: st.integers(1, 10**9) for place in ("file", "variable", "set", "later set")},
        )
    )
    def test_the_strongest_place_wins(self, tmp_path_factory: pytest.TempPathFactory, given_: dict) -> None:
        path = None
        if "file" in given_:
            path = tmp_path_factory.mktemp("c") / "headrace.toml"
            path.write_text(f"[services]\nmax = {given_['file']}\n")
        environ = {}
        if "variable" in given_:
            environ["HEADRACE_SERVICES__MAX"] = str(given_["variable"])
        sets = [f"services.max={given_[place]}" for place in ("set", "later set") if place in given_]
        settings = load(path, environ=environ, sets=sets)
        strongest = [place for place in ("file", "variable", "set", "later set") if place in given_][-1:]
        assert settings.services.max == (given_[strongest[0]] if strongest else 100_000)
        sources = {
            "file": str(path),
            "variable": "HEADRACE_SERVICES__MAX",
            "set": "--set",
            "later set": "--set",
        }
        assert settings.source("services.max") == (sources[strongest[0]] if strongest else "default")

    @given(st.permutations(["log.fsync=always", "node.name=n", "listen.spp=off", "services.max=7"]))
    def test_different_settings_do_not_meet(self, sets: list[str]) -> None:
        assert load(environ={}, sets=sets) == load(environ={}, sets=sorted(sets))


class TestValues:
    @pytest.mark.parametrize(
        ("text", "value"),
        [("true", True), ("false", False)],
    )
    def test_flags(self, text: str, value: bool) -> None:
        assert load(environ={}, sets=[f"services.auto={text}"]).services.auto is value

    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("1", 1),
            ("1_000", 1000),
            ("0x10", 16),
            ('"12"', 12),
            ("12 B", 12),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("1 GB", 10**9),
            ("2kB", 2000),
            ("2KiB", 2048),
            ("1.5 GiB", 3 << 29),
            ("0.5KB", 500),
            ("1TiB", 1 << 40),
        ],
    )
    def test_sizes(self, text: str, size: int) -> None:
        assert load(environ={}, sets=[f"log.segment_bytes={text}"]).log.segment_bytes == size

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "0",
            "-1",
            "1.5",
            "1.5B",
            "0.3KiB",
            "64M",
            "64Mi",
            "MiB",
            "1e9",
            "true",
            "[1]",
            "9" * 5000,
            "1 PB",
        ],
    )
    def test_no_sizes(self, text: str) -> None:
        assert "expected bytes, such as 67108864 or 64MiB, at least 1" in refusal(f"log.segment_bytes={text}")

    @given(st.integers(1, 2**62))
    def test_a_size_shown_is_read_back(self, size: int) -> None:
        assert size_kind(1).read(show_size(size)) == size

    @given(
        st.decimals("0.001", 1_000_000, places=3),
        st.sampled_from(["B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"]),
        st.sampled_from(["", " ", "  "]),
        st.sampled_from([str, str.lower, str.upper]),
    )
    def test_any_size(self, number, unit: str, gap: str, case) -> None:
        base = 1024 if "i" in unit else 1000
        exact = Fraction(number) * base ** " kmgt".index(unit[0].lower() if unit != "B" else " ")
        text = f"log.segment_bytes={number}{gap}{case(unit)}"
        if exact.denominator == 1 and exact >= 1:
            assert load(environ={}, sets=[text]).log.segment_bytes == exact
        else:
            assert "expected bytes" in refusal(text)

    @pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("0.25", 0.25), ("1e3", 1000.0)])
    def test_durations(self, text: str, seconds: float) -> None:
        value = load(environ={}, sets=[f"log.segment_seconds={text}"]).log.segment_seconds
        assert (value, type(value)) == (seconds, float)

    @pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "-inf", "true", "5s", "", "off", "1" * 400])
    def test_no_durations(self, text: str) -> None:
        assert "expected a number of seconds, at least 0.001" in refusal(f"log.segment_seconds={text}")

    @pytest.mark.parametrize(
        "key", ["log.retain_bytes", "log.retain_seconds", *(f"listen.{d}" for d in DOORS)]
    )
    @pytest.mark.parametrize("text", ["off", '"off"'])
    def test_off(self, key: str, text: str) -> None:
        section, name = key.split(".")
        settings = load(environ={}, sets=[f"{key}={text}"])
        assert getattr(getattr(settings, section), name) is None

    @pytest.mark.parametrize(
        "text", ["0042", "true", "1.0", "[1]", "1979-05-27", "a = b", "#1", "{", "ключ", '"q"x']
    )
    def test_text_stays_as_typed(self, text: str) -> None:
        settings = load(
            environ={}, sets=[f"cluster.key={text}", f"auth.clients.{CLIENT}={text}", f"node.name={text}"]
        )
        assert settings.cluster.key.reveal() == text
        assert settings.auth.clients[CLIENT].reveal() == text
        assert settings.node.name == text

    @pytest.mark.parametrize("text", ['" a b "', "' a b '"])
    def test_quotation_marks_are_toml(self, text: str) -> None:
        assert load(environ={}, sets=[f"cluster.key={text}"]).cluster.key.reveal() == " a b "

    def test_a_value_of_several_lines_is_no_toml(self) -> None:
        assert load(environ={}, sets=['cluster.key="a"\nb = 1']).cluster.key.reveal() == '"a"\nb = 1'

    @pytest.mark.parametrize("depth", [10, 100_000])
    def test_deep_toml_is_refused_like_any(self, depth: int) -> None:
        assert "expected a whole number" in refusal("services.max=" + "[" * depth + "]" * depth)

    @pytest.mark.parametrize("text", ["", "x" * 65, "ü" * 33, r'"a\nb"', r'"\u0000"', "\udcff"])
    def test_no_names(self, text: str) -> None:
        assert "expected printable text of 1 to 64 bytes" in refusal(f"node.name={text}")

    @pytest.mark.parametrize("text", ["", r'"a\u0000"'])
    def test_no_paths(self, text: str) -> None:
        assert "expected a path" in refusal(f"node.data={text}")

    @pytest.mark.parametrize("text", ["-1", "1.0", '"1"', "true", str(2**63)])
    def test_no_counts(self, text: str) -> None:
        assert "expected a whole number, at least 0" in refusal(f"services.max={text}")

    def test_what_is_listed_twice_counts_once(self) -> None:
        peers = load(environ={}, sets=["cluster.peers=a,A:7878,b,a"]).cluster.peers
        assert peers == (Address("a", 7878), Address("b", 7878))


class TestPeerAddress:
    def test_with_and_without_the_id_of_the_peer(self) -> None:
        settings = load(environ={}, sets=["dispatcher.connectors=conn-001@mill:7354,[::1],disp@1_x@mill"])
        connectors = settings.dispatcher.connectors
        assert connectors == (
            PeerAddress("mill", 7354, "conn-001"),
            PeerAddress("::1", 7353),
            PeerAddress("mill", 7353, "disp@1_x"),
        )
        again = load(environ={}, sets=["dispatcher.connectors=" + ",".join(map(str, connectors))])
        assert again.dispatcher.connectors == connectors

    @pytest.mark.parametrize(
        "text", ["conn-01@mill", "conn-0001@mill", "cönn-001@mill", "@mill", "conn-001@", "a\tb-0001@mill"]
    )
    def test_an_id_has_8_printable_ascii_characters(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"dispatcher\.connectors"):
            load(environ={}, sets=[f"dispatcher.connectors={text}"])


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("127.0.0.1:0", Address("127.0.0.1", 0)),
            ("0.0.0.0:65535", Address("0.0.0.0", 65535)),
            ("localhost:80", Address("localhost", 80)),
            ("Hub-1.Example.org:80", Address("hub-1.example.org", 80)),
            ("hub_1:80", Address("hub_1", 80)),
            ("[::1]:80", Address("::1", 80)),
            ("[2001:DB8:0::1]:80", Address("2001:db8::1", 80)),
            ("[fe80::1%eth0]:80", Address("fe80::1%eth0", 80)),
        ],
    )
    def test_good(self, text: str, address: Address) -> None:
        assert Address.parse(text) == address
        assert Address.parse(str(address)) == address

    @pytest.mark.parametrize(
        "text",
        [
            "",
            ":80",
            "80",
            "localhost",
            "localhost:",
            "localhost:http",
            "localhost:-1",
            "localhost:65536",
            "localhost:123456",
            "localhost:٨٠",
            "127.0.0.256:80",
            "127.0.0:80",
            "::1:80",
            "[::1]",
            "[::1:80",
            "[::g]:80",
            "[127.0.0.1]:80",
            "a..b:80",
            "-a:80",
            "a-:80",
            "a b:80",
            "http://a:80",
            "ü:80",
            "a:80\n",
            f"{'a' * 64}:80",
            f"{'.'.join(['a' * 60] * 5)}:80",
        ],
    )
    def test_bad(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            Address.parse(text)
        assert str(caught.value) == f"{text!r} is not an address: expected host:port, IPv6 in brackets"

    def test_a_port_may_have_a_default(self) -> None:
        assert Address.parse("mill", 7878) == Address("mill", 7878)
        assert Address.parse("[::1]", 7878) == Address("::1", 7878)
        with pytest.raises(UsageError, match="expected host or host:port, IPv6 in brackets"):
            Address.parse("::1", 7878)

    @given(st.ip_addresses(), st.integers(0, 65535))
    def test_any_is_read_back(self, host, port: int) -> None:
        address = Address(str(host), port)
        assert Address.parse(str(address)) == address

    @given(st.text())
    def test_nothing_else_escapes(self, text: str) -> None:
        try:
            address = Address.parse(text, 1)
        except UsageError:
            return
        assert Address.parse(str(address)) == address


class TestRefusals:
    def test_a_wrong_value(self, toml) -> None:
        right = "expected always, interval or never"
        path = toml('[log]\nfsync = "sometimes"')
        assert refusal(path=path) == f"log.fsync = 'sometimes' (from {path}): {right}"
        assert refusal(HEADRACE_LOG__FSYNC="sometimes") == (
            f"log.fsync = 'sometimes' (from HEADRACE_LOG__FSYNC): {right}"
        )
        assert refusal("log.fsync=sometimes") == f"log.fsync = 'sometimes' (from --set): {right}"
        assert refusal("log.fsync=true") == f"log.fsync = True (from --set): {right}"

    def test_an_overruled_value_must_be_right_too(self) -> None:
        assert refusal("log.fsync=sometimes", "log.fsync=always").startswith("log.fsync = 'sometimes'")

    def test_a_door_without_a_port(self) -> None:
        expected = "expected host:port (IPv6 in brackets, port 0 for a free one), or off"
        assert refusal("listen.spp=3002") == f"listen.spp = '3002' (from --set): {expected}"
        assert refusal("listen.spp=::1:3002") == f"listen.spp = '::1:3002' (from --set): {expected}"

    def test_a_wrong_member_of_a_list(self) -> None:
        assert refusal("fyrehose.allow=192.0.2.7,10.0.0.1/8") == (
            "fyrehose.allow[1] = '10.0.0.1/8' (from --set): expected a list; each an IPv4 address, or a network"
            " without host bits such as 10.0.0.0/8"
        )
        assert refusal("fyrehose.allow=[7]").startswith("fyrehose.allow[0] = 7 (from --set)")
        assert refusal("fyrehose.allow=::1").startswith("fyrehose.allow[0] = '::1' (from --set)")

    @pytest.mark.parametrize(
        ("key", "hint"),
        [
            ("log.fsnyc", "did you mean log.fsync?"),
            ("fsync", "did you mean log.fsync?"),
            ("log.connections", "did you mean limits.connections?"),
            ("logs.fsync_intervall", "did you mean log.fsync_interval?"),
            ("auth.client." + CLIENT, "did you mean auth.clients?"),
            ("auth.password", "auth has required, insecure, clients, first_key, preauth, origins, sha1"),
            ("fyrehose", "fyrehose has allow, coalesce, subscriber_seconds, request_limit"),
            ("dispatcher.x.y.z", "dispatcher has connectors, peers, queue_bytes"),
            ("", SECTIONS),
            ("zzz.qqq", SECTIONS),
        ],
    )
    def test_a_wrong_key(self, key: str, hint: str) -> None:
        assert refusal(f"{key}=1") == f"{key} (from --set): expected a setting that exists; {hint}"

    def test_a_wrong_variable(self) -> None:
        expected = "(from the environment): expected a setting that exists; did you mean HEADRACE_LOG__FSYNC?"
        assert refusal(HEADRACE_LOG_FSYNC="always") == f"HEADRACE_LOG_FSYNC {expected}"
        assert refusal(HEADRACE_LOG__FSNYC="always") == f"HEADRACE_LOG__FSNYC {expected}"
        assert refusal(HEADRACE_LISTEN__SPP_PORT="1").startswith(
            "HEADRACE_LISTEN__SPP_PORT (from the environment)"
        )

    def test_a_wrong_key_in_the_file(self, toml) -> None:
        path = toml("[log]\nfsnyc = 1")
        assert (
            refusal(path=path)
            == f"log.fsnyc (from {path}): expected a setting that exists; did you mean log.fsync?"
        )
        path = toml("services = 3")
        assert (
            refusal(path=path)
            == f"services (from {path}): expected a setting that exists; services has auto, max"
        )
        path = toml("[logs]\nfsync = 1")
        assert refusal(path=path).endswith("did you mean log.fsync?")

    def test_a_set_without_a_value(self) -> None:
        assert refusal("log.fsync") == "log.fsync (from --set): expected section.key=value"

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        path = tmp_path / "none.toml"
        missing = "expected a file that can be read; No such file or directory"
        assert refusal(path=path) == f"{path} (from --config): {missing}"
        assert refusal(HEADRACE_CONFIG=str(path)) == f"{path} (from HEADRACE_CONFIG): {missing}"
        assert refusal(path=tmp_path) == (
            f"{tmp_path} (from --config): expected a file that can be read; Is a directory"
        )

    def test_a_file_that_is_no_toml(self, tmp_path: Path) -> None:
        path = tmp_path / "headrace.toml"
        path.write_text("[log\n")
        assert refusal(path=path).startswith(f"{path} (from --config): expected TOML in UTF-8; Expected ']'")
        path.write_bytes(b"\xff")
        assert refusal(path=path).startswith(f"{path} (from --config): expected TOML in UTF-8; 'utf-8' codec")
        path.write_text("x = " + "[" * 100_000)
        assert refusal(path=path).startswith(f"{path} (from --config): expected TOML in UTF-8; ")

    @given(
        st.dictionaries(st.from_regex(r"HEADRACE_[A-Z_]{0,20}", fullmatch=True), st.text()),
        st.lists(st.text()),
    )
    def test_nothing_else_escapes(self, environ: dict[str, str], sets: list[str]) -> None:
        environ.pop("HEADRACE_CONFIG", None)
        with contextlib.suppress(ConfigError):
            load(environ=environ, sets=sets)

    @given(st.sampled_from(sorted(Settings().as_dict())), st.text())
    def test_no_value_breaks_the_reading(self, key: str, text: str) -> None:
        try:
            settings = load(environ={variable_of(key): text})
        except ConfigError as error:
            wrong = (error.key.partition("[")[0], error.source)
        else:
            wrong = (key, settings.source(key))
        assert wrong == (key, variable_of(key))


class TestSecrets:
    def test_show_themselves_only_when_asked(self) -> None:
        secret = Secret("hunter2")
        assert secret.reveal() == "hunter2"
        assert (repr(secret), str(secret), f"{secret}") == ("…", "…", "…")
        assert secret == Secret("hunter2") != Secret("other")
        assert secret
        assert not Secret("")
        assert pickle.loads(pickle.dumps(secret)) == secret

    def test_are_masked_everywhere(self) -> None:
        settings = load(environ={}, sets=["cluster.key=hunter2", f"auth.clients.{CLIENT}=hunter2"])
        masked = settings.as_dict()
        assert not [text for text in (repr(settings), str(masked)) if "hunter2" in text]
        assert (masked["cluster.key"], masked["auth.clients"]) == ("…", {CLIENT: "…"})
        revealed = settings.as_dict(reveal=True)
        assert (revealed["cluster.key"], revealed["auth.clients"]) == ("hunter2", {CLIENT: "hunter2"})

    def test_an_absent_one_can_be_told(self) -> None:
        settings = Settings()
        assert settings.as_dict()["cluster.key"] == ""

    @pytest.mark.parametrize(
        ("given_", "shown"),
        [
            ("auth.clients.xyz=hunter2", "auth.clients.xyz = …"),
            ("auth.clients.=hunter2", "auth.clients. = …"),
            ("auth.clients=hunter2", "auth.clients = …"),
            ("auth.clients={xyz = 'hunter2'}", "auth.clients.xyz = …"),
            (f"auth.clients.{CLIENT}=", f"auth.clients.{CLIENT} = …"),
            (f"auth.clients={{{CLIENT} = ['hunter2']}}", f"auth.clients.{CLIENT} = …"),
        ],
    )
    def test_are_masked_in_errors(self, given_: str, shown: str) -> None:
        assert (
            refusal(given_)
            == f"{shown} (from --set): expected a client id of 24 hex digits and a key that is not empty"
        )

    def test_are_masked_where_misspelt(self, toml) -> None:
        assert "hunter2" not in refusal("cluster.kee=hunter2")
        assert "hunter2" not in refusal(f"auth.clinets.{CLIENT}=hunter2")
        assert "hunter2" not in refusal(path=toml('cluster = "hunter2"'))
        assert "hunter2" not in refusal(path=toml('[cluster]\nkey = ["hunter2"]'))


class TestPrincipals:
    FILE = """
    [access.gateway-7]
    client_id = "0123456789ABCDEF01234567"
    allow = ["publish fleet/7/**", "admin"]
    addresses = ["10.0.7.0/24", "::1"]

    [access.anonymous]
    """

    def test_each_has_a_name_and_settings_of_its_own(self, toml) -> None:
        sets = ["access.gateway-7.deny=read fleet/secret/**,read fleet/*/key", "access.other.key=hunter2"]
        settings = load(toml(self.FILE), environ={"HEADRACE_ACCESS__THIRD__ALLOW": "all"}, sets=sets)
        gateway = settings.access["gateway-7"]
        assert gateway.client_id == CLIENT
        assert gateway.allow == ("publish fleet/7/**", "admin **")
        assert gateway.deny == ("read fleet/secret/**", "read fleet/*/key")
        assert [str(each) for each in gateway.addresses] == ["10.0.7.0/24", "::1/128"]
        assert settings.access["third"].allow == ("all **",)
        assert settings.access["other"].key.reveal() == "hunter2"
        assert settings.source("access.gateway-7.deny") == "--set"

    def test_one_without_settings_is_there_all_the_same(self, toml) -> None:
        assert load(toml(self.FILE), environ={}).access["anonymous"].allow == ()

    def test_are_plain_values_and_read_back(self, toml) -> None:
        settings = load(toml(self.FILE), environ={}, sets=["access.gateway-7.key=hunter2"])
        plain = json.loads(json.dumps(settings.as_dict(reveal=True)))
        assert Settings().override(plain, source="a copy") == settings
        assert "hunter2" not in repr(settings) + str(settings.as_dict())

    @pytest.mark.parametrize(
        "rule", ["publish", "fly **", "", "read", "read a\tb\x00", "read " + "a" * 257, "read " + "*/" * 17]
    )
    def test_a_rule_is_an_action_and_a_pattern(self, rule: str) -> None:
        with pytest.raises(ConfigError, match=r"such as `publish fleet/\*\*`"):
            Settings().override({"access.gw.allow": [rule]}, source="here")

    @pytest.mark.parametrize("name", ["", "a b", "ü", CLIENT, "x" * 65])
    def test_a_name_is_a_word_that_is_no_client_id(self, name: str) -> None:
        with pytest.raises(ConfigError, match=r"as in access\.NAME\.client_id"):
            Settings().override({f"access.{name}.allow": "all"}, source="here")

    def test_a_misspelt_setting_is_told(self) -> None:
        assert refusal("access.gw.alow=all").endswith("did you mean access.gw.allow?")
        assert "hunter2" not in refusal("access.gw.kee=hunter2")
        assert "hunter2" not in refusal("access.gw=hunter2")


class TestDescription:
    def test_the_source_of_a_value(self) -> None:
        settings = load(environ={"HEADRACE_LOG__SEGMENT_BYTES": "64MiB"}, sets=["cluster.peers=a,b:1"])
        keys = ("log.segment_bytes", "cluster.peers", "fyrehose.allow")
        assert [settings.source(key) for key in keys] == ["HEADRACE_LOG__SEGMENT_BYTES", "--set", "default"]

    def test_a_source_of_nothing(self) -> None:
        with pytest.raises(ConfigError, match=re.escape("did you mean log.fsync?")):
            Settings().source("log.fsnyc")

    def test_plain_values_are_json_and_read_back(self) -> None:
        settings = load(
            environ={},
            sets=[
                "cluster.key=k",
                f"auth.clients.{CLIENT}=k",
                "listen.spp=off",
                "fyrehose.allow=10.0.0.0/8",
                "node.data=d",
            ],
        )
        plain = json.loads(json.dumps(settings.as_dict(reveal=True)))
        assert Settings().override(plain, source="a copy") == settings

    def test_every_setting_has_a_sentence(self) -> None:
        rows = [line.strip("| ").split(" | ") for line in reference().splitlines() if line.startswith("| `")]
        assert len(rows) == len(Settings().override({"access.one.allow": "all"}, source="here").as_dict())
        for row in rows:
            *_, doc = row
            assert doc[0].isupper() or doc[0] == "`", row
            assert doc.endswith("."), row
            assert len(row) == 4, row

    def test_defaults_are_values_of_their_own_kind(self) -> None:
        settings = load(environ={})
        assert settings.override(settings.as_dict(reveal=True), source="a copy") == settings


class TestDocumentation:
    def test_lists_every_setting_as_it_is(self) -> None:
        text = DOCS.read_text()
        listed = re.search(r"<!-- settings -->\n(.*)<!-- /settings -->", text, re.DOTALL)
        assert listed is not None
        assert listed[1].strip() == reference().strip(), (
            "put the output of `python -c 'from headrace.config import reference; print(reference())'`"
            " between the markers"
        )

    def test_does_not_depend_on_the_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = reference()
        monkeypatch.setattr(platform, "node", lambda: "elsewhere")
        assert reference() == before

    def test_its_file_is_right(self, toml) -> None:
        (block,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
        settings = load(toml(block), environ={})
        assert settings.listen.http == Address("::1", 8470)
        assert len(settings.cluster.peers) == 3

    def test_its_variables_and_sets_are_right(self) -> None:
        variables, commands = re.findall(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
        environ = dict(line.replace("'", "").split("=", 1) for line in variables.splitlines())
        settings = load(environ=environ)
        assert settings.log.fsync == "always"
        assert settings.auth.clients[CLIENT].reveal() == "the key of this client"
        sets = [found.strip("'") for found in re.findall(r"--set ('[^']*'|\S+)", commands)]
        assert load(environ={}, sets=sets).listen.spp is None

    def test_its_refusals_are_right(self) -> None:
        (block,) = re.findall(r"```text\n(.*?)```", DOCS.read_text(), re.DOTALL)
        assert block.splitlines() == [refusal(HEADRACE_LOG__FSYNC="sometimes"), refusal("log.fsnyc=1")]


class TestUpstream:
    @pytest.mark.parametrize(
        ("given", "read"),
        [
            ("tube://a", ("tube://a:8081",)),
            ("tube://a:1,b:2", ("tube://a:1", "tube://b:2")),
            ("tube://a:1, tube://[::1]:2/", ("tube://a:1", "tube://[::1]:2")),
            ('["FYREHOSE://a"]', ("fyrehose://a:2323",)),
            ("fyrehose+udp://a,a:2323", ("fyrehose+udp://a:2323",)),
            ("", ()),
        ],
    )
    def test_hubs_are_urls_of_one_scheme(self, given: str, read: tuple[str, ...]) -> None:
        settings = load(environ={}, sets=[f"node.upstream={given}"])
        assert settings.node.upstream == read
        again = settings.override({"node.upstream": list(read)}, source="here")
        assert again.node.upstream == read

    @pytest.mark.parametrize(
        "given",
        ["a:8081", "spp://a", "tube://a,fyrehose://b", "tube://", "tube://a:0", "tube://a:70000", "5"],
    )
    def test_other_things_are_none(self, given: str) -> None:
        with pytest.raises(ConfigError, match="tube://host:port"):
            load(environ={}, sets=[f"node.upstream={given}"])
