"""The exercises of the course, a module for each chapter; `EXERCISES` is its list."""
