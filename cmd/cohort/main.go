// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command cohort runs and inspects the parts of a distributed job: a store that PyTorch cannot tell from its own, the
// operations on one, a live view of who waits for what, and a demonstration. "cohort help" says more.
package main

import (
	"os"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/cli"
)

func main() { os.Exit(cli.Main(cli.Arguments(os.Args), cli.System())) }
