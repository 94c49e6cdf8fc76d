"""Asks PyTorch which CPUs it would bind workers to, on machines that are folders: numa.py FILE. Prints a JSON list of lists, null for an error."""
import builtins
import json
import logging
import os
import sys
import types

import torch
from torch.numa import binding

logging.disable(logging.CRITICAL)
torch.accelerator.is_available = lambda: True
torch.accelerator.current_accelerator = lambda: None
binding.shutil = types.SimpleNamespace(which=lambda name: name)


def ask(machine, mode, device):
    root, addresses, allowed = machine["root"], machine["devices"], set(machine["allowed"])
    binding.open = lambda name, *more: builtins.open(root + name, *more)
    binding.os = types.SimpleNamespace(path=os.path, listdir=lambda name: os.listdir(root + name), sched_getaffinity=lambda _: allowed)

    def properties(index):
        domain, bus, rest = addresses[index].split(":")
        return types.SimpleNamespace(pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16), pci_device_id=int(rest.split(".")[0], 16))

    torch.get_device_module = lambda _: types.SimpleNamespace(get_device_properties=properties)
    torch.accelerator.device_count = lambda: len(addresses)
    try:
        cpus = binding._get_validated_logical_cpus_to_bind_to(device_index=device, numa_options=binding.NumaOptions(binding.AffinityMode(mode)))
        return sorted(cpus)
    except Exception:
        return None


with open(sys.argv[1]) as f:
    machines = json.load(f)
print("cpus", json.dumps([[ask(m, mode, d) for mode in m["modes"] for d in range(len(m["devices"]))] for m in machines]))
