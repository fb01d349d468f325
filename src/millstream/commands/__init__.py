"""One module a group of commands; each maps flags onto the stages' functions and prints what they return."""
