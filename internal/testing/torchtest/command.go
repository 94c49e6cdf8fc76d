// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchtest

import "slices"

// Command returns the command line that starts the interpreter of this version, for tests that launch processes
// themselves.
func (tr *Torch) Command() []string { return slices.Clone(tr.command) }
