"""Writes programs that ExecuTorch loads and that are no good, for the tests of florence2-backend-executorch.

    python tools/odd_programs.py florence2-backend-executorch/testdata/odd

    unplanned.pte    like a vision encoder, but without memory for its output: a run would write to nowhere
"""

import sys
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass


class Vision(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 32)

    def forward(self, pixels):
        return self.linear(pixels[:, 0])


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    program = torch.export.export(Vision().eval(), (torch.zeros(1, 3, 8, 8),), strict=False)
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    planning = MemoryPlanningPass(alloc_graph_output=False)
    with (out / "unplanned.pte").open("wb") as file:
        edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).write_to_file(file)


if __name__ == "__main__":
    main()
