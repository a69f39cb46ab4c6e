"""What a rank runs for test_functions.py when one of them goes: by sys.exit, by a signal, or in flight at exit.

leaving_ranks.py exits|killed|exits_in_flight
"""

import faulthandler
import os
import signal
import sys
import threading
import time

import tensorflow as tf

import hdp.tensorflow as dist


def main(how):
    faulthandler.enable()
    dist.init()
    step = tf.function(lambda x: dist.allreduce(x, name="loss"))
    for i in range(3):
        step(tf.ones([1000]) * float(i))
    if dist.rank() == dist.size() - 1:
        if how == "exits_in_flight":
            threading.Thread(target=lambda: dist.allreduce(tf.ones([2]), name="alone"), daemon=True).start()
            time.sleep(0.5)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(0)
    try:
        while True:
            step(tf.ones([1000]))
    except tf.errors.OpError as exc:
        print("RAISED", type(exc).__name__, exc.message)


if __name__ == "__main__":
    main(sys.argv[1])
