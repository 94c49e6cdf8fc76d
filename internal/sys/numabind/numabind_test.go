// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package numabind

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// machine writes the files of a machine into a folder. Their content is compared with PyTorch's own choice in interop/launch.
func machine(t *testing.T, env map[string]string, files map[string]string) Machine {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Machine{Root: root, Allowed: []int{0, 1, 2, 3, 4, 5, 6}, Lookup: func(name string) (string, bool) {
		v, set := env[name]
		return v, set
	}}
}

// twoNodes is a machine of two sockets with a NUMA node and four processors each, of which processor 7 may not be used. Two threads share a
// core, one cache has three of the threads of node 0. Devices 0 and 1 are on node 1, device 2 is on an unknown node.
func twoNodes() map[string]string {
	f := map[string]string{
		"proc/driver/nvidia/gpus/0000:3b:00.0/information": "Model: x\nGPU UUID: \t GPU-aaaa-1\nx",
		"proc/driver/nvidia/gpus/0000:5e:00.0/information": "GPU UUID: GPU-bbbb-2",
		"proc/driver/nvidia/gpus/0000:af:00.0/information": "GPU UUID: GPU-cccc-3",
		"sys/bus/pci/devices/0000:3b:00.0/numa_node":       "1",
		"sys/bus/pci/devices/0000:5e:00.0/numa_node":       "1",
		"sys/bus/pci/devices/0000:af:00.0/numa_node":       "-1",
		"sys/devices/system/node/possible":                 "0-1",
		"sys/devices/system/node/node0/cpulist":            "0-3",
		"sys/devices/system/node/node1/cpulist":            "4-7",
	}
	for cpu := range 8 {
		at := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", cpu)
		f[at+"topology/physical_package_id"] = strconv.Itoa(cpu / 4)
		f[at+"topology/thread_siblings_list"] = fmt.Sprintf("%d-%d", cpu/2*2, cpu/2*2+1)
		f[at+"cache/index0/type"], f[at+"cache/index0/level"], f[at+"cache/index0/shared_cpu_list"] = "Data", "1", strconv.Itoa(cpu)
		f[at+"cache/index1/type"], f[at+"cache/index1/level"], f[at+"cache/index1/shared_cpu_list"] = "Instruction", "9", "0-7"
		f[at+"cache/index2/type"], f[at+"cache/index2/level"], f[at+"cache/index2/shared_cpu_list"] = "Unified", "3",
			map[bool]string{true: "1-3", false: "0,4-7"}[cpu >= 1 && cpu <= 3]
	}
	return f
}

func TestCPUs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode   string
		device int
		env    map[string]string
		want   string
	}{
		{"node", 0, nil, "[4 5 6]"},
		{"node", 2, nil, "[0 1 2 3]"},
		{"node", 0, map[string]string{"CUDA_VISIBLE_DEVICES": "2"}, "[0 1 2 3]"},
		{"node", 1, map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-cc, GPU-b"}, "[4 5 6]"},
		{"node", 1, map[string]string{"CUDA_VISIBLE_DEVICES": "2,7,0"}, "device 1 does not exist: this host has 1"},
		{"node", 0, map[string]string{"CUDA_VISIBLE_DEVICES": "MIG-1"}, "names a part of a device"},
		{"node", 0, map[string]string{"CUDA_VISIBLE_DEVICES": ""}, "leaves no device"},
		{"socket", 0, nil, "[4 5 6]"},
		{"exclusive", 0, nil, "[4 5]"},
		{"exclusive", 1, nil, "[6]"},
		{"exclusive", 2, nil, "[0 1 2 3]"},
		{"core-complex", 0, nil, "[4 5 6]"},
		{"core-complex", 1, nil, "[4 5 6]"},
		{"core-complex", 2, nil, "[1 2 3]"},
		{"node", 3, nil, "device 3 does not exist: this host has 3"},
		{"near", 0, nil, `"near" is none of node`},
	} {
		cpus, err := machine(t, c.env, twoNodes()).CPUs(c.mode, c.device)
		if got := fmt.Sprint(cpus, err); !strings.Contains(got, c.want) {
			t.Errorf("%s of device %d, %v: %s, want %s", c.mode, c.device, c.env, got, c.want)
		}
	}
}

// TestSilentMachine: where the machine does not report what is needed, the error names it.
func TestSilentMachine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		without, mode, want string
	}{
		"no device":       {"proc/", "node", "no accelerator"},
		"no place":        {"sys/bus", "node", "numa_node"},
		"no node":         {"sys/devices/system/node/node1", "node", "cpulist"},
		"no cores":        {"sys/devices/system/cpu", "exclusive", "thread_siblings_list"},
		"no caches":       {"sys/devices/system/cpu", "core-complex", "does not report what processor 4 shares"},
		"no sockets":      {"sys/devices/system/cpu", "socket", "physical_package_id"},
		"no other node":   {"sys/devices/system/node/possible", "socket", "possible"},
		"nothing allowed": {"-", "node", "may run on none of the processors of NUMA node 1"},
	} {
		files := twoNodes()
		for file := range files {
			if strings.HasPrefix(file, c.without) {
				delete(files, file)
			}
		}
		m := machine(t, nil, files)
		if c.without == "-" {
			m.Allowed = []int{0}
		}
		if cpus, err := m.CPUs(c.mode, 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want %q", name, cpus, err, c.want)
		}
	}
}

// TestAMD: the devices of AMD are in the order of their driver, which lists processors too.
func TestAMD(t *testing.T) {
	t.Parallel()
	nodes := map[string]string{
		"sys/class/kfd/kfd/topology/nodes/0/properties":  "cpu_cores_count 8\nsimd_count 0\nlocation_id 0",
		"sys/class/kfd/kfd/topology/nodes/2/properties":  "simd_count 304\nlocation_id 50432\ndomain 0",
		"sys/class/kfd/kfd/topology/nodes/10/properties": "simd_count 304\nlocation_id 9217\ndomain 1",
	}
	for _, c := range []struct {
		env  map[string]string
		want []string
	}{
		{nil, []string{"0000:c5:00.0", "0001:24:00.1"}},
		{map[string]string{"HIP_VISIBLE_DEVICES": "1"}, []string{"0001:24:00.1"}},
		{map[string]string{"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}, []string{"0001:24:00.1"}},
		{map[string]string{"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, []string{"0001:24:00.1"}},
	} {
		if got, err := machine(t, c.env, nodes).Devices(); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, %v, want %v", c.env, got, err, c.want)
		}
	}
}

func FuzzParseList(f *testing.F) {
	for _, s := range []string{"", "0", "0-3,7", "3-1", "-1", "0-4294967295", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		all, err := parseList(s)
		if err == nil && len(all) > 0 && (slices.Min(all) < 0 || slices.Max(all) >= mostCPUs) {
			t.Errorf("%q: %v", s, all)
		}
	})
}
