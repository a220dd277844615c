"""From messages to visits: a chunk of messages as points, and the groups of a segment that each must visit.

Visits to groups without a key come group by group, not message by message: a group is read from memory once per chunk
and stays in the processor's cache for all messages that visit it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.matching.attribute_reading import Facts
from headrace.matching.index.hashing import find_key, find_word, hash_text, mixed
from headrace.matching.index.segment import Ints, Segment
from headrace.wire.numba_kernels import inline

# Kinds of keys: a key's kind is 4 * attribute + one of these; an attribute's kinds are bits.
TEXT_KEY, NUMBER_KEY, PREFIX_KEY, PRESENT_KEY = 0, 1, 2, 3

Matrix = npt.NDArray[np.float64]


@inline
def points(
    segment: Segment,
    facts: Facts,
    attribute_of: Ints,
    begin: int,
    end: int,
    x: Matrix,
    fact_of: Ints,
    touched: Ints,
    touching: Ints,
) -> None:
    """Fill in messages as points, each attribute's fact (-1 if absent), and which attributes a message has.

    Dimension ``d`` is column ``d + 1``; column 0 stands for no dimension and is always 0. Only the previous chunk's
    values are cleared first: subscriptions may name very many attributes, of which a message has few.
    """
    textual, first, names = facts.textual, facts.first, facts.name
    number, hashes, text_begin, text_end, text = facts.number, facts.hash, facts.begin, facts.end, facts.data
    word_data, word_begin, word_slots = segment.word_data, segment.word_begin, segment.word_slots
    for message in range(begin, end):
        row = message - begin
        for index in range(touching[row]):
            attribute = touched[row, index]
            x[row, 2 * attribute + 1] = x[row, 2 * attribute + 2] = np.nan
            fact_of[row, attribute] = -1
        touching[row] = 0
        # Later facts win over earlier ones, whichever type they have.
        for source in range(len(textual)):
            for fact in range(first[source, message], first[source, message + 1]):
                attribute = attribute_of[names[fact]] if names[fact] >= 0 else -1
                if attribute < 0:
                    continue
                if fact_of[row, attribute] < 0:
                    touched[row, touching[row]] = attribute
                    touching[row] += 1
                fact_of[row, attribute] = fact
                if textual[source]:
                    x[row, 2 * attribute + 1], x[row, 2 * attribute + 2] = 0.0, np.nan
                else:
                    x[row, 2 * attribute + 1], x[row, 2 * attribute + 2] = np.nan, number[fact]
        for index in range(touching[row]):
            attribute = touched[row, index]
            if not np.isnan(x[row, 2 * attribute + 1]):
                fact = fact_of[row, attribute]
                x[row, 2 * attribute + 1] = find_word(
                    text, text_begin[fact], text_end[fact], hashes[fact], word_data, word_begin, word_slots
                )


@inline
def _visit(visits: Ints, count: int, message: int, first: int, end: int) -> Ints:
    """Append visits of a message to groups ``first`` to ``end``; return the array, grown if it was full."""
    if count + end - first > len(visits):
        larger = np.empty((2 * (count + end - first), 2), np.int32)
        larger[:count] = visits[:count]
        visits = larger
    for group in range(first, end):
        visits[count, 0] = message
        visits[count, 1] = group
        count += 1
    return visits


@inline
def visits_of(
    segment: Segment,
    facts: Facts,
    seed: np.uint64,
    begin: int,
    end: int,
    x: Matrix,
    fact_of: Ints,
    touched: Ints,
    touching: Ints,
    visits: Ints,
) -> tuple[Ints, int]:
    """Find which groups messages ``begin`` to ``end`` must visit; return the visits and their number."""
    dim_group, group_dims, key_group = segment.dim_group, segment.group_dims, segment.key_group
    key_kind, key_value, key_slots = segment.key_kind, segment.key_value, segment.key_slots
    attribute_keys = segment.attribute_keys
    prefix_begin, prefix_length = segment.prefix_begin, segment.prefix_length
    word_data, word_begin, word_slots = segment.word_data, segment.word_begin, segment.word_slots
    bits, text_begin, text_end, text = facts.bits, facts.begin, facts.end, facts.data
    count = 0
    for group in range(dim_group[0]):
        for row in range(end - begin):
            visits = _visit(visits, count, row, group, group + 1)
            count += 1
    # Groups of every attribute that any of the messages has.
    done = np.zeros(len(attribute_keys), np.uint8)
    for each in range(end - begin):
        for index in range(touching[each]):
            attribute = touched[each, index]
            if done[attribute]:
                continue
            done[attribute] = 1
            for group in range(dim_group[2 * attribute], dim_group[2 * attribute + 2]):
                first, second = group_dims[group, 0], group_dims[group, 1]
                for row in range(each, end - begin):
                    # A missing dimension of a group is never NaN.
                    if not (np.isnan(x[row, first + 1]) or np.isnan(x[row, second + 1])):
                        visits = _visit(visits, count, row, group, group + 1)
                        count += 1
    for row in range(end - begin):
        for index in range(touching[row]):
            attribute = touched[row, index]
            kinds = attribute_keys[attribute]
            fact = fact_of[row, attribute]
            if kinds == 0:
                continue
            code = x[row, 2 * attribute + 1]
            key = -1
            if np.isnan(code):
                if kinds >> NUMBER_KEY & 1:
                    key = find_key(
                        key_kind, key_value, key_slots, 4 * attribute + NUMBER_KEY, bits[fact], seed
                    )
            elif kinds >> TEXT_KEY & 1 and code >= 0:
                key = find_key(key_kind, key_value, key_slots, 4 * attribute + TEXT_KEY, int(code), seed)
            if key >= 0:
                visits = _visit(visits, count, row, key_group[key], key_group[key + 1])
                count += key_group[key + 1] - key_group[key]
            if kinds >> PRESENT_KEY & 1:
                key = find_key(key_kind, key_value, key_slots, 4 * attribute + PRESENT_KEY, 0, seed)
                visits = _visit(visits, count, row, key_group[key], key_group[key + 1])
                count += key_group[key + 1] - key_group[key]
            if kinds >> PREFIX_KEY & 1 and not np.isnan(code):
                # One pass over the text: the hash of each prefix continues that of the shorter one.
                state = seed
                at = text_begin[fact]
                for place in range(prefix_begin[attribute], prefix_begin[attribute + 1]):
                    stop = text_begin[fact] + prefix_length[place]
                    if stop > text_end[fact]:
                        break
                    state = hash_text(text, at, stop, state)
                    at = stop
                    word = find_word(
                        text, text_begin[fact], stop, mixed(state), word_data, word_begin, word_slots
                    )
                    if word < 0:
                        continue
                    key = find_key(key_kind, key_value, key_slots, 4 * attribute + PREFIX_KEY, word, seed)
                    if key >= 0:
                        visits = _visit(visits, count, row, key_group[key], key_group[key + 1])
                        count += key_group[key + 1] - key_group[key]
    return visits, count
