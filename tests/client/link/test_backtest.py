"""What a subscription would have delivered, against what one does deliver at a real hub."""

from __future__ import annotations

from random import Random

from headrace import above, between, circle, inside, polygon, where
from headrace.testing import Hub


def test_a_backtest_finds_what_a_client_got() -> None:
    random = Random(3)
    wanted = {
        "either": where(x=between(0, 20), kind="bus") | where(y=above(80)),
        "disc": where(inside("x", "y", circle(50, 50, 20))),
        "corner": where(inside("x", "y", polygon((0, 0), (60, 0), (0, 60))), kind=["bus", "tram"]),
    }
    rows = [
        {
            "payload": b"%d" % number,
            "attributes": {
                "x": random.uniform(0, 100),
                "y": random.uniform(0, 100),
                "kind": random.choice(["bus", "tram", "taxi"]),
            },
        }
        for number in range(600)
    ]
    with Hub() as hub, hub.connect_sync("sdk://") as sdk, hub.connect_sync("tube://") as link:
        for name, conditions in wanted.items():
            sdk.subscribe(name, conditions)
        sdk.subscribe("end", where(end=1))
        link.publish(rows)
        link.publish(b"end", attributes={"end": 1})
        got: dict[str, list[int]] = {name: [] for name in wanted}
        for message in sdk:
            if message.subs == ("end",):
                break
            for name in message.subs:
                got[name].append(message.seq)
        for name, conditions in wanted.items():
            found = [seq for batch in link.match(conditions) for seq in batch.column("seq").to_pylist()]
            assert found == got[name]
            assert 10 < len(found) < 400
            later = [
                seq for batch in link.match(conditions, 300, 400) for seq in batch.column("seq").to_pylist()
            ]
            assert later == [seq for seq in got[name] if 300 <= seq <= 400]
