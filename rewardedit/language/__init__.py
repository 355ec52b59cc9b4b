"""Any model that reads or writes text: local ones, endpoints, their answers and what they cost."""
