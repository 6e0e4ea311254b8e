"""The ClientApp of a silo: it adds its share of the noise to its people's sum, and masks the result."""

from strategies import client_app
from userdp_silos.task import load_node

app = client_app(load_node)
