"""As-of joins: for each left tuple the nearest right one."""
