// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package numabind

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// here is the machine that this process runs on.
func here() (Machine, error) {
	m := Machine{Root: "/", Lookup: os.LookupEnv}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return m, fmt.Errorf("the processors that this process may run on: %w", err)
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			m.Allowed = append(m.Allowed, cpu)
		}
	}
	return m, nil
}
