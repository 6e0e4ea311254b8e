"""Every source of data that a configuration may name. Adding one takes a line here."""

from typing import TYPE_CHECKING

from userdp.kinds import Kinds

if TYPE_CHECKING:
    from userdp.data.source import DataSettings


DATA_SOURCES: "Kinds[type[DataSettings]]" = Kinds(
    {
        "synthetic": "userdp.data.synthetic.source:SyntheticData",
        "table": "userdp.data.tables.sources:TableData",
        "public": "userdp.data.tables.sources:PublicData",
    }
)
"""Where users come from."""
