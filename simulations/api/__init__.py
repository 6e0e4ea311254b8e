"""The functions and objects of Python that do what the command does."""
