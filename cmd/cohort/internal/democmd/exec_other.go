// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package democmd

import "errors"

func becomePython(string, string) error {
	return errors.New("demo: a PyTorch rank takes part on Unix systems only")
}
