// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package numabind

import "errors"

// here is the machine that this process runs on.
func here() (Machine, error) {
	return Machine{}, errors.New("this system does not report where its devices are")
}
