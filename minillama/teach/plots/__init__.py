"""Figures of the course, a module for each chapter: functions that take tensors or a model and return a `Picture`."""
