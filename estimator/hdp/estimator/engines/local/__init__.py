"""The local engine: every host of a job is a process group of this machine, with its own ``/opt/ml``-shaped tree.

Who owns what. A job is one folder below ``$HDP_HOME/jobs``; all that anybody knows about it is in there:

* the **client** (`engine.LocalEngine`, any process of the user) makes the folder, starts the supervisor, reads state
  and logs, and may end at any time;
* the **supervisor** (`supervisor`, one detached process a job) lays the host trees, starts one agent a host, watches
  them by pidfd, stops them, judges how they ended, and archives what they left. Only it moves a job's state on;
* whoever looks at a job whose supervisor is gone (`store.Store.noticed`) records that, under the job's lock.

Processes are known by PID *and* start time, so that a PID that was given out again is never taken for ours.
"""
