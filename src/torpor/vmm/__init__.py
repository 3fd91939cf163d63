"""Machine monitors behind one protocol; drivers do not know each other."""
