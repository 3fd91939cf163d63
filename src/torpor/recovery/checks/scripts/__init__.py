"""Programs that are sent into the machine and run there by its Python: standard library only, nothing kept."""
