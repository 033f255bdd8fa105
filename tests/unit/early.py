"""A daemon of no workers, to be begun early: it tells what it is, and ends with its standard input.

It has a child that has nothing to do with it, as a worker that outlives its daemon.
"""

from __future__ import annotations

import json
import os
import sys
import time

from joinengine.spark.session import early

#: What is imported in place of what workers need, which takes a second.
IMPORTED = "wave"


def tell(*, taken):
    """Say who this is, and wait."""
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    told = {
        "taken": taken,
        "number": os.getpid(),
        "child": child,
        "mark": os.environ.get("SPARK_MARK"),
        "path": sys.path,
        "arguments": sys.argv[1:],
        "folder": os.getcwd(),
        "imported": IMPORTED in sys.modules,
    }
    print(json.dumps(told), flush=True)
    sys.stdin.buffer.read()


def main():
    """What joinengine.spark.session.daemon does."""
    early.AT_HAND = (IMPORTED,)
    if sys.argv[1:2] == [early.ARGUMENT]:
        with early.taking_over(int(sys.argv[2])):
            tell(taken=True)
    elif not early.taken_over():
        tell(taken=False)


if __name__ == "__main__":
    main()
