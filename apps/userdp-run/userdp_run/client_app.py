"""The ClientApp: it answers for the users of its node, a silo's or a block of a simulation's."""

from simulations.flower import node_of
from strategies import client_app

app = client_app(node_of)
