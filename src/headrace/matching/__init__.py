"""Matching: find the clients whose subscriptions a message's attributes satisfy."""

from headrace.matching.matcher import FENCE_WINDOW, TABLE, Matcher
from headrace.matching.matches import Matches, Memory
from headrace.matching.ring import Ring
from headrace.matching.warm_up import is_cold, remove_stale_caches, warm

__all__ = ["FENCE_WINDOW", "TABLE", "Matcher", "Matches", "Memory", "Ring", "is_cold", "warm"]

# Before any kernel module is loaded.
remove_stale_caches()
