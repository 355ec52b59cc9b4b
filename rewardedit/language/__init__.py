"""Models that read or write text: local ones and endpoints, their answers and their usage."""
