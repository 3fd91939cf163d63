"""Making changes safe: what a machine holds, whether it is well, and how it comes back."""
