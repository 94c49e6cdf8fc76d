// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/sys/numabind"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// numaMachine is a machine of which only the files in /proc and /sys exist.
type numaMachine struct {
	Root    string   `json:"root"`
	Devices []string `json:"devices"`
	Allowed []int    `json:"allowed"`
	Modes   []string `json:"modes"`
}

// randomMachine writes the files of a machine: one to three NUMA nodes, one or two sockets, cores of one or two threads, caches that a
// few of them share, one to six devices, and some processors that may not be used.
func randomMachine(t *testing.T, root string, r *rand.Rand) numaMachine {
	t.Helper()
	m := numaMachine{Root: root, Modes: numabind.Modes}
	write := func(name, text string) {
		file := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = os.WriteFile(file, []byte(text+"\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	nodes, each, threads, share := 1+r.IntN(3), 2*(1+r.IntN(6)), 1+r.IntN(2), 2*(1+r.IntN(4))
	sockets := min(nodes, 1+r.IntN(2))
	write("sys/devices/system/node/possible", fmt.Sprintf("0-%d", nodes-1))
	for node := range nodes {
		var cpus []string
		for i := range each {
			cpu := node*each + i
			cpus = append(cpus, strconv.Itoa(cpu))
			if i == 0 || r.IntN(6) > 0 { // PyTorch fails on a node of which nothing may be used
				m.Allowed = append(m.Allowed, cpu)
			}
			at := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", cpu)
			write(at+"topology/physical_package_id", strconv.Itoa(node*sockets/nodes))
			core := cpu / threads * threads
			write(at+"topology/thread_siblings_list", fmt.Sprintf("%d-%d", core, core+threads-1))
			first := node*each + i/share*share
			for index, c := range []string{
				"Data 1 " + strconv.Itoa(cpu), fmt.Sprintf("Instruction 7 0-%d", nodes*each-1),
				fmt.Sprintf("Unified 3 %d-%d", first, min(first+share, (node+1)*each)-1),
			} {
				f := strings.Fields(c)
				for k, name := range []string{"type", "level", "shared_cpu_list"} {
					write(fmt.Sprintf("%scache/index%d/%s", at, index, name), f[k])
				}
			}
			write(at+"cache/uevent", "")
		}
		write(fmt.Sprintf("sys/devices/system/node/node%d/cpulist", node), strings.Join(cpus, ","))
	}
	for range 1 + r.IntN(6) {
		address := fmt.Sprintf("%04x:%02x:%02x.0", r.IntN(2), r.IntN(256), r.IntN(32))
		if slices.Contains(m.Devices, address) {
			continue
		}
		m.Devices = append(m.Devices, address)
		write("proc/driver/nvidia/gpus/"+address+"/information", "Model: x")
		write("sys/bus/pci/devices/"+address+"/numa_node", strconv.Itoa(r.IntN(nodes+1)-1))
	}
	slices.Sort(m.Devices)
	return m
}

// TestSameNUMABinding: on random machines a worker is bound to the processors that PyTorch would choose, or to none where PyTorch fails.
func TestSameNUMABinding(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 9) {
			torch.NotApplicable(t, "has no NUMA binding")
		}
		dir := place(t, torch)
		r := rand.New(rand.NewPCG(14, 2))
		var machines []numaMachine
		for i := range 12 {
			machines = append(machines, randomMachine(t, fmt.Sprintf("%s/machine%d/", dir, i), r))
		}
		text, err := json.Marshal(machines)
		if err == nil {
			err = os.WriteFile(dir+"/machines.json", text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		command := torch.Command()
		_ = runInto(t, dir, exec.Command(command[0], append(command[1:], dir+"/numa.py", dir+"/machines.json")...), &out)
		var theirs [][][]int
		_, answer, _ := strings.Cut(out.String(), "cpus ")
		if err := json.Unmarshal([]byte(answer), &theirs); err != nil || len(theirs) != len(machines) {
			t.Fatalf("%v: %s", err, &out)
		}
		bound := 0
		for i, m := range machines {
			here := numabind.Machine{Root: m.Root, Allowed: m.Allowed, Lookup: func(string) (string, bool) { return "", false }}
			for k, want := range theirs[i] {
				mode, device := m.Modes[k/len(m.Devices)], k%len(m.Devices)
				got, err := here.CPUs(mode, device)
				if (err != nil) != (want == nil) || !slices.Equal(got, want) {
					t.Errorf("machine %d, %s of device %d: %v (%v), PyTorch has %v", i, mode, device, got, err, want)
				}
				if want != nil {
					bound++
				}
			}
		}
		if bound < 50 {
			t.Errorf("PyTorch has chosen processors %d times only", bound)
		}
	})
}
