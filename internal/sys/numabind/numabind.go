// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package numabind finds the processors near an accelerator, for torchrun's --numa-binding. It corresponds to torch/numa/binding.py and
// chooses the same processors, but asks /proc and /sys alone where PyTorch asks the accelerator's library.
package numabind

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Modes are the values of --numa-binding.
var Modes = []string{"node", "socket", "exclusive", "core-complex"}

// Machine reads the description of a machine.
type Machine struct {
	// Root is the folder with proc and sys; "/" but for tests.
	Root string
	// Lookup looks up a variable of the environment: which devices are visible.
	Lookup func(string) (string, bool)
	// Allowed are the processors that this process may run on.
	Allowed []int
}

// CPUs returns the processors for the worker whose device has this number.
func (m Machine) CPUs(mode string, device int) ([]int, error) {
	devices, err := m.Devices()
	if err != nil {
		return nil, err
	}
	if device >= len(devices) {
		return nil, fmt.Errorf("device %d does not exist: this host has %d that can be seen in /proc and /sys", device, len(devices))
	}
	nodes := make([]int, len(devices))
	for i, address := range devices {
		if nodes[i], err = m.nodeOf(address); err != nil {
			return nil, err
		}
	}
	cpus, err := m.near(mode, device, nodes)
	if err == nil && len(cpus) == 0 {
		err = fmt.Errorf("this process may run on none of the processors of NUMA node %d, where device %d is", nodes[device], device)
	}
	slices.Sort(cpus)
	return cpus, err
}

// near chooses the processors, given the NUMA node of each device.
func (m Machine) near(mode string, device int, nodes []int) ([]int, error) {
	node := nodes[device]
	switch mode {
	case "node":
		return m.onNode(node)
	case "socket":
		return m.onSocket(node)
	case "exclusive":
		return m.share(device, nodes)
	case "core-complex":
		return m.complexOf(device, nodes)
	}
	return nil, fmt.Errorf("%q is none of %s", mode, strings.Join(Modes, ", "))
}

// onNode returns the processors of a NUMA node that may be used.
func (m Machine) onNode(node int) ([]int, error) {
	cpus, err := m.list("sys/devices/system/node/node" + strconv.Itoa(node) + "/cpulist")
	return slices.DeleteFunc(cpus, func(cpu int) bool { return !slices.Contains(m.Allowed, cpu) }), err
}

// onSocket returns the processors of all NUMA nodes in the socket of a node. PyTorch fails where some node has no processor that may
// be used; such a node adds none here.
func (m Machine) onSocket(node int) ([]int, error) {
	socket, err := m.socketOf(node)
	if err != nil || socket < 0 {
		return nil, err
	}
	nodes, err := m.list("sys/devices/system/node/possible")
	if err != nil {
		return nil, err
	}
	var all []int
	for _, other := range nodes {
		if at, err := m.socketOf(other); err == nil && at == socket {
			cpus, _ := m.onNode(other)
			all = append(all, cpus...)
		}
	}
	return all, nil
}

// socketOf returns the socket of a NUMA node, -1 if none of its processors may be used.
func (m Machine) socketOf(node int) (int, error) {
	cpus, err := m.onNode(node)
	if err != nil || len(cpus) == 0 {
		return -1, err
	}
	text, err := m.read("sys/devices/system/cpu/cpu" + strconv.Itoa(slices.Min(cpus)) + "/topology/physical_package_id")
	if err != nil {
		return -1, err
	}
	return strconv.Atoi(text)
}

// share gives each device of a node as many whole cores as the others, the first ones one more.
func (m Machine) share(device int, nodes []int) ([]int, error) {
	cores, err := m.groups(nodes[device], m.siblings)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(cores, func(a, b group) int { return cmp.Compare(a.first, b.first) })
	place, devices := placeOf(device, nodes)
	each, more := len(cores)/devices, len(cores)%devices
	if each < 1 {
		return nil, fmt.Errorf("NUMA node %d has %d cores that may be used, and %d devices", nodes[device], len(cores), devices)
	}
	start := place*each + min(place, more)
	if place < more {
		each++
	}
	var all []int
	for _, core := range cores[start : start+each] {
		all = append(all, core.cpus...)
	}
	return all, nil
}

