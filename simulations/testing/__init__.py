"""What any strategy has to keep to, wherever it comes from: a contract that its author's tests can run."""
