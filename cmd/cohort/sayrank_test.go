// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/cohort-dist/cohort/observe/progress"
)

// sayRank is a worker that says what it is doing until it is told to end.
func sayRank() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	defer progress.Section("load")()
	rank, _ := strconv.ParseUint(os.Getenv("RANK"), 10, 64)
	progress.StepTo(120 + rank)
	<-ctx.Done()
}
