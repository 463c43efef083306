"""Management: what operators see of a broker, and what they may do with it, the same for every protocol and surface.

`views` and `messages` look, `operations` changes, `resources` gives each a path, a demand on the permissions and a line
in the audit log, and `server` serves these paths over a Unix socket. Invariant: nothing here holds the event loop for
longer than a slice (`slices`), however much a broker has.
"""
