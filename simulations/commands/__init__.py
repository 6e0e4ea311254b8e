"""The verbs of the `userdp` command."""
