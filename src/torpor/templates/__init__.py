"""Templates: bootable images made from recipes, kept in the home by digest, pointed to by name."""
