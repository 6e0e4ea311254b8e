"""What a run leaves behind: its metrics, its folder, and which of its fields may be handed on."""
