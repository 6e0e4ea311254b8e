"""A small language model trained on public text, to be fine-tuned on users' text with privacy."""
