"""Output for people and scripts: JSON, tables, pictures, explanations."""
