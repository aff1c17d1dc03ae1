"""For tests that run for real on several ranks: gloo processes that meet through a file."""

import os
import sys

import torch
import torch.distributed
import torch.multiprocessing


def on_ranks(function, folder, *arguments, ranks=2):
    """Run ``function(rank, folder, *arguments)`` in each of so many processes; what one raises is raised here."""
    torch.multiprocessing.spawn(_one_rank, (function, ranks, folder, arguments), nprocs=ranks)


def _one_rank(rank, function, ranks, folder, arguments):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    function(rank, folder, *arguments)
    torch.distributed.barrier()  # nobody leaves while another still talks
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's teardown races with gloo's and DDP's threads: one that asks for the GIL then is unwound
    # through C++ and aborts the process, long after its work was done and written.
    os._exit(0)
