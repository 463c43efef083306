"""A store in a PostgreSQL database. Spec and argument: docs/master-slave.md, "A store in a database"."""
