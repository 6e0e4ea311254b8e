"""Layers in place of torch's own, for gradients of many users; `problem.kernels = "torch"` goes without them.

Each says in a line why it is there, as measured on one core of a processor with the models of
`research/neural_models.py`, 32 users of 8 windows of 32 characters. Where a kernel does not give a module's gradients
on made-up samples, torch's layers are taken. Nothing of the rest of `userdp.neural` is imported here.
"""
