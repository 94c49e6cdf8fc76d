// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package childproc starts processes that end with the one that has started them.
package childproc

import (
	"context"
	"io"
)

// CancelAtEOF is the child's half: it calls cancel when in, its standard input, ends. The parent holds that open for as long as it lives.
func CancelAtEOF(in io.Reader, cancel context.CancelFunc) {
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
}
