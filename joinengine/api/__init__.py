"""The Python face: it checks what can be known before a job starts, at the line that says it."""
