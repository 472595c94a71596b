"""The tables of a store: what an empty file gets, and what no store has."""

from __future__ import annotations

import sqlite3

from kcverify.diagnostics import input_error

SCHEMA = 1
APPLICATION = 0x6B637631
_TABLES = (
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, at INTEGER NOT NULL, body TEXT NOT NULL, "
    "previous TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL, body TEXT NOT NULL)",
    "CREATE TABLE evidence (run INTEGER NOT NULL, cell TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (run, cell))",
    "CREATE TABLE writers (run INTEGER NOT NULL, writer TEXT NOT NULL, number INTEGER NOT NULL, requests INTEGER NOT NULL, "
    "PRIMARY KEY (run, writer))",
)
_LATER = (
    "CREATE TABLE IF NOT EXISTS watches (writer TEXT PRIMARY KEY, run INTEGER NOT NULL, at INTEGER NOT NULL, body TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS draws (number INTEGER PRIMARY KEY, writer TEXT NOT NULL, run INTEGER NOT NULL, seed TEXT NOT NULL)",
)
"""Tables that a store of an earlier version gets when it is opened."""


def there(db: sqlite3.Connection, path: str) -> bool:
    """Whether every table is there; not in an empty file, or where an earlier version wrote.

    Raises InputError: `store_schema` for a later version, `store_invalid` for the file of another program.
    """
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if application == APPLICATION:
        if version != SCHEMA:
            raise input_error("store_schema", path=path, found=version, known=SCHEMA)
        return _own(db, path)
    if application or version or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise input_error("store_invalid", path=path, reason="it is a database of another program")
    return False


def _own(db: sqlite3.Connection, path: str) -> bool:
    """Refuse what another hand put into the file: a view or a trigger runs whatever it says when a table is used."""
    held = {row[0] for row in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    known = {*_TABLES, *(text.replace("IF NOT EXISTS ", "") for text in _LATER)}
    if not set(_TABLES) <= held <= known:
        raise input_error("store_invalid", path=path, reason="its tables are not those of a store")
    return held == known


def make(db: sqlite3.Connection) -> None:
    """Create what is not there."""
    for text in (*(t.replace("TABLE", "TABLE IF NOT EXISTS", 1) for t in _TABLES), *_LATER):
        db.execute(text)
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute(f"PRAGMA user_version = {SCHEMA}")
