"""Resident tasks, without Spark: how they meet their driver, get orders, and give slots back."""
