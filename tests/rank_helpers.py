"""For tests that run for real on several ranks: gloo processes that meet through a file."""

import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing


def on_ranks(function, folder, *arguments, ranks=2):
    """Run ``function(rank, folder, *arguments)`` in each of so many processes; what one raises is raised here."""
    try:
        torch.multiprocessing.spawn(_one_rank, (function, ranks, folder, arguments), nprocs=ranks)
    except torch.multiprocessing.ProcessRaisedException as error:
        # A rank that dies closes its connections, and who waits for it fails, too, and may be reported first.
        raised = sorted(Path(folder).glob("raised-*"), key=lambda path: path.stat().st_mtime_ns)
        if raised:
            raise torch.multiprocessing.ProcessRaisedException(
                raised[0].read_text("utf-8"), error.error_index, error.error_pid
            ) from error
        raise


def _one_rank(rank, function, ranks, folder, arguments):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    try:
        function(rank, folder, *arguments)
    except BaseException:
        Path(folder, f"raised-{rank}").write_text(traceback.format_exc(), "utf-8")
        raise
    torch.distributed.barrier()  # nobody leaves while another still talks
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's teardown races with gloo's and DDP's threads: one that asks for the GIL then is unwound
    # through C++ and aborts the process, long after its work was done and written.
    os._exit(0)
