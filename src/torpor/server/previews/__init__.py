"""Previews: `http://PORT-SANDBOX.HOST` shows what listens on a port in a sandbox, through the guest channel."""
