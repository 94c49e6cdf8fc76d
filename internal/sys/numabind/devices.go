// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package numabind

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// errNone: the host has no device to be near to.
var errNone = errors.New("no accelerator can be seen in /proc/driver/nvidia/gpus or /sys/class/kfd")

// Devices returns the PCI addresses of the accelerators in the order of their numbers: those of NVIDIA by address, as
// CUDA_DEVICE_ORDER=PCI_BUS_ID and devices of one kind have it, or those of AMD as their driver lists them.
func (m Machine) Devices() ([]string, error) {
	all, err := filepath.Glob(filepath.Join(m.Root, "proc/driver/nvidia/gpus/*"))
	if err != nil {
		return nil, err
	}
	if len(all) > 0 {
		for i := range all {
			all[i] = filepath.Base(all[i])
		}
		slices.Sort(all)
		return m.visible(all, m.uuid, "CUDA_VISIBLE_DEVICES")
	}
	if all, err = m.amd(); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errNone
	}
	// ROCR's choice is made first, and the others count what it has left.
	for _, name := range []string{"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} {
		if all, err = m.visible(all, func(string) string { return "" }, name); err != nil {
			return nil, err
		}
		if _, set := m.Lookup(name); set && name == "HIP_VISIBLE_DEVICES" {
			break // it has the same meaning as CUDA's
		}
	}
	return all, nil
}

// visible chooses devices as the libraries do: by number or by the beginning of their name, up to the first word that is neither.
func (m Machine) visible(all []string, uuid func(address string) string, name string) ([]string, error) {
	list, set := m.Lookup(name)
	if !set {
		return all, nil
	}
	var chosen []string
	for word := range strings.SplitSeq(list, ",") {
		word = strings.TrimSpace(word)
		if strings.HasPrefix(word, "MIG-") {
			return nil, fmt.Errorf("%s=%s names a part of a device: which device that is cannot be seen in /proc", name, list)
		}
		at := slices.IndexFunc(all, func(address string) bool { return word != "" && strings.HasPrefix(uuid(address), word) })
		if n, err := strconv.Atoi(word); err == nil {
			at = n
		}
		if at < 0 || at >= len(all) {
			break
		}
		chosen = append(chosen, all[at])
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%s=%s leaves no device that can be seen in /proc and /sys", name, list)
	}
	return chosen, nil
}

// uuid returns the name of a device of NVIDIA, "" if it is not known.
func (m Machine) uuid(address string) string {
	b, _ := os.ReadFile(filepath.Join(m.Root, "proc/driver/nvidia/gpus", address, "information")) //nolint:gosec // in /proc
	for line := range strings.SplitSeq(string(b), "\n") {
		if value, found := strings.CutPrefix(line, "GPU UUID:"); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// amd returns the devices of AMD in the order of their driver.
func (m Machine) amd() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(m.Root, "sys/class/kfd/kfd/topology/nodes/*/properties"))
	if err != nil {
		return nil, err
	}
	number := func(file string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		return n
	}
	slices.SortFunc(files, func(a, b string) int { return number(a) - number(b) })
	var all []string
	for _, file := range files {
		b, err := os.ReadFile(file) //nolint:gosec // in /sys
		if err != nil {
			continue // a device of another user
		}
		var units, location, domain uint64
		for line := range strings.SplitSeq(string(b), "\n") {
			name, value, _ := strings.Cut(line, " ")
			for key, to := range map[string]*uint64{"simd_count": &units, "location_id": &location, "domain": &domain} {
				if name == key {
					*to, _ = strconv.ParseUint(value, 10, 64)
				}
			}
		}
		if units > 0 { // else a processor
			all = append(all, fmt.Sprintf("%04x:%02x:%02x.%x", domain, location>>8&0xff, location>>3&0x1f, location&7))
		}
	}
	return all, nil
}
