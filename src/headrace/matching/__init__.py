"""Matching: which clients a message is for, by what the message says of itself."""

from headrace.matching.loading import is_cold, warm
from headrace.matching.matcher import TABLE, Matcher
from headrace.matching.matches import Matches, Memory
from headrace.matching.ring import Ring

__all__ = ["TABLE", "Matcher", "Matches", "Memory", "Ring", "is_cold", "warm"]
