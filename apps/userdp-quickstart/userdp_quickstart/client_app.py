"""The ClientApp: it answers for the users of its node."""

from strategies import client_app
from userdp_quickstart.task import load_node

app = client_app(load_node)
