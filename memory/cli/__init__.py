"""The ``memory`` command: the verbs of the provider, and the care of its database, from a shell.

What goes where: a result goes to stdout, as text or with ``--json`` as one JSON value; errors, progress and
what is not the result go to stderr. Exit codes are in ``exits``, JSON shapes in ``shapes``.
"""
