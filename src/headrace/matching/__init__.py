"""Matching: which clients a message is for, by what the message says of itself."""

from headrace.matching.matcher import TABLE, Matcher, warm
from headrace.matching.matches import Matches, Memory
from headrace.matching.ring import Ring

__all__ = ["TABLE", "Matcher", "Matches", "Memory", "Ring", "warm"]
