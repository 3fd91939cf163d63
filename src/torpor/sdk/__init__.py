"""The client: asynchronous, with a synchronous face. Knows HTTP and nothing below it."""
