"""The machinery of a pack: independent tasks that each write one file, so that a run can die anywhere and go on.

``work``        the hidden folder of a run: locked, kept when the run dies, gone when it ends
``engines``     who runs the tasks: this process, a pool of processes, threads, or a Ray cluster
``part_files``  tokenized parts on disk, each with a receipt that says it is whole
``encode``      the task that makes one: read, check, render, tokenize, label
``corpus``      all parts as one: where each document is, and how often the mix takes it
``shards``      the task that gathers rows from the parts and writes one file of the packed folder
``losses``      the line-by-line account of what is not in the rows
"""
