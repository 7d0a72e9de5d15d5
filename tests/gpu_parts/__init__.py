"""The parts of `tests/gpu`: a module for each subject, all with Python's standard library alone."""
