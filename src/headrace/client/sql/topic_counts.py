"""Counting messages by topic without reading them: such a query is rewritten to ask a table of counts instead.

A query is rewritten if all it uses of ``messages`` is the column ``topic`` and ``count(*)``. DuckDB gives a query's
syntax tree as JSON, and takes it back. A query that is not recognized is left alone: then the messages are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from headrace.message import SCHEMA

COUNTS: Final = "topic_counts"
"""The table of counts, with the columns ``topic`` and :data:`NUMBER`."""

NUMBER: Final = "messages_of_topic"
"""A name that no query has for anything else."""

SUM: Final = "create macro sum_of_counts(n) as coalesce(sum(n), 0)::bigint"
"""Replaces ``count(*)``; like that, it gives 0 for no rows."""

_Node = dict[str, Any]

_KINDS: Final = frozenset(
    {"SELECT_NODE", "COLUMN_REF", "BASE_TABLE", "FUNCTION", "VALUE_CONSTANT", "ORDER_MODIFIER"}
    | {"LIMIT_MODIFIER", "ASCENDING", "DESCENDING", "ORDER_DEFAULT", "CONJUNCTION_AND", "CONJUNCTION_OR"}
    | {"OPERATOR_NOT", "COMPARE_IN", "COMPARE_NOT_IN", "COMPARE_EQUAL", "COMPARE_NOTEQUAL"}
    | {"COMPARE_LESSTHAN", "COMPARE_GREATERTHAN", "COMPARE_LESSTHANOREQUALTO", "COMPARE_GREATERTHANOREQUALTO"}
)
"""Kinds of nodes in queries that are rewritten: any other may need the messages themselves."""

_OF_A_TOPIC: Final = frozenset({"~~", "!~~", "~~*", "!~~*", "starts_with", "prefix", "contains", "lower"})
"""Functions of one topic."""


def counts_instead(connection: Any, query: str) -> str | None:
    """Return a query with the same answer that asks the table of counts; ``None`` if the messages are needed."""
    try:
        [(text,)] = connection.execute("select json_serialize_sql(?)", [query]).fetchall()
        tree = msgspec.json.decode(text)
        [statement] = tree["statements"]
        if not _rewrite(statement["node"]):
            return None
        again = msgspec.json.encode(tree).decode()
        [(rewritten,)] = connection.execute("select json_deserialize_sql(?)", [again]).fetchall()
    except (KeyError, ValueError, TypeError, RecursionError):
        # It is several statements, another version's tree, or a deep one.
        return None
    return str(rewritten)


def _rewrite(query: _Node) -> bool:
    """Have a query's tree ask the table of counts; false if that is not the same."""
    nodes = list(_nodes(query))
    tables = [node for node in nodes if node["type"] == "BASE_TABLE"]
    counts = [node for node in nodes if _is_count(node)]
    aliases = {node["alias"].lower() for node in query["select_list"]} - set(SCHEMA.names)
    if len(tables) != 1 or not counts or not all(_is_plain(node, aliases) for node in nodes):
        return False
    for shown in query["select_list"]:
        if _is_count(shown):
            shown["alias"] = shown["alias"] or "count_star()"
        elif not shown["alias"] and any(map(_is_count, _nodes(shown))):
            # Its heading would tell.
            return False
    [table] = tables
    # Columns may be qualified with the name that it had.
    table["alias"] = table["alias"] or table["table_name"]
    _rename(table, "table_name", COUNTS)
    for node in counts:
        _rename(node, "function_name", "sum_of_counts")
        column = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [NUMBER]}
        if "arguments" in node:
            node["arguments"] = [{"name": "", "expression": column}]
        else:
            node["children"] = [column]
    return True


def _rename(node: _Node, key: str, name: str) -> None:
    node[key] = name
    if "qualified_name" in node:
        node["qualified_name"] = {"path": [name]}


def _is_plain(node: _Node, aliases: set[str]) -> bool:
    match node["type"]:
        case "COLUMN_REF":
            *table, name = (str(part).lower() for part in node["column_names"])
            return name == "topic" or (name in aliases and not table)
        case "FUNCTION":
            return _is_count(node) or (node["function_name"] in _OF_A_TOPIC and not node["filter"])
        case "BASE_TABLE":
            unusual = node["schema_name"] or node["sample"] or node["at_clause"] or node["column_name_alias"]
            return node["table_name"].lower() == "messages" and not unusual
        case "SELECT_NODE":
            return not (node["sample"] or node["qualify"] or node["cte_map"]["map"])
        case kind:
            return kind in _KINDS


def _is_count(node: _Node) -> bool:
    return bool(
        node["type"] == "FUNCTION"
        and node["function_name"] == "count_star"
        and not (node["filter"] or node["distinct"] or node["order_bys"]["orders"])
    )


def _nodes(tree: Any) -> Iterator[_Node]:
    """Yield everything in a syntax tree that has a type, outermost first."""
    match tree:
        case dict():
            if isinstance(tree.get("type"), str):
                yield tree
            for value in tree.values():
                yield from _nodes(value)
        case list():
            for value in tree:
                yield from _nodes(value)
