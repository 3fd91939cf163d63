"""Code contexts: runs code in interpreters inside a machine that keep their state, and believes nothing of them but its shape."""
