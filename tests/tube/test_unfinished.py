"""Memory for unfinished messages: who waits, who is cut off, and when."""

from __future__ import annotations

from collections.abc import Callable

from headrace.tube.unfinished import AT_A_TIME, SILENCE, STRETCH, TURN_BYTES, UnfinishedBytes


class Peer:
    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.cut_off = False
        self.waits = False

    def wait_for_room(self) -> None:
        self.waits = True

    def go_on(self) -> None:
        self.waits = False

    def give_up(self, held: int, bound: int) -> None:
        assert held > 0.75 * bound
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
    scene.bytes.hold(modest, 20)
    scene.bytes.hold(greedy, 20)
    scene.bytes.hold(greedy_too, 20)
    scene.now = SILENCE
    newcomer = Peer("c")
    scene.bytes.hold(newcomer, 30)
    assert [peer.cut_off for peer in (greedy, greedy_too, modest, newcomer)] == [True, False, False, False]
    assert scene.bytes.total == 70


def test_who_keeps_sending_waits_until_those_before_are_done() -> None:
    scene, peers = Scene(), [Peer("a") for _ in range(4)]
    for peer in peers:
        scene.bytes.hold(peer, 30)
    # The first of an address never waits, however much the others hold.
    scene.bytes.hold(peers[0], 35)
    assert [peer.waits for peer in peers] == [False, False, True, True]
    scene.bytes.hold(peers[1], 31)
    assert [peer.waits for peer in peers] == [False, True, True, True]
    # Of another address there is a first one, too.
    other = Peer("b")
    scene.bytes.hold(other, 1)
    assert not other.waits
    scene.bytes.hold(peers[0], 0)
    assert [peer.waits for peer in peers] == [False, False, True, True]
    scene.bytes.hold(peers[1], 0)
    assert scene.bytes.waiting == 0
    assert not any(peer.cut_off for peer in peers)


def test_a_first_one_that_is_silent_holds_the_others_up_for_seconds_only() -> None:
    scene, peers = Scene(), [Peer("a") for _ in range(3)]
    for peer in peers:
        scene.bytes.hold(peer, 40)
    scene.bytes.hold(peers[1], 41)
    assert [peer.waits for peer in peers] == [False, True, True]
    scene.now = SILENCE
    scene.bytes.tick()
    # Those who wait are silent because nobody reads from them.
    assert [peer.cut_off for peer in peers] == [True, False, False]
    assert [peer.waits for peer in peers] == [False, False, True]


def test_a_peer_that_leaves_while_it_waits_is_forgotten() -> None:
    scene, peers = Scene(), [Peer("a") for _ in range(3)]
    for peer in peers:
        scene.bytes.hold(peer, 40)
    assert scene.bytes.waiting == 2
    scene.bytes.hold(peers[2], 0)
    assert (scene.bytes.waiting, scene.bytes.total) == (1, 80)


def test_the_stretch_is_never_exceeded() -> None:
    scene, peers = Scene(), [Peer(str(number)) for number in range(40)]
    for peer in peers:
        scene.bytes.hold(peer, 10)
        assert scene.bytes.total <= STRETCH * 100
    assert any(peer.cut_off for peer in peers)


def test_a_turn_takes_so_much_and_the_rest_comes_in_later_ones() -> None:
    room, due = UnfinishedBytes(1 << 40), list[Callable[[], None]]()
    room.call_soon = due.append
    peers = [Peer(f"{number}") for number in range(2 * AT_A_TIME + 1)]
    room.hold(peers[0], TURN_BYTES - 1)
    assert not peers[0].waits
    for peer in peers:
        room.hold(peer, TURN_BYTES)
    assert all(peer.waits for peer in peers)
    for left in (AT_A_TIME + 1, 1, 0):
        assert len(due) == 1
        due.pop()()
        assert sum(peer.waits for peer in peers) == left
    assert not due
    # Small ones together fill a turn, too.
    for size in range(1, 4):
        room.hold(peers[5], TURN_BYTES + size * TURN_BYTES // 3)
    assert peers[5].waits
    due.pop()()
    assert not peers[5].waits


def test_who_is_cut_off_is_not_read_from_again() -> None:
    scene, due = Scene(), list[Callable[[], None]]()
    scene.bytes.bound = 2 * TURN_BYTES
    scene.bytes.call_soon = due.append
    peer = Peer("a")
    scene.bytes.hold(peer, TURN_BYTES)
    assert peer.waits
    scene.bytes.hold(peer, int(2 * STRETCH * TURN_BYTES) + 1)
    assert peer.cut_off
    due.pop()()
    assert peer.waits
