"""The hub's decisions: who gets which messages, when, and who is refused.

Nothing here has a socket, a clock or a thread. A method takes an event (a frame and its sender, a commit, the time) and
returns the resulting work as small frozen values; a driver in ``headrace.net`` does the work and reports the outcome.
"""
