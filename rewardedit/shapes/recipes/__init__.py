"""Recipes of the offline world; `rewardedit recipes` lists them below the others."""
