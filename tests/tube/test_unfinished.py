"""Memory for unfinished messages: who is cut off, and when."""

from __future__ import annotations

from headrace.tube.unfinished import SILENCE, STRETCH, UnfinishedBytes


class Peer:
    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.cut_off = False

    def give_up(self, held: int, bound: int) -> None:
        assert held > bound
        self.cut_off = True


class Scene:
    now = 0.0

    def __init__(self) -> None:
        self.bytes = UnfinishedBytes(100, lambda: self.now)


def test_what_is_whole_is_given_back() -> None:
    scene, peer = Scene(), Peer("a")
    for size in (60, 90, 0):
        scene.bytes.hold(peer, size)
        assert scene.bytes.total == size
    assert len(scene.bytes) == 0


def test_the_silent_are_cut_off_first_and_of_those_the_greedy() -> None:
    scene = Scene()
    greedy, greedy_too, modest = Peer("a"), Peer("a"), Peer("b")
    scene.bytes.hold(modest, 30)
    scene.bytes.hold(greedy, 30)
    scene.bytes.hold(greedy_too, 30)
    scene.now = SILENCE
    newcomer = Peer("c")
    scene.bytes.hold(newcomer, 30)
    assert [peer.cut_off for peer in (greedy, greedy_too, modest, newcomer)] == [True, False, False, False]
    assert scene.bytes.total == 90


def test_who_keeps_sending_is_left_alone_for_long() -> None:
    scene, peers = Scene(), [Peer("a") for _ in range(STRETCH)]
    for peer in peers:
        scene.bytes.hold(peer, 100)
    assert not any(peer.cut_off for peer in peers)
    scene.bytes.hold(Peer("b"), 1)
    # Past that somebody has to go, until all are within the stretch.
    assert [peer.cut_off for peer in peers] == [True] + [False] * (STRETCH - 1)
    assert scene.bytes.total == (STRETCH - 1) * 100 + 1
