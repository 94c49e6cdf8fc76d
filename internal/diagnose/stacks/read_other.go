// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && (amd64 || arm64))

package stacks

import (
	"context"
	"fmt"
	"runtime"
)

// Reader reads processes. On this system it cannot.
type Reader struct{}

// Read returns an error: the memory of a process is read on 64-bit Linux only.
func (*Reader) Read(context.Context, int) (*Process, error) {
	return nil, fmt.Errorf("%w: on %s", errUnsupported, runtime.GOOS)
}
