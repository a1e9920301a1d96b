"""The storage engine of a hub: what is written, in which order, and how it is found again (spec §4.8, DESIGN §4).

A receipt leaves the hub after the sync of its group; a crash at any moment loses nothing that was answered. No other
room knows names or formats of a hub's files, and all of them can be made again but identity, chunks, control journal,
checkpoints and the write-ahead journal.

It imports `veen.core` and `veen.io`. Start with `store`, the way of an entry from memory to its files, and `layout`,
the names of all files. `journal` writes ahead, `label_files` holds a label, `index` is the snapshot in
SQLite, `keys` the identity of a hub, `copies` clones and forks, `maintenance` retention and scrubbing.
"""
