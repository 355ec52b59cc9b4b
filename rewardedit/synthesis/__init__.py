"""Training data made from other data: what editors produce for the rows of a data set."""
