"""What it costs to wait for new files among very many."""
