"""FastFile: a channel whose files are there at once and whose bytes come from the store when they are read.

One process a channel serves one mount. From the script's read to the store and back::

    kernel -> server (FUSE's messages) -> fs (open files, windows) -> cache (parts, one byte budget)
                                                                        -> fetcher (threads) -> retry -> store

`server` and `abi` alone know FUSE, `s3store` alone knows S3. `process` is the main program of the mount process, `mode`
is the agent's side of it, `mounting` makes and removes mounts. A read never holds a thread while it waits for bytes:
whoever fetches the last part that it needs answers it.
"""
