"""Torpor: a computer for every AI agent that can be put down and picked up."""
