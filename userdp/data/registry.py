"""The sources of data that a configuration may name; each takes one line here."""

from typing import TYPE_CHECKING

from userdp.kinds import Kinds, below

if TYPE_CHECKING:
    from userdp.data.source import DataSettings

DATA_SOURCES: "Kinds[type[DataSettings]]" = Kinds(
    {
        "synthetic": "userdp.data.synthetic.source:SyntheticData",
        "table": "userdp.data.tables.sources:TableData",
        "public": "userdp.data.tables.sources:PublicData",
    },
    "userdp.data",
    files=True,
    check=below("userdp.data.source:DataSettings", "a source of data is a settings class whose load() reads the users"),
)
