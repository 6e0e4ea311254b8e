"""The ClientApp: it answers for the people of its silo, each by one bounded row."""

from strategies import client_app
from userdp_query.task import load_node

app = client_app(load_node)
