"""One file per training method; a leading underscore marks what several share."""
