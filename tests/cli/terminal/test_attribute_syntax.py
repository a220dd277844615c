"""Conditions as they are written on a command line."""

from __future__ import annotations

import sys
from math import inf, nextafter
from typing import Any

import pytest

from headrace.cli.terminal.attribute_syntax import parse_alternatives, parse_conditions, parse_value
from headrace.client.conditions import missing, where
from headrace.errors import UsageError
from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import Between, Equals, Exists, In, Inside, Not, Prefix
from headrace.wire.sdk.region import Circle, Polygon

LARGEST = sys.float_info.max


@pytest.mark.parametrize(
    ("text", "name", "predicate"),
    [
        ("city=Praha", "city", Equals("Praha")),
        ("city=", "city", Equals("")),
        ("x=5", "x", Between(5, 5)),
        ("x=-1.5e3", "x", Between(-1500, -1500)),
        ('x="5"', "x", Equals("5")),
        ("x=0..10", "x", Between(0, 10)),
        ("x=-1.5..1e2", "x", Between(-1.5, 100)),
        ("x=0..", "x", Between(0, LARGEST)),
        ("x=..10", "x", Between(-LARGEST, 10)),
        ('x=".."', "x", Equals("..")),
        ('path="../up"', "path", Equals("../up")),
        ('x="0..10"', "x", Equals("0..10")),
        ('x=5|"6..7"', "x", In((5.0, "6..7"))),
        ("name^=..", "name", Prefix("..")),
        ("kind=a|b", "kind", In(("a", "b"))),
        ('kind=a|7|"7"|"c|d"|', "kind", In(("a", 7.0, "7", "c|d", ""))),
        ('kind="a|b"', "kind", Equals("a|b")),
        ("kind = a | 5", "kind", In(("a", 5.0))),
        ('note="x=1 | y=2"', "note", Equals("x=1 | y=2")),
        ('note=a|"y=2"', "note", In(("a", "y=2"))),
        ("note=one|two, three & four", "note", In(("one", "two, three & four"))),
        ('name^="a|b=c"', "name", Prefix("a|b=c")),
        ("name^=pre", "name", Prefix("pre")),
        ("name^=5", "name", Prefix("5")),
        ("name^=", "name", Prefix("")),
        ("kind!=a", "kind", Not(In(("a",)))),
        ("kind!=a|5", "kind", Not(In(("a", 5.0)))),
        ("inside(lon, lat, circle(1, -2.5, 3e2))", "lon", Inside("lat", Circle(1, -2.5, 300))),
        (
            "inside(lon,lat,polygon((0, 0), (4, 0), (0, 3)))",
            "lon",
            Inside("lat", Polygon(((0, 0), (4, 0), (0, 3)))),
        ),
        ("fence(taxi, lon, lat, circle(1, 2, 3))", "lon", Fence("lat", Circle(1, 2, 3), "taxi")),
        (
            "fence(taxi, lon, lat, circle(1, 2, 3), exit, inside)",
            "lon",
            Fence("lat", Circle(1, 2, 3), "taxi", ("inside", "exit")),
        ),
        ("city", "city", Exists(True)),
        ("!city", "city", Exists(False)),
        ("unit price=a=b", "unit price", Equals("a=b")),
        ("größe=a\nb", "größe", Equals("a\nb")),
        ("x<5", "x", Between(-LARGEST, nextafter(5, -inf))),
        ("x<=5", "x", Between(-LARGEST, 5)),
        ("x>5", "x", Between(nextafter(5, inf), LARGEST)),
        ("x>=-1.5", "x", Between(-1.5, LARGEST)),
        ("x > 5", "x", Between(nextafter(5, inf), LARGEST)),
        ("city = Praha", "city", Equals("Praha")),
    ],
)
def test_what_is_asked_for(text: str, name: str, predicate: Any) -> None:
    assert parse_conditions([text]) == {name: predicate}


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["inside(lon, circle(1, 2, 3))"], "attributes X, Y"),
        (["inside(lon, lat, circle(1, 2))"], "three numbers"),
        (["inside(lon, lat, polygon(1, 2, 3))"], "pairs"),
        (["inside(lon, lat, circle(1, 2, 3), enter)"], "no events"),
        (["fence(taxi, lon, lat, circle(1, 2, 3), leave)"], "events of a fence"),
        ([""], "--where : expected NAME=VALUE"),
        (["=5"], "--where =5: expected NAME=VALUE"),
        (["!"], "--where !: expected"),
        (["!!a"], "--where !!a: expected"),
        (["!a=5"], "--where !a=5: expected"),
        (["a|b"], "--where a|b: expected"),
        (["x==5"], "--where x==5: expected NAME=VALUE"),
        (["x~5"], "--where x~5: expected"),
        (["x=>5"], "--where x=>5: expected"),
        (["x>five"], "--where x>five: five is not a number"),
        (["x>"], "--where x>: nothing is not a number"),
        (["x in (1, 2)"], "--where x in (1, 2): expected"),
        (
            ["x>5 and y<3"],
            "--where x>5 and y<3: an option has one condition: 'x>5' --where 'y<3' asks for both",
        ),
        (
            ["x=1 | y=2"],
            "--where x=1 | y=2: an option has one condition: 'x=1' --or 'y=2' asks for either of them",
        ),
        (["x=1|y=2"], "'x=1' --or 'y=2' asks for either"),
        (["x=1 || y!=2"], "'x=1' --or 'y!=2' asks for either"),
        (["x>5 | y>3"], "'x>5' --or 'y>3' asks for either"),
        (["kind=a|b|x>=3"], "'kind=a|b' --or 'x>=3' asks for either"),
        (["kind!=a | !x"], "'kind!=a' --or '!x' asks for either"),
        (["name^=a or name^=b"], "'name^=a' --or 'name^=b' asks for either"),
        (["city=Praha OR x=5"], "'city=Praha' --or 'x=5' asks for either"),
        (["x=1 & y = 2"], "'x=1' --where 'y = 2' asks for both"),
        (["x=1 && y=2"], "'x=1' --where 'y=2' asks for both"),
        (["x=1,y=2"], "'x=1' --where 'y=2' asks for both"),
        (["x=1;y=2"], "'x=1' --where 'y=2' asks for both"),
        (["city=Praha x=5"], "'city=Praha' --where 'x=5' asks for both"),
        (["x=1 | inside(lon, lat, circle(1, 2, 3))"], "--or 'inside(lon, lat, circle(1, 2, 3))'"),
        (["inside(lon, lat, circle(1, 2, 3)) and x>5"], "expected NAME=VALUE"),
        (
            ["city=Pra*"],
            "Pra* is no pattern: 'city^=Pra' takes what begins so; as text it is quoted: 'city=\"Pra*\"'",
        ),
        (["city=*"], "* is no pattern: 'city' alone takes any value"),
        (["city='Praha'"], "leave them out, as in city=Praha;"),
        (["x=[0, 10]"], "[0, 10] is no range, which is x=0..10;"),
        (["a^b"], "--where a^b: expected"),
        (["x=1", "x=2"], "--where x=2: x is given twice"),
        (["x=10..0"], "--where x=10..0: between(10.0, 0.0): the first is above"),
        (["x=1e999"], "where x: equals: inf"),
        (["x=1e999.."], "--where x=1e999..: at_least: inf"),
        (["x=a..b"], """--where x=a..b: a..b is no range of numbers; as text it is quoted: 'x="a..b"'"""),
        (["x=nan..5"], "nan..5 is no range of numbers"),
        (["x=0..inf"], "0..inf is no range of numbers"),
        (["x=.."], ".. is no range of numbers"),
        (["path=../up"], "../up is no range of numbers"),
        (
            ["x!=0..5"],
            """0..5 is a range, which stands alone after "="; as text it is quoted: 'x!="0..5"'""",
        ),
        (["x=5|6..7"], """6..7 is a range, which stands alone after "=";"""),
        (['kind="a"b|c'], """--where kind="a"b|c: a value in double quotes"""),
        (["kind=" + "|".join(map(str, range(300)))], "where kind: terms of extra"),
    ],
)
def test_what_cannot_be_asked_for(texts: list[str], complaint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_conditions(texts)
    assert complaint in str(refusal.value)


def test_alternatives() -> None:
    found = parse_alternatives(["x=1", "city=Praha"], ["y=2", "!z"])
    assert found == where(x=1, city="Praha") | where(y=2) | where(z=missing())
    with pytest.raises(UsageError, match="--or is an alternative to --where"):
        parse_alternatives([], ["y=2"])
    with pytest.raises(UsageError, match="--or y==2: expected"):
        parse_alternatives(["x=1"], ["y==2"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5.0),
        ("-0.5", -0.5),
        ("1e3", 1000.0),
        ("٣", "٣"),
        ("0x10", "0x10"),
        ("", ""),
        ('"', '"'),
        ('"5"', "5"),
        ("nan", "nan"),
    ],
)
def test_values(text: str, value: str | float) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)
