"""What the command does, as functions and objects of Python."""
