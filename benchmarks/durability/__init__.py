"""What durability costs, and how long a query takes to go on when an executor is killed."""
