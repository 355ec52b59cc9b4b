"""A page in the browser that edits an uploaded image and shows its candidates with their scores."""
