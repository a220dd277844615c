"""What the hub decides: who gets which messages, when, and who is refused.

Nothing here has a socket, a clock or a thread. A method takes what happened (a frame and where it came from,
messages committed, time passed) and returns the work that follows from it as small frozen values; a driver in
``headrace.net`` does the work and says how it went.
"""
