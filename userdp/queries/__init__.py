"""Statistics of a table at user level: each user's bounded answers, and what follows from their noisy sums."""

from typing import TYPE_CHECKING

from userdp.lazy import lazily

if TYPE_CHECKING:
    from userdp.queries.answers import Answer, Sums
    from userdp.queries.facts import Facts
    from userdp.queries.statistics import Statistic
    from userdp.queries.table import TableQuery, table_query

__all__ = ["Answer", "Facts", "Statistic", "Sums", "TableQuery", "table_query"]

__getattr__, __dir__ = lazily(__name__)
