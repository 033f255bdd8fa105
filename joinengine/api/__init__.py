"""The Python interface. Each call checks its arguments itself, before any Spark job starts."""
