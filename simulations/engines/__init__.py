"""Where nodes run: in this process, or as Ray actors."""
