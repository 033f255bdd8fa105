"""What is emulated in a run: instances that work longer or fail, and a store that is slow."""
