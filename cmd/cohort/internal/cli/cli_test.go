// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == command.SupervisorName { // a launcher under test has started this program again
		os.Exit(Main(os.Args[1:], System()))
	}
	goleak.VerifyTestMain(m)
}
