"""BPM: size, position, modification and preservation of the edited region."""
