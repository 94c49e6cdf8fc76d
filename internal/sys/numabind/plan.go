// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package numabind

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
