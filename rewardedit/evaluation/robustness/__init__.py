"""Attacks on edited images that improve nothing, and the scorers that fall for them."""
