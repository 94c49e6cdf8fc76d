// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package launch is what the main functions of the examples have in common.
package launch

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

// Main runs an example as one process of a job. The init URL is its only argument; without one the environment decides,
// as PyTorch's env:// does. Ctrl-C ends ctx.
func Main(run func(ctx context.Context, url string, out io.Writer) error) {
	os.Exit(execute(os.Args, os.Stdout, os.Stderr, run))
}

func execute(args []string, out, complaints io.Writer, run func(ctx context.Context, url string, out io.Writer) error) int {
	url := "env://"
	switch {
	case len(args) > 2 || len(args) == 2 && strings.HasPrefix(args[1], "-"):
		_, _ = fmt.Fprintf(complaints,
			"usage: %s [URL]\nURL defines how the processes of the job meet, such as tcp://127.0.0.1:29500?rank=0&world_size=2.\n"+
				"Without it RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT do.\n", filepath.Base(args[0]))
		return 2
	case len(args) == 2:
		url = args[1]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, url, out); err != nil {
		_, _ = fmt.Fprintln(complaints, err)
		return 1
	}
	return 0
}
