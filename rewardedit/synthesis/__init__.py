"""Training data derived from other data: edits of a data set's rows, and their labels."""