// complexOf gives each device of a node the processors that share a cache of the highest level, the largest groups first.
func (m Machine) complexOf(device int, nodes []int) ([]int, error) {
	caches, err := m.groups(nodes[device], m.sharingCache)
	if err != nil || len(caches) == 0 {
		return nil, err
	}
	slices.SortFunc(caches, func(a, b group) int {
		return cmp.Or(cmp.Compare(len(b.cpus), len(a.cpus)), cmp.Compare(a.first, b.first))
	})
	place, _ := placeOf(device, nodes)
	return caches[place%len(caches)].cpus, nil
}

// placeOf returns the number of a device among those of its node, and how many they are.
func placeOf(device int, nodes []int) (place, devices int) {
	for i, node := range nodes {
		if node != nodes[device] {
			continue
		}
		devices++
		if i < device {
			place++
		}
	}
	return place, devices
}

// group is processors that share something, named after the first that shares it.
type group struct {
	first int
	cpus  []int
}

// groups sorts the processors of a node by what they share.
func (m Machine) groups(node int, sharing func(cpu int) ([]int, error)) ([]group, error) {
	cpus, err := m.onNode(node)
	if err != nil {
		return nil, err
	}
	found := map[int][]int{}
	for _, cpu := range cpus {
		with, err := sharing(cpu)
		if err != nil {
			return nil, err
		}
		if len(with) == 0 {
			return nil, fmt.Errorf("/sys does not report what processor %d shares with others", cpu)
		}
		found[slices.Min(with)] = append(found[slices.Min(with)], cpu)
	}
	var all []group
	for _, first := range slices.Sorted(maps.Keys(found)) {
		all = append(all, group{first, found[first]})
	}
	return all, nil
}

// siblings are the processors of one core.
func (m Machine) siblings(cpu int) ([]int, error) {
	return m.list("sys/devices/system/cpu/cpu" + strconv.Itoa(cpu) + "/topology/thread_siblings_list")
}

// sharingCache are the processors that share the data cache of the highest level.
func (m Machine) sharingCache(cpu int) ([]int, error) {
	folders, err := filepath.Glob(filepath.Join(m.Root, "sys/devices/system/cpu/cpu"+strconv.Itoa(cpu), "cache/index[0-9]*"))
	if err != nil {
		return nil, err
	}
	best, at := -1, ""
	for _, folder := range folders {
		below, err := filepath.Rel(m.Root, folder)
		if err != nil {
			return nil, err
		}
		if kind, failed := m.read(below + "/type"); failed != nil || kind != "Unified" && kind != "Data" {
			continue
		}
		text, err := m.read(below + "/level")
		if err != nil {
			return nil, err
		}
		if level, err := strconv.Atoi(text); err == nil && level > best {
			best, at = level, below
		}
	}
	if best < 0 {
		return nil, nil
	}
	return m.list(at + "/shared_cpu_list")
}

// nodeOf returns the NUMA node of a PCI device. A machine with one node often has -1.
func (m Machine) nodeOf(address string) (int, error) {
	text, err := m.read("sys/bus/pci/devices/" + address + "/numa_node")
	if err != nil {
		return 0, err
	}
	node, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("/sys says that device %s is on NUMA node %q", address, text)
	}
	return max(0, node), nil
}

// list reads a file such as "0-2,4".
func (m Machine) list(name string) ([]int, error) {
	text, err := m.read(name)
	if err != nil {
		return nil, err
	}
	return parseList(text)
}

// mostCPUs bounds the numbers of a list; Linux knows no more processors.
const mostCPUs = 1 << 16

// parseList reads a list of numbers as the kernel writes them: "0-2,4".
func parseList(text string) ([]int, error) {
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		low, high, ranged := strings.Cut(part, "-")
		first, err := strconv.ParseUint(low, 10, 32)
		last := first
		if err == nil && ranged {
			last, err = strconv.ParseUint(high, 10, 32)
		}
		if err != nil || last < first || last >= mostCPUs {
			return nil, fmt.Errorf("%q is not a list of numbers", text)
		}
		for n := first; n <= last; n++ {
			all = append(all, int(n))
		}
	}
	return all, nil
}

func (m Machine) read(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(m.Root, name)) //nolint:gosec // in /proc and /sys
	if err != nil {
		return "", fmt.Errorf("this machine does not report where its devices are: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Plan returns the processors for each worker of this machine, the device of each having its local rank; none for mode "".
func Plan(mode string, workers int) ([][]int, error) {
	all := make([][]int, workers)
	if mode == "" {
		return all, nil
	}
	m, err := here()
	if err != nil {
		return nil, err
	}
	for local := range all {
		if all[local], err = m.CPUs(mode, local); err != nil {
			return nil, err
		}
	}
	return all, nil
}
