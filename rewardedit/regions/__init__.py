"""Where an edit takes place: objects that are found by their names, and the places that changed."""
