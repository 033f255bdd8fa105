"""Tables of rows per second and of milliseconds per instance, beside pytest-benchmark's own."""

#: What a benchmark may tell in `extra_info`: the title of its table, and how a figure is shown.
TABLES = {
    "rows_per_s": ("M rows/s, one core (median)", lambda found: f"{found / 1e6:10.1f}"),
    "ms_per_instance": ("ms per instance, one core (median)", lambda found: f"{found:10.3f}"),
}


def pytest_terminal_summary(terminalreporter, config):
    """List the benchmarks that tell such a figure."""
    session = getattr(config, "_benchmarksession", None)
    for figure, (title, shown) in TABLES.items():
        ran = [
            benchmark
            for benchmark in getattr(session, "benchmarks", [])
            if figure in benchmark.extra_info
        ]
        if ran:
            terminalreporter.section(title)
        for benchmark in sorted(ran, key=lambda benchmark: benchmark.name):
            terminalreporter.line(f"{benchmark.name:28}{shown(benchmark.extra_info[figure])}")
