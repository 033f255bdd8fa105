"""A table of rows per second beside pytest-benchmark's table of times."""


def pytest_terminal_summary(terminalreporter, config):
    """List the benchmarks that name the number of rows of a round."""
    session = getattr(config, "_benchmarksession", None)
    ran = [found for found in getattr(session, "benchmarks", []) if "rows" in found.extra_info]
    if ran:
        terminalreporter.section("M rows/s, one core (median)")
    for found in sorted(ran, key=lambda found: found.name):
        info = found.extra_info
        terminalreporter.line(f"{found.name:28}{info['rows_per_s'] / 1e6:10.1f}")
