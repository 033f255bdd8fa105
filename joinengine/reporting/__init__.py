"""What a person or a script reads afterwards: JSON, tables, pictures, explanations."""
