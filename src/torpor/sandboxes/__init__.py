"""The engine: every sandbox's life, from create to delete."""
