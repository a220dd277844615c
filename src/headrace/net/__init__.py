"""The only sockets: one driver per transport, one endpoint per protocol, and the server that runs them all.

Drivers are dull: receive, decode, ask ``hub/`` what to do, encode, send. All judgement is elsewhere, where a test
can reach it without a socket.
"""
