"""The Docker engine: every host of a job is a container on a network of the job's own.

Who owns what is as in the local engine (`hdp.estimator.engines.local`), whose records, logs, verdict and archives
serve here too: a job is one folder below ``$HDP_HOME/jobs``, whatever its hosts are. What is different:

* the **supervisor** makes the network and the containers, follows their output into the hosts' logs, and removes them;
* a host's tree is in the job's folder, and is mounted at ``/opt/ml``; the secret is mounted from its file (0600);
* everything made in the daemon bears the job's name as a label, so that whoever finds the supervisor dead, or cleans
  up, removes it (`removal`). ``docker.json`` in the job's folder says which daemon has it.
"""
