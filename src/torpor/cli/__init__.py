"""The command line: SDK calls, in words for people and JSON for programs."""
