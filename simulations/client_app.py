"""The Flower ClientApp of simulations: answers for the users of its partition."""

from simulations.flower import node_of
from strategies.wire.client import client_app

app = client_app(node_of)
