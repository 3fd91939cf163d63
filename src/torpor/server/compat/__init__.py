"""The REST API as clients of PandaStack speak it, carried out by the same engine; see docs/how-to/pandastack.md.

Its routes are below `/pandastack/v1`, apart from the native ones, and share nothing with them but the engine's
view, the desks and the guard. `Dispatch` sends a request there that names such a client. Rules of the part:

1. It translates and decides nothing that the engine decides.
2. What is not offered answers 501 and says so; nothing is invented.
3. A failure's text is all that these clients show, and some of its words make them send a request again: see `told`.
"""
