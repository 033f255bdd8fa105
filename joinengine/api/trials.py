"""Turns options of the laboratory into a trial of the engine.

This is the one module of the engine that knows the laboratory, and it loads it only if it is asked
for (tests/unit/test_imports.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from joinengine.api.options import value_of
from joinengine.driver.trial import Trial
from joinengine.model.recovery import Recovery
from joinengine.model.speeds import Speed


def trial_of(options: Mapping[str, str], losses: Mapping[int, Sequence[int]]) -> Trial:
    """The trial that these options ask for; `losses`: batch -> instances that fail.

    A store below the checkpoint is emulated, since no real store would be there. Raises
    InvalidRequest as `value_of` does.
    """
    per_tuple_s, per_result_s = (
        value_of(options, f"workPer{what}") for what in ("Tuple", "Result")
    )
    speed: Speed | None = value_of(options, "storeRate")
    is_below = value_of(options, "storeLocation") is None
    if speed is None and value_of(options, "recovery") is Recovery.STORE and is_below:
        speed = Speed()
    if not (per_tuple_s or per_result_s or losses or speed):
        return Trial()
    from joinengine.lab.emulation.emulating import Emulation  # noqa: PLC0415
    from joinengine.lab.emulation.slow_operator import Work  # noqa: PLC0415

    return Emulation(Work(per_tuple_s, per_result_s), losses, speed)
