"""Times on the GPU: medians of device events, with the L2 cache emptied before each run."""

import statistics
import time

import torch

FLUSH_BYTES = 512 << 20  # several times the largest L2


class Timer:
    def __init__(self, seconds, least=5, most=50):
        self.seconds, self.least, self.most = seconds, least, most
        self.flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def once(self, run):
        """Milliseconds of one run, on a cold cache."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def median(self, run):
        """Milliseconds: the median of as many runs as the time given holds."""
        run()
        first = self.once(run)
        count = max(self.least, min(self.most, int(self.seconds * 1000 / max(first, 1e-3))))
        return statistics.median(self.once(run) for _ in range(count))

    def graph(self, run):
        """The same of a CUDA graph of run(): no gaps between launches, for ours and for the standard alike."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()
        return self.median(captured.replay)


def peak_above(run, results):
    """Bytes that run() needs at its peak beyond what is there before, its results not counted; results(value)
    lists them."""
    run()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    value = run()
    torch.cuda.synchronize()
    kept = sum(t.untyped_storage().nbytes() for t in results(value))
    return torch.cuda.max_memory_allocated() - before - kept


class HostTimer:
    """The same calls by the host's clock, for a look at the benchmark where there is no GPU."""

    def median(self, run):
        times = []
        for _ in range(2):
            start = time.perf_counter()
            run()
            times.append(1000 * (time.perf_counter() - start))
        return min(times)

    graph = median
