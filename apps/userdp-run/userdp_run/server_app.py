"""The ServerApp: what `userdp run` does, on the grid that Flower provides."""

from flwr.serverapp import ServerApp

from simulations.flower import main

app = ServerApp()
app.main()(main)
