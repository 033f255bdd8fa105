"""The Python interface. A call checks its arguments itself, before any Spark job starts."""
