"""What a tube may take, keep and wait for: one frozen object, given to ``connect`` and ``serve``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import UsageError
from headrace.wire.tube.reassembly import DEFAULT_FRAGMENT_SIZE, MAX_MESSAGE, Limits

Policy = Callable[[memoryview], bool]
"""Told a message (of one sent in parts: its longest part), says whether compressing it is worth a try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a tube behaves. Sizes are bytes; a duration of ``math.inf`` means never.

    >>> Options(max_message=100_000_000, compress=False).fragment_size
    262144
    """

    fragment_size: int = DEFAULT_FRAGMENT_SIZE
    """The longest fragment we take, which the peer is told."""

    max_message: int = MAX_MESSAGE
    """The longest message, as it travels, that we take; and that we send, unless ``max_sent`` says otherwise."""

    max_sent: int | None = None
    """The longest message that we send."""

    max_inflated: int = MAX_MESSAGE
    """What a compressed message may become."""

    compress: bool | Policy = True
    """Whether messages are compressed where that pays, never, or where a policy of your own agrees too."""

    idle_seconds: float = 20.0
    """A peer not heard for this long is pinged."""

    pong_seconds: float = 20.0
    """A pinged peer that neither says nor takes anything for this long is given up."""

    message_seconds: float = 300.0
    """A message must be whole this long after it began."""

    handshake_seconds: float = 10.0
    """Both fragment sizes (on WebSocket, its handshake too) must be known this long after connecting began."""

    close_seconds: float = 5.0
    """A closing tube is cut off when its peer takes nothing, or does not close as well, for this long."""

    receive_buffer: int = 4 << 20
    """Messages received and not yet consumed: past this, reading stops until half of them are gone."""

    write_buffer: int = 1 << 20
    """Bytes handed to the transport and not yet taken by the network: past this, :meth:`Tube.send` waits."""

    def __post_init__(self) -> None:
        # Checks its own three.
        _ = self.limits
        for name in ("receive_buffer", "write_buffer", "max_sent"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise UsageError(f"{name} is {size}: expected 1 or more bytes")
        for name in ("idle", "pong", "message", "handshake", "close"):
            seconds = getattr(self, f"{name}_seconds")
            if math.isnan(seconds) or seconds <= 0:
                raise UsageError(f"{name}_seconds is {seconds}: expected more than 0")

    @property
    def longest_sent(self) -> int:
        """The longest message that we send."""
        return self.max_message if self.max_sent is None else self.max_sent

    @property
    def limits(self) -> Limits:
        """The part of this that the codec keeps."""
        return Limits(self.fragment_size, self.max_message, self.max_inflated)


DEFAULT_OPTIONS = Options()
