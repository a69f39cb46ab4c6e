"""SMDDP's API beside Keras: that of ``smdistributed.dataparallel.tensorflow``, and callbacks. Served by `hdp.keras`."""

from smdistributed.dataparallel.tensorflow import *  # noqa: F403
from smdistributed.dataparallel.tensorflow.keras import callbacks as callbacks
