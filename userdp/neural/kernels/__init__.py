"""Layers in place of torch's own, for gradients of many users; `problem.kernels = "torch"` turns them off.

Each states its gain as measured on one core with the models of `research/neural_models.py`, 32 users of 8 windows of
32 characters. If a kernel does not give a module's gradients on made-up samples, torch's layers compute. This room
imports nothing from the rest of `userdp.neural`.
"""
