"""The form of the database's tables: its version, and the way from an older one to it.

*Formal guarantees.* *Claim.* A database of a newer form is neither read nor written, and bringing an older one up
loses no row and no value. *Why.* Every transaction looks at the version before anything else. Columns are added,
empty, and never changed or removed; that and the new version are one transaction. *Assumptions.* Whoever changes what
a column means raises `VERSION`.
"""

import sqlalchemy as sql
from sqlalchemy.schema import CreateColumn

from userdp.errors import BadInput

VERSION = 2
"""The version of what this userdp writes; databases that name none are of version 1."""
_SCHEMA = sql.Table("userdp_schema", sql.MetaData(), sql.Column("version", sql.Integer, nullable=False))


def insist(connection: sql.Connection) -> int:
    """Return the version of a database; `BadInput` if it is newer than `VERSION`."""
    if not sql.inspect(connection).has_table(_SCHEMA.name):
        return 1
    version = connection.scalar(sql.select(sql.func.max(_SCHEMA.c.version))) or 1
    if version > VERSION:
        raise BadInput(
            f"the database of the accounts has version {version}, and this userdp knows {VERSION}: upgrade userdp here"
        )
    return version


def bring_up(connection: sql.Connection, tables: sql.MetaData) -> None:
    """Add to tables that are there what they lack, and write the version down."""
    version, inspector = insist(connection), sql.inspect(connection)
    found = [table for table in tables.sorted_tables if inspector.has_table(table.name)]
    for table in found:
        there = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                added = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {added}")
    if found and version < VERSION:
        _SCHEMA.create(connection, checkfirst=True)
        connection.execute(sql.delete(_SCHEMA))
        connection.execute(sql.insert(_SCHEMA).values(version=VERSION))
