"""A parent and two children with an overrun each: children.py fork|spawn|forkserver|os_fork|subprocess."""

import multiprocessing
import os
import subprocess
import sys

from overrun import run


def main(how: str) -> None:
    if how == "os_fork":
        run(0)  # the debugger is at work when it is forked
        for past_end in (4, 12):
            pid = os.fork()
            if not pid:
                run(past_end)
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
    elif how == "subprocess":
        for past_end in (4, 12):
            code = f"from overrun import run; run({past_end})"
            subprocess.run([sys.executable, "-c", code], check=True, cwd=os.path.dirname(__file__))
    else:
        if how == "fork":
            run(0)
        context = multiprocessing.get_context(how)
        children = [context.Process(target=run, args=(past_end,)) for past_end in (4, 12)]
        for child in children:
            child.start()
        for child in children:
            child.join(120)
            assert child.exitcode == 0, child.exitcode


if __name__ == "__main__":
    main(sys.argv[1])
