// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchtest

import "go.uber.org/goleak"

// LastingGoroutines are the goroutines of this package that live until the test process ends, for goleak.
func LastingGoroutines() []goleak.Option {
	var options []goleak.Option
	for _, function := range []string{
		"github.com/cohort-dist/cohort/internal/testing/torchtest.(*Torch).readReplies",
		"github.com/cohort-dist/cohort/internal/testing/torchtest.(*Torch).acceptOutputs",
		"github.com/cohort-dist/cohort/internal/testing/torchtest.(*Torch).boot.func1",
		"os/exec.(*Cmd).watchCtx",
		"os/exec.(*Cmd).Start.func2",
	} {
		options = append(options, goleak.IgnoreAnyFunction(function))
	}
	return options
}
