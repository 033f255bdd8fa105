"""The messages between driver and tasks: the reports, and the codec of reports and instructions."""
