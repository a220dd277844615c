"""A sequence that can be proven: digests of blocks of messages, chained from the first.

``canonical``         the bytes of a message that count, the same in every copy
``resumable_sha256``  SHA-256 whose state can be kept between two segments
``chain``             digests of blocks, and the chain over them
``log_chain``         the chain of a log on disk, extended as segments are sealed
``checkpoint``        the head of a chain, signed
"""
