"""One YAML file per result; `rewardedit recipes` lists them."""
